"""Describes the running server as an agent has to know it: address, key, model and how much the model reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from pyrun.errors import UserError
from pyrun.server.ask import ask, server_url

NO_KEY = "none"  # most agents insist on a key; a server without one takes any


@dataclass(frozen=True)
class Endpoint:
    """`url` is without a slash at its end and without /v1; `context` is what one conversation may hold, in tokens."""

    url: str
    model: str
    context: int
    key: str | None = None

    @property
    def openai_url(self) -> str:
        return f"{self.url}/v1"

    @property
    def token(self) -> str:
        return self.key or NO_KEY

    @property
    def answer(self) -> int:
        """An agent may ask for so many tokens at once: what is set aside for an answer is missing in the prompt."""
        return max(1, min(16_384, self.context // 4))


def find_endpoint(url: str, key: str | None, model: str | None = None) -> Endpoint:
    """Asks the server; `model` says which one where it has several."""
    url = server_url(url).rstrip("/").removesuffix("/v1")
    served = [str(entry["id"]) for entry in _list(ask(url, "/v1/models", key))]
    name = _choose(url, served, model)
    several = f"?model={quote(name, safe='')}" if len(served) > 1 else ""
    return Endpoint(url, name, _context(url, ask(url, f"/props{several}", key)), key)


def _list(told: Any) -> list[Any]:
    return list(told["data"]) if isinstance(told, dict) and isinstance(told.get("data"), list) else []


def _choose(url: str, served: Sequence[str], wanted: str | None) -> str:
    if not served:
        raise UserError(f"{url} serves no model", "start it with one: `llama-run --server MODEL`")
    if wanted is None and len(served) == 1:
        return served[0]
    if wanted in served:
        return str(wanted)
    problem = f"{url} does not serve {wanted}" if wanted else f"{url} serves several models"
    raise UserError(problem, f"choose one with --model: {', '.join(served)}")


def _context(url: str, told: Any) -> int:
    try:
        return int(told["default_generation_settings"]["n_ctx"])
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{url}/props does not say how long the context is", "is it a server of llama-run?") from error
