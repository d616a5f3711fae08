"""How llama-server starts the tool server: the file for its `--mcp-servers-config`."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pyrun.errors import UserError
from pyrun.launch import llama_run_command
from pyrun.server.address import Address
from pyrun.server.ask import ask
from pyrun.server.words import has_flag

NAME = "llama-run"
# Upstream gives up on a call after 30 s unless told otherwise; our own limits come first.
TIMEOUT_MS = 660_000
# Flags that let pages of other sites in, each with llama-server's own variable for it.
OPENING = {"--cors-origins": "LLAMA_ARG_CORS_ORIGINS", "--allowed-host": "LLAMA_ARG_ALLOWED_HOST"}


def check_local(address: Address, extra: Sequence[str], environment: Mapping[str, str] = os.environ) -> None:
    """Whoever reaches the server can call its tools, so nobody but this machine's own programs and pages may."""
    if address.open_hosts:
        raise UserError(
            f"--with-tools does not go with {', '.join(address.open_hosts)}: other machines could use the tools",
            "leave --host out, or let clients there start `llama-run tools` themselves",
        )
    for flag, variable in OPENING.items():
        for name, is_given in ((flag, has_flag(extra, flag)), (variable, variable in environment)):
            if is_given:
                raise UserError(
                    f"--with-tools does not go with {name}: pages of other sites could use the tools", "leave it out"
                )


def lacks_tools(url: str, key: str | None) -> bool:
    """Whether a server that was started with the file says that it has none of our tools: it asks for their list once,
    when it starts, and goes on without them after 10 seconds."""
    try:
        tools = ask(url, "/tools", key, verify=False)
    except UserError:
        return False
    return not any(str(tool["tool"]).startswith(f"{NAME}_") for tool in tools)


def tool_server(root: Path, protect: Sequence[Path] = ()) -> dict[str, Any]:
    """An entry of `mcpServers`. Everything else is in llama-run.toml, which the tool server reads itself. `protect` is
    what the flags of this server name, which that does not know."""
    command, *arguments = llama_run_command()
    kept = [word for folder in protect for word in ("--protect", str(folder))]
    return {
        "command": command,
        "args": [*arguments, "tools", "--root", str(root), *kept],
        "timeout_ms": TIMEOUT_MS,
    }


def write_config(path: Path, root: Path, protect: Sequence[Path] = ()) -> None:
    """It decides what is run, so it is its owner's alone."""
    unfinished = path.with_suffix(f".{os.getpid()}")
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            json.dump({"mcpServers": {NAME: tool_server(root, protect)}}, file, indent=2)
        unfinished.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            unfinished.unlink()
        raise UserError(f"cannot write {path}: {error.strerror}", "check the disk, and who owns the folder") from error
