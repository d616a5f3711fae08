"""Writes the systemd user unit. It is pure: where things are in, text out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from pyrun.server.stop import LONGEST_SECONDS, QUIET_SECONDS

NAME = "llama-run.service"
MARK = "# Written by `llama-run service install`; `llama-run service remove` takes it away."
# Graphics cards stay usable, and drivers may make code at run time: neither PrivateDevices nor ProtectClock, which
# closes all devices but clocks, nor MemoryDenyWriteExecute is among them. Nor is what drops capabilities
# (CapabilityBoundingSet, ProtectKernelModules, ProtectKernelLogs): an ordinary user has none, and the user's manager
# may not drop them, so that nothing would start (218/CAPABILITIES). The cache asks the kernel by mincore what of a file
# is in memory. Any other call that is not allowed fails instead of ending the server: drivers have ways without it.
SANDBOX = (
    "NoNewPrivileges=yes",
    "ProtectSystem=strict",
    "PrivateTmp=yes",
    "ProtectKernelTunables=yes",
    "ProtectControlGroups=yes",
    "ProtectHostname=yes",
    "RestrictSUIDSGID=yes",
    "RestrictRealtime=yes",
    "RestrictNamespaces=yes",
    "LockPersonality=yes",
    "SystemCallArchitectures=native",
    "SystemCallFilter=@system-service mincore",
    "SystemCallErrorNumber=EPERM",
    "RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX AF_NETLINK",
    "UMask=0077",
)


def unit(program: Sequence[str], writable: Sequence[Path], environment: Mapping[str, str]) -> str:
    """`program` starts a server in the foreground; `writable` are the only folders that it may write to."""
    lines = [
        MARK,
        "[Unit]",
        "Description=llama-run, a local LLM server",
        "StartLimitIntervalSec=300",
        "StartLimitBurst=5",
        "",
        "[Service]",
        "Type=exec",
        f"ExecStart={' '.join(quoted(word, argument=n > 0) for n, word in enumerate(program))}",
        *(f"Environment={quoted(f'{name}={value}')}" for name, value in sorted(environment.items())),
        # The launcher starts a server again that crashed. Its own end is worth another try, but not a wrong setting.
        "Restart=on-failure",
        "RestartSec=5",
        "RestartPreventExitStatus=1 2",
        # State is saved at the end: the launcher decides how long that may take, and tells the server itself.
        "KillMode=mixed",
        f"TimeoutStopSec={LONGEST_SECONDS + QUIET_SECONDS:.0f}",
        *SANDBOX,
        *(f"ReadWritePaths={quoted(f'-{path}')}" for path in writable),
        "ReadWritePaths=-%C",  # compilers and drivers keep what they made there
        "",
        "[Install]",
        "WantedBy=default.target",
    ]
    return "\n".join(lines) + "\n"


def quoted(text: str, *, argument: bool = False) -> str:
    """As systemd reads it: in quotes, with nothing that it would replace: `$` means something in arguments only."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{escaped.replace("$", "$$") if argument else escaped}"'
