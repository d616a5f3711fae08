"""The exact llama-server command for a set of settings. Pure: settings in, arguments out."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

CACHE_FLAG = "--cache-ssd"
CACHE_VARIABLE = "LLAMA_ARG_CACHE_SSD"  # llama-server's own
KEY_VARIABLE = "LLAMA_API_KEY"  # likewise
DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 9090


@dataclass(frozen=True)
class ServerSettings:
    binary: Path
    model: Path
    host: str = DEFAULT_HOST
    port: int = DEFAULT_PORT
    ctx: int | None = None
    cache: str | None = None  # the folder of the SSD cache; None: the flag is left out
    chat_template: Path | None = None  # where the model's own does not do
    web_page: Path | None = None  # a folder to serve at /, where upstream's page is not built in
    profile: tuple[str, ...] = ()  # flags that suit the model and the machine
    extra: tuple[str, ...] = ()  # what the user wrote behind `--`, as it is and last, so that it wins

    @property
    def url(self) -> str:
        """Where a client on this machine finds the server."""
        host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(self.host, self.host)
        return f"http://{host if ':' not in host or host.startswith('[') else f'[{host}]'}:{self.port}"


def server_command(settings: ServerSettings) -> list[str]:
    command = [str(settings.binary), "--model", str(settings.model)]
    command += ["--host", settings.host, "--port", str(settings.port), "--jinja"]
    if settings.ctx is not None:
        command += ["--ctx-size", str(settings.ctx)]
    if settings.cache is not None:
        command += [CACHE_FLAG, settings.cache]
    if settings.chat_template is not None:
        command += ["--chat-template-file", str(settings.chat_template)]
    if settings.web_page is not None:
        command += ["--path", str(settings.web_page)]
    return [*command, *settings.profile, *settings.extra]


def choose_cache(
    default: Path, chosen: Path | None, off: bool, extra: tuple[str, ...], environment: Mapping[str, str]
) -> str | None:
    """The folder for --cache-ssd, None to leave the flag out. What stands behind `--` wins, then our flags, then the
    server's own variable."""
    if _has_flag(extra, CACHE_FLAG):
        return None
    if chosen is not None:
        return str(chosen.absolute())
    named = environment.get(CACHE_VARIABLE)
    if off:
        return "" if named else None  # the variable would turn it on; an empty folder on the command line overrules it
    if named is not None:
        return named or None
    return str(default)


def has_api_key(extra: tuple[str, ...], environment: Mapping[str, str]) -> bool:
    return _has_flag(extra, "--api-key") or _has_flag(extra, "--api-key-file") or KEY_VARIABLE in environment


def api_key(extra: tuple[str, ...], environment: Mapping[str, str]) -> str | None:
    """One that the server will take, for our own questions to it."""
    given = _value(extra, "--api-key") or environment.get(KEY_VARIABLE, "")
    keys = given.split(",")
    if not given and (file := _value(extra, "--api-key-file")):
        try:
            keys = Path(file).read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError):
            return None  # the server says it better
    return next((key for key in keys if key), None)


def _has_flag(extra: tuple[str, ...], flag: str) -> bool:
    return any(_spelled(word) == flag for word in extra)


def _value(extra: tuple[str, ...], flag: str) -> str | None:
    """As the server reads it: the last one counts."""
    found = [value for word, value in itertools.pairwise(extra) if _spelled(word) == flag]
    return found[-1] if found else None


def _spelled(word: str) -> str:
    """llama-server takes --cache_ssd for --cache-ssd."""
    return word.replace("_", "-") if word.startswith("--") else word


def is_loopback(host: str) -> bool:
    return host in ("localhost", "::1") or host.startswith("127.") or host.endswith(".sock")
