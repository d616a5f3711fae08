"""What an error of a provider's package means: a kind that can be decided on, and words without the key."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from email.utils import parsedate_to_datetime
from time import time
from typing import Any

import httpx2

from pyrun.errors import UserError
from pyrun.providers import events
from pyrun.providers.events import ProviderError
from pyrun.providers.known import Provider

INSTALL = "install what it needs: LLAMA_RUN_EXTRAS=chat ./llama-run --version"
MAX_TOLD = 500
# How servers say that a prompt does not fit: llama-server, OpenAI, Anthropic, Gemini.
TOO_LONG = (
    "exceed_context_size",
    "context_length_exceeded",
    "prompt is too long",
    "exceeds the maximum number of tokens",
)
# Of an error that comes in the middle of Anthropic's stream, whose own status is 200 by then.
STATUS_OF = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "api_error": 500,
    "timeout_error": 504,
    "overloaded_error": 529,
}
QUOTA = ("insufficient_quota", "credit balance", "billing")


@contextmanager
def explained(provider: Provider, package: Any) -> Iterator[None]:
    """`package` is openai or anthropic: their errors have the same names."""
    try:
        yield
    except (package.APITimeoutError, httpx2.TimeoutException):
        raise _error(provider, events.UNREACHABLE, "it did not answer in time") from None
    except package.APIConnectionError as error:
        raise _error(provider, *_connection(error)) from None
    except httpx2.HTTPError as error:  # anthropic lets those of a stream pass
        raise _error(provider, events.CUT, f"the connection broke: {error}") from None
    except package.APIStatusError as error:
        status = error.status_code
        told = _told(error) if status == 200 else f"{status}: {_told(error)}"
        kind = kind_of(_code(error) if status == 200 else status, _body(error))
        raise _error(provider, kind, told, error.response.headers) from None
    except package.APIError as error:  # it came in the middle of a stream
        raise _error(provider, kind_of(_code(error), _body(error)), _told(error)) from None
    except (ValueError, TypeError, AttributeError, LookupError) as error:
        raise _error(provider, events.CUT, f"it sent what cannot be understood: {error}") from None


def needs(name: str | None) -> UserError:
    return UserError(f"the package {name} is not installed", INSTALL)


def kind_of(status: int, body: str) -> str:
    if any(word in body for word in TOO_LONG) or status == 413:
        return events.TOO_LONG
    if status in (402, 429) or any(word in body for word in QUOTA):
        return events.OVER_LIMIT
    if status in (401, 403):
        return events.REFUSED
    if status >= 500 or status == 408 or "overloaded" in body:
        return events.OVERLOADED
    return events.WRONG


def _connection(error: Exception) -> tuple[str, str]:
    """Whether the server was there at all. The packages hide that behind one error for both."""
    cause = error.__cause__
    if cause is not None and "Connect" in type(cause).__name__:
        return events.UNREACHABLE, f"no connection: {cause}"
    return events.CUT, f"the connection broke: {cause or error}"


def _body(error: Any) -> str:
    return f"{getattr(error, 'body', '')} {error}"


def _code(error: Any) -> int:
    """Errors within a stream have their code, if any, in the body; Anthropic's have a type that stands for one."""
    body = getattr(error, "body", None)
    inner = body.get("error", body) if isinstance(body, dict) else None
    code = inner.get("code") if isinstance(inner, dict) else None
    if isinstance(code, int):
        return code
    return STATUS_OF.get(str(inner.get("type")), 500) if isinstance(inner, dict) else 500


def _told(error: Any) -> str:
    body = getattr(error, "body", None)
    inner = body.get("error", body) if isinstance(body, dict) else None
    message = inner.get("message") if isinstance(inner, dict) else None
    return str(message or error)


def _error(provider: Provider, kind: str, told: str, headers: Mapping[str, str] | None = None) -> ProviderError:
    words = without_key(provider, f"{provider.name} ({provider.base_url}): {told}")
    # The cut comes last: through the middle of a key, it would leave a beginning that nothing takes out.
    return ProviderError(kind, words[:MAX_TOLD], _retry_after(headers or {}))


def without_key(provider: Provider, text: str) -> str:
    """Nor as Python writes it, which is how a package quotes one that it refuses to send."""
    if not provider.key:
        return text
    return text.replace(provider.key, "***").replace(repr(provider.key)[1:-1], "***")


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds, or a date."""
    given = headers.get("retry-after", "")
    try:
        return max(0.0, float(given))
    except ValueError:
        pass
    try:
        return max(0.0, parsedate_to_datetime(given).timestamp() - time())
    except (ValueError, TypeError):
        return None
