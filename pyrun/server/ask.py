"""Puts questions to a running server."""

from __future__ import annotations

import contextlib
import os
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

from pyrun.errors import UserError
from pyrun.server.address import is_loopback

if TYPE_CHECKING:  # it takes long to load, and most commands ask nobody
    import requests

TIMEOUT_SECONDS = 10
LOOK_SECONDS = 0.5  # so often one looks whether a server is ready
NOT_OURS = "is it a server of llama-run?"


def server_url(given: str) -> str:
    """A person may leave http:// out, which is meant then."""
    return given if "://" in given else f"http://{given}"


def of_model(path: str, model: str | None) -> str:
    """A server that routes between several models has to be told which one a question is about."""
    return path if model is None else f"{path}{'&' if '?' in path else '?'}model={quote(model, safe='')}"


@contextmanager
def unverified() -> Iterator[None]:
    """Keeps quiet about verify=False, which is for servers that we started ourselves, on this machine: their
    certificate is for the names that others call them by."""
    from urllib3.exceptions import InsecureRequestWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", InsecureRequestWarning)
        yield


@contextmanager
def direct() -> Iterator[requests.Session]:
    """Servers here are asked directly: a proxy would look for them on its own, and .netrc would replace our key."""
    import requests

    with requests.Session() as session:
        session.trust_env = False
        yield session


@contextmanager
def asking(url: str, verify: bool) -> Iterator[requests.Session]:
    import requests

    if verify and not is_loopback(urlsplit(url).hostname or ""):
        with requests.Session() as session:
            yield session
        return
    with direct() as session, contextlib.nullcontext() if verify else unverified():
        # One part of the environment counts here, too: who signs certificates.
        session.verify = verify and (os.environ.get("REQUESTS_CA_BUNDLE") or True)
        yield session


def health(url: str) -> int | None:
    """What it answers: 503 as long as it loads its model; None where nobody is there."""
    import requests

    try:
        with asking(url, verify=False) as session:
            return session.get(f"{url}/health", timeout=TIMEOUT_SECONDS).status_code
    except requests.RequestException:
        return None


def await_loaded(url: str) -> None:
    """Somebody else started it just now."""
    while (answer := health(url)) != 200:
        if answer != 503:
            raise UserError(f"what is at {url} is no server of llama-run", "choose another port: LLAMA_ARG_PORT=9091")
        time.sleep(LOOK_SECONDS)


def ask(
    url: str,
    path: str,
    key: str | None = None,
    *,
    model: str | None = None,
    headers: Mapping[str, str] | None = None,
    post: object = None,
    delete: bool = False,
    verify: bool = True,
    patience: float | None = TIMEOUT_SECONDS,
) -> Any:
    """Gives what the server answers, as JSON: to GET, to POST of `post`, or to DELETE.

    model: whom it is about, where the server routes between several: pyrun/server/served.py finds that out.
    patience: seconds without a word from it; None for as long as it takes."""
    import requests

    url, path = server_url(url), of_model(path, model)
    said = {**(headers or {}), **({"Authorization": f"Bearer {key}"} if key else {})}
    method = "DELETE" if delete else "GET" if post is None else "POST"
    try:
        with asking(url, verify) as session:
            answer = session.request(method, url.rstrip("/") + path, json=post, headers=said, timeout=patience)
    except requests.exceptions.SSLError as error:
        raise UserError(
            f"nobody here vouches for the certificate of {url}", "set REQUESTS_CA_BUNDLE to the file of who signed it"
        ) from error
    except (requests.RequestException, ValueError) as error:
        raise UserError(f"no server answers at {url}", "start one with `llama-run --server`") from error
    refused_with(answer, url, path)
    try:
        return answer.json()
    except ValueError as error:
        raise UserError(f"{url}{path} does not answer with JSON", NOT_OURS) from error


def refused_with(answer: requests.Response, url: str, path: str) -> None:
    """Raises what a person should hear, unless the server has answered."""
    if answer.status_code == 401:
        raise UserError(f"{url} refuses to answer", "the server wants its API key: set LLAMA_API_KEY to it")
    if answer.status_code != 200:
        raise UserError(f"{url}{path} answers with {answer.status_code}", _reason(answer) or NOT_OURS)


def _reason(answer: requests.Response) -> str | None:
    """Gives what the server itself says: that the fault is in the request, or that it could not do it. Others say
    nothing of use here."""
    try:
        message = answer.json()["error"]["message"]
    except (ValueError, LookupError, TypeError):
        return None
    return str(message) if answer.status_code in (400, 500) else None
