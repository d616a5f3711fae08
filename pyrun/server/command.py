"""The exact llama-server command for a set of settings. Pure: settings in, arguments out."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 9090


@dataclass(frozen=True)
class ServerSettings:
    binary: Path
    model: Path
    host: str = DEFAULT_HOST
    port: int = DEFAULT_PORT
    ctx: int | None = None
    chat_template: Path | None = None  # where the model's own does not do
    web_page: Path | None = None  # a folder to serve at /, where upstream's page is not built in
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
    if settings.chat_template is not None:
        command += ["--chat-template-file", str(settings.chat_template)]
    if settings.web_page is not None:
        command += ["--path", str(settings.web_page)]
    return [*command, *settings.extra]


def has_api_key(extra: tuple[str, ...], environment: dict[str, str]) -> bool:
    given = any(word.split("=")[0] in ("--api-key", "--api-key-file") for word in extra)
    return given or "LLAMA_API_KEY" in environment


def is_loopback(host: str) -> bool:
    return host in ("localhost", "::1") or host.startswith("127.") or host.endswith(".sock")
