"""Asks the hub that models are downloaded from: what a repository holds, a search, and a part of a file.

It wraps huggingface_hub: its session, addresses, token and errors. Its own download is not used, because the pinned
version throws an unfinished file away when it is interrupted: what comes from here is a stream, and
pyrun.models.download keeps what arrived. Plain HTTP is enough; the hub serves its newer storage (xet) that way too.
HF_ENDPOINT, HF_TOKEN and HF_HUB_OFFLINE mean what they mean elsewhere.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

# This is read at the import below. Without it, the library asks the hub for a list of AI tools and looks for them here.
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")

import httpx2
from huggingface_hub import HfApi, constants, get_session, get_token, hf_hub_url
from huggingface_hub.errors import (
    DisabledRepoError,
    GatedRepoError,
    HfHubHTTPError,
    OfflineModeIsEnabled,
    RemoteEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils import build_hf_headers, hf_raise_for_status  # type: ignore[attr-defined]
from huggingface_hub.utils import logging as hub_logging

from pyrun.errors import UserError
from pyrun.home import version

REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9_][\w.-]*", re.ASCII)
SEARCH_THREADS = 4
WRONG_TOKEN = "Invalid credentials in Authorization header"
AGAIN = "try again later; what has arrived is kept, and the same command goes on there"


class HubTrouble(UserError):
    """The network or the hub fails for the moment: the same request may work later."""

    def __init__(self, message: str, hint: str = AGAIN, *, retry_after: float | None = None) -> None:
        super().__init__(message, hint)
        self.retry_after = retry_after


@dataclass(frozen=True)
class RemoteFile:
    path: str  # it is that in the repository, with /
    size: int
    sha256: str | None  # files in large-file storage have it, and GGUF files nearly always are there
    git_oid: str | None  # the others have it: sha1 with git's header


@dataclass(frozen=True)
class Repository:
    id: str
    commit: str
    files: tuple[RemoteFile, ...]
    is_gated: bool
    downloads: int


@dataclass(frozen=True)
class Stream:
    """A file's bytes from `start` on: not the asked one, where something on the way does not know ranges."""

    start: int
    chunks: Iterator[bytes]


class Hub:
    def __init__(self) -> None:
        # Where it is set to nothing, it means the public hub, as if it were not set.
        self.endpoint = (os.environ.get("HF_ENDPOINT") or constants.HUGGINGFACE_CO_URL_HOME).rstrip("/")
        if not os.environ.get("HF_HUB_VERBOSITY") and not constants.HF_DEBUG:
            hub_logging.set_verbosity_error()  # type: ignore[no-untyped-call]  # what matters is said by us, once
        self._api = HfApi(endpoint=self.endpoint, library_name="llama-run", library_version=version())

        if not (get_token() or "").isascii():
            raise UserError("your token has letters that no token has", "set HF_TOKEN to the token itself, or unset it")

    def url(self, repository: str) -> str:
        return f"{self.endpoint}/{repository}"

    def repository(self, repository: str) -> Repository:
        with self._explained(repository), self._understood():
            info = self._api.model_info(repository, files_metadata=True, timeout=constants.HF_HUB_ETAG_TIMEOUT)
            files = [_remote_file(sibling) for sibling in info.siblings or []]
            return Repository(
                id=info.id if REPOSITORY.fullmatch(info.id) else repository,
                commit=info.sha or constants.DEFAULT_REVISION,
                files=tuple(file for file in files if file is not None),
                is_gated=bool(info.gated),
                downloads=info.downloads or 0,
            )

    def search(self, words: str, limit: int) -> list[Repository]:
        """Finds repositories with GGUF files whose name has the words, most downloaded first, and their files' size."""
        params: dict[str, str | int] = {"search": words, "filter": "gguf", "sort": "downloads", "limit": limit}
        with self._explained(words), self._understood():
            response = get_session().get(
                f"{self.endpoint}/api/models",
                params=params,
                headers=self._headers(),
                timeout=constants.HF_HUB_ETAG_TIMEOUT,
            )
            hf_raise_for_status(response)
            names = [str(found["id"]) for found in response.json()[:limit]]
        # Sizes are told one repository at a time.
        with ThreadPoolExecutor(SEARCH_THREADS) as pool:
            found = list(pool.map(self._if_readable, filter(REPOSITORY.fullmatch, names)))
        return [repository for repository in found if repository is not None]

    def _if_readable(self, name: str) -> Repository | None:
        try:
            return self.repository(name)
        except HubTrouble:
            raise
        except UserError:
            return None  # it is gone or closed since the search

    @contextmanager
    def open(self, repository: Repository, file: RemoteFile, start: int, stop: int) -> Iterator[Stream]:
        """Streams bytes [start, stop) of the file for as long as the connection holds, and raises HubTrouble else."""
        url = hf_hub_url(repository.id, file.path, revision=repository.commit, endpoint=self.endpoint)
        headers = self._headers() | {"Accept-Encoding": "identity"}
        if start > 0 or stop < file.size:
            headers["Range"] = f"bytes={start}-{stop - 1}"
        with (
            self._explained(repository.id, file.path),
            get_session().stream("GET", url, headers=headers, timeout=constants.HF_HUB_DOWNLOAD_TIMEOUT) as response,
        ):
            if response.status_code >= 400:
                with self._understood():
                    hf_raise_for_status(response)
            begin = _check_length(response, file, start)
            yield Stream(begin, response.iter_bytes())  # not gathered: a larger chunk dies with the connection

    def _headers(self) -> dict[str, str]:
        headers: dict[str, str] = build_hf_headers(library_name="llama-run", library_version=version())
        return headers

    @contextmanager
    def _explained(self, subject: str, file: str | None = None) -> Iterator[None]:
        """Turns what the library raises into what a person can act on."""
        try:
            yield
        except OfflineModeIsEnabled as error:
            raise UserError(
                f"HF_HUB_OFFLINE is set: {file or subject} cannot be looked up or downloaded",
                "unset it, or serve what is in models/ (`llama-run --list-models`)",
            ) from error
        except HfHubHTTPError as error:
            raise self._refusal(error, subject, file) from error
        except httpx2.ConnectError as error:
            raise HubTrouble(
                f"cannot reach {self.endpoint}: {_reason(error)}",
                "check the network (and HF_ENDPOINT, HTTPS_PROXY, where you set them), then run the same command again",
            ) from error
        except httpx2.TimeoutException as error:
            raise HubTrouble(f"{self.endpoint} does not answer in time", AGAIN) from error
        except (httpx2.NetworkError, httpx2.ProtocolError) as error:
            raise HubTrouble(f"the connection was lost: {_reason(error)}") from error
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise UserError(
                f"{self.endpoint} cannot be used: {_reason(error)}", "check HF_ENDPOINT and the proxy's settings"
            ) from error

    @contextmanager
    def _understood(self) -> Iterator[None]:
        """Refuses an answer that is no JSON, or has other fields than a hub's."""
        try:
            yield
        except HfHubHTTPError:
            raise
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise UserError(
                f"{self.endpoint} does not answer like a model hub",
                "check HF_ENDPOINT; a network that wants a login first answers like this too",
            ) from error

    def _refusal(self, error: HfHubHTTPError, subject: str, file: str | None) -> UserError:
        status = error.response.status_code
        is_ours = urlsplit(str(error.response.url)).netloc == urlsplit(self.endpoint).netloc
        if isinstance(error, GatedRepoError):
            return self._gated(subject)
        if isinstance(error, DisabledRepoError):
            return UserError(f"the hub has disabled access to {subject}", "take another repository")
        if isinstance(error, RevisionNotFoundError | RemoteEntryNotFoundError):
            return UserError(f"{file or subject} is gone from the hub", "run again to see what is there now")
        # The library tells the two kinds of 401 apart only for the addresses of the public hub.
        is_token_wrong = status == 401 and error.response.headers.get("X-Error-Message") == WRONG_TOKEN
        is_closed = status == 401 and not is_token_wrong and REPOSITORY.fullmatch(subject) is not None
        if isinstance(error, RepositoryNotFoundError) or is_closed:
            return self._unknown(subject)
        tokens = f"{self.endpoint}/settings/tokens"
        if status == 401 and get_token():
            return UserError(
                "the hub refuses your token",
                f"make a new one at {tokens} and set HF_TOKEN to it, or unset HF_TOKEN",
            )
        if status == 401:
            return UserError("this hub wants a token", f"make one at {tokens} and set HF_TOKEN to it")
        if status == 403 and is_ours:
            return UserError(
                f"the hub does not let you read {subject}",
                f"check at {self.url(subject)} that you have access, and that the token in HF_TOKEN may read it",
            )
        if status == 429:
            seconds = _retry_after(error.response)
            wait = f"wait {seconds:.0f} s" if seconds else "wait some minutes"
            token = "" if get_token() else "; a token (HF_TOKEN) gives more"
            return HubTrouble(
                "the hub allows no more requests for now (HTTP 429)",
                f"{wait} and run again{token}",
                retry_after=seconds,
            )
        # An address in the store of files expires after a while; asking the hub again gives a new one.
        if status >= 500 or status == 408 or not is_ours:
            return HubTrouble(f"the hub has trouble (HTTP {status})", retry_after=_retry_after(error.response))
        return UserError(f"the hub refuses {file or subject} (HTTP {status})", f"look at {self.url(subject)}")

    def _gated(self, repository: str) -> UserError:
        terms = f"agree to its terms at {self.url(repository)}"
        if get_token():
            return UserError(f"{repository} is gated, and your token has no access to it", f"{terms}, then run again")
        return UserError(
            f"{repository} is gated: it is given only to people who agreed to its terms",
            f"{terms}, make a read token at {self.endpoint}/settings/tokens, and run again with HF_TOKEN=hf_... set",
        )

    def _unknown(self, repository: str) -> UserError:
        owner, _, name = repository.partition("/")
        search = f'search for it: llama-run --download "{re.sub(r"[-_]+", " ", name or owner)}"'
        if get_token():
            return UserError(f"there is no repository {repository} that your token may read", search)
        return UserError(
            f"there is no repository {repository}, or it is private",
            f"{search}; for a private one, set HF_TOKEN to a token from {self.endpoint}/settings/tokens",
        )


def _remote_file(sibling: Any) -> RemoteFile | None:
    """It is None for what has no size, or a name that must not become a path here."""
    path, lfs = str(sibling.rfilename), sibling.lfs
    size = lfs.size if lfs is not None else sibling.size
    parts = path.split("/")
    if size is None or not path.isprintable() or "\\" in path or any(part in ("", ".", "..") for part in parts):
        return None
    sha256 = _hex(lfs.sha256, 64) if lfs is not None else None
    return RemoteFile(path, int(size), sha256, _hex(sibling.blob_id, 40) if lfs is None else None)


def _hex(digest: object, length: int) -> str | None:
    """A checksum becomes a part of a file's name, so it has to be one."""
    return digest if isinstance(digest, str) and re.fullmatch(f"[0-9a-f]{{{length}}}", digest) else None


def _check_length(response: httpx2.Response, file: RemoteFile, start: int) -> int:
    """Finds where the answer begins, and refuses one that belongs to a file of another size."""
    ranged = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", response.headers.get("Content-Range", ""))
    length = response.headers.get("Content-Length")
    if response.status_code == 206 and ranged is not None:
        begin, total = int(ranged.group(1)), ranged.group(2)
    else:
        begin, total = 0, length if length is not None else "*"
    if begin not in (0, start):
        raise HubTrouble(f"asked for {file.path} from byte {start} on, the hub sent it from byte {begin} on")
    if total != "*" and int(total) != file.size:
        raise UserError(
            f"{file.path} should have {file.size:,} bytes, but the hub sends a file of {int(total):,}",
            "it may have been replaced a moment ago: run again; what answers may also be a proxy's page",
        )
    return begin


def _retry_after(response: httpx2.Response) -> float | None:
    value = response.headers.get("Retry-After", "")
    limit = re.search(r";\s*t=(\d+)", response.headers.get("RateLimit", ""))
    if value.isdigit():
        return float(value)
    return float(limit.group(1)) if limit else None


def _reason(error: Exception) -> str:
    return str(error).strip() or type(error).__name__
