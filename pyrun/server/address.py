"""Says where the server will be found, and with which key: what stands behind `--` wins, then our flags, then the
server's own variables. It is pure, but for reading a file of keys."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pyrun.errors import UserError
from pyrun.server.words import value_of

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 9090
# These are llama-server's own variables.
HOST_VARIABLE, PORT_VARIABLE, PREFIX_VARIABLE = "LLAMA_ARG_HOST", "LLAMA_ARG_PORT", "LLAMA_ARG_API_PREFIX"
KEY_VARIABLE, KEY_FILE_VARIABLE = "LLAMA_API_KEY", "LLAMA_ARG_API_KEY_FILE"
CERTIFICATE_VARIABLES = ("LLAMA_ARG_SSL_KEY_FILE", "LLAMA_ARG_SSL_CERT_FILE")
# A client cannot connect to "all addresses".
ANY = {"0.0.0.0": "127.0.0.1", "::": "::1"}


@dataclass(frozen=True)
class Address:
    host: str = DEFAULT_HOST  # llama-server takes one, or several with commas between
    port: int = DEFAULT_PORT
    prefix: str = ""
    is_encrypted: bool = False

    @property
    def hosts(self) -> list[str]:
        return [host.strip() for host in self.host.split(",") if host.strip()]

    @property
    def url(self) -> str:
        """A client on this machine finds the server there."""
        first = next(host for host in self.hosts if not _is_socket(host))
        host = ANY.get(first, first)
        bracketed = f"[{host}]" if ":" in host and not host.startswith("[") else host
        return f"{'https' if self.is_encrypted else 'http'}://{bracketed}:{self.port}{self.prefix}"

    @property
    def words(self) -> list[str]:
        """Behind `--`, they have a server listen there whatever else says otherwise."""
        return ["--host", self.host, "--port", str(self.port)]

    @property
    def open_hosts(self) -> list[str]:
        """Other machines may reach these."""
        return [host for host in self.hosts if not is_loopback(host)]


def choose_address(host: str | None, port: int | None, extra: Sequence[str], environment: Mapping[str, str]) -> Address:
    """`host` and `port` are our own flags. What the launcher could not watch raises UserError."""
    named = str(port) if port is not None else environment.get(PORT_VARIABLE)
    prefix = value_of(extra, "--api-prefix")
    address = Address(
        value_of(extra, "--host") or host or environment.get(HOST_VARIABLE) or DEFAULT_HOST,
        _port(value_of(extra, "--port") or named or str(DEFAULT_PORT)),
        environment.get(PREFIX_VARIABLE, "") if prefix is None else prefix,  # an empty one takes the variable's away
        _is_encrypted(extra, environment),
    )
    if all(_is_socket(one) for one in address.hosts):
        raise UserError(
            f"llama-run asks its server by TCP, and {address.host!r} has no address for that",
            f"add one: --host {','.join([DEFAULT_HOST, *address.hosts])}",
        )
    return address


def _port(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 65535:
        raise UserError(f"{text!r} is not a port that a server can be found at", "give a number from 1 to 65535")
    return int(text)


def _is_encrypted(extra: Sequence[str], environment: Mapping[str, str]) -> bool:
    key, certificate = (environment.get(name) for name in CERTIFICATE_VARIABLES)
    return bool((value_of(extra, "--ssl-key-file") or key) and (value_of(extra, "--ssl-cert-file") or certificate))


def is_loopback(host: str) -> bool:
    """Says whether only this machine finds a server there."""
    name = host.lower().removeprefix("[").removesuffix("]")
    return name in ("localhost", "::1") or name.startswith("127.") or _is_socket(host)


def _is_socket(host: str) -> bool:
    return host.endswith(".sock")


@dataclass(frozen=True)
class Key:
    """One that the server will take, which our own questions to it need."""

    value: str
    in_shell: str  # a command line gives it so, within double quotes: one that is kept elsewhere is not shown
    is_shown: bool = False  # `in_shell` shows it


def find_key(extra: Sequence[str], environment: Mapping[str, str]) -> Key | None:
    """The server takes those of all places; None where there is none, and anybody may ask."""
    if key := _first((value_of(extra, "--api-key") or "").split(",")):
        return Key(key, re.sub(r'([\\"$`])', r"\\\1", key), is_shown=True)
    given = environment.get(KEY_VARIABLE, "")
    if key := _first(given.split(",")):
        # A list is cut at its first comma by the shell.
        return Key(key, f"${{{KEY_VARIABLE}%%,*}}" if given != key else f"${KEY_VARIABLE}")
    file = value_of(extra, "--api-key-file") or environment.get(KEY_FILE_VARIABLE)
    if file and (key := _first(_lines(Path(file)))):
        return Key(key, f"$(grep -m1 '^[^#]' {shlex.quote(file)})")
    return None


def key_of(environment: Mapping[str, str]) -> str | None:
    """The key for a server that runs already, somewhere: of several, it takes any."""
    key = find_key((), environment)
    return key.value if key else None


def _first(keys: Sequence[str]) -> str | None:
    return next((key for key in keys if key), None)


def _lines(file: Path) -> list[str]:
    """Leaves out comments, as llama-server does."""
    try:
        return [line for line in file.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    except (OSError, UnicodeDecodeError):
        return []  # the server says it better
