"""Describes the running server as an agent has to know it: address, key, model and how much the model reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pyrun.errors import UserError
from pyrun.server.ask import server_url
from pyrun.server.served import CHOOSE, choose_served, load

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


def find_endpoint(url: str, key: str | None, model: str | None = None, how: str = CHOOSE) -> Endpoint:
    """Asks the server. `model` says which one where it has several, and `how` is for the person who did not: that one
    is loaded for the answer, which may take long."""
    url = server_url(url).rstrip("/").removesuffix("/v1")
    served = choose_served(url, key, model, how)
    return Endpoint(url, served.name, _context(url, load(url, key, served)), key)


def _context(url: str, told: Any) -> int:
    try:
        return int(told["default_generation_settings"]["n_ctx"])
    except (KeyError, TypeError, ValueError) as error:
        raise UserError(f"{url}/props does not say how long the context is", "is it a server of llama-run?") from error
