"""execute_command: one shell command, with a time limit, a limit on its output, and an end for all that it started."""

from __future__ import annotations

import os
import re
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from pyrun.tools.root import Root
from pyrun.tools.tool import Call, Tool, ToolError, number, text

DEFAULT_SECONDS = 60
MAX_SECONDS = 600
KEPT_BYTES = 64_000  # of the output's beginning, and as many of its end
MAX_OUTPUT_BYTES = 50_000_000  # whoever writes more is ended
KEEPER = Path(__file__).with_name("keeper.py")
KEEPER_SECONDS = 10  # in which the keeper has ended everything
SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSW|CREDENTIAL|COOKIE", re.IGNORECASE)


class CommandTool:
    def __init__(self, root: Root) -> None:
        self.root = root

    def tools(self) -> list[Tool]:
        return [
            Tool(
                "execute_command",
                "Run a shell command in the root folder. It reads no input; what it starts ends with it.",
                {
                    "command": text("The command, as for sh -c."),
                    "timeout": number(f"Seconds until it is ended ({DEFAULT_SECONDS} if left out).", 1, MAX_SECONDS),
                },
                self.execute,
                ("command",),
                changes=True,
                subject="command",
                settle=_settled,
            )
        ]

    def execute(self, call: Call) -> str:
        output = Output()
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(KEEPER), call.text("command").encode("utf-8", "replace")],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=self.root.folder,
            env=harmless(os.environ),
            start_new_session=True,
        )
        try:
            why = _follow(process, output, call, time.monotonic() + call.number("timeout", DEFAULT_SECONDS))
        finally:
            _end(process)
        return f"[{why or f'exit code {process.returncode}'}]\n{output.text()}"


def _settled(command: str) -> str:
    """The command, if there is something to run."""
    if not command.strip():
        raise ToolError("the command is empty")
    if "\0" in command:
        raise ToolError("a command has no NUL in it")
    return command


class Output:
    """The beginning and the end of what is written."""

    def __init__(self) -> None:
        self.n_bytes = 0
        self._head = bytearray()
        self._tail = bytearray()

    def add(self, data: bytes) -> None:
        self.n_bytes += len(data)
        room = KEPT_BYTES - len(self._head)
        self._head += data[:room]
        self._tail += data[room:] if room < len(data) else b""
        del self._tail[:-KEPT_BYTES]

    def text(self) -> str:
        cut = self.n_bytes - len(self._head) - len(self._tail)
        if not cut:  # a character may have begun in one of them and ended in the other
            return (self._head + self._tail).decode("utf-8", "replace")
        return f"{self._head.decode('utf-8', 'replace')}\n[cut: {cut:,} bytes]\n{self._tail.decode('utf-8', 'replace')}"


def harmless(environment: Mapping[str, str]) -> dict[str, str]:
    """Without what opens other doors."""
    return {name: value for name, value in environment.items() if not SECRET.search(name)}


def _follow(process: subprocess.Popen[bytes], output: Output, call: Call, deadline: float) -> str | None:
    """Reads until the command ends; why it has to be ended, if it does not."""
    assert process.stdout is not None
    with selectors.DefaultSelector() as ready:
        ready.register(process.stdout, selectors.EVENT_READ)
        while True:
            if call.stopped.is_set():
                return "ended, because the call was cancelled"
            if time.monotonic() > deadline:
                return "ended, because its time was over"
            if ready.select(0.1):
                data = os.read(process.stdout.fileno(), 1 << 16)
                if not data:
                    return None
                output.add(data)
                if output.n_bytes > MAX_OUTPUT_BYTES:
                    return f"ended, because it wrote more than {MAX_OUTPUT_BYTES:,} bytes"


def _end(process: subprocess.Popen[bytes]) -> None:
    """The keeper ends what it keeps; it is given the time for that."""
    assert process.stdout is not None
    process.stdout.close()
    with suppress(subprocess.TimeoutExpired):
        process.wait(0.05)
    if process.returncode is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(KEEPER_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    if process.returncode < 0:  # a command can kill its keeper
        _kill_session(process.pid)


def _kill_session(leader: int) -> None:
    """What a killed keeper left behind, in rounds: who is killed may just have forked."""
    deadline = time.monotonic() + KEEPER_SECONDS
    while (left := _members(leader)) and time.monotonic() < deadline:
        for pid in left:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.005)


def _members(leader: int) -> list[int]:
    """Of the leader's session, in /proc, without those that nobody has waited for yet."""
    found = []
    for file in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, _, _, session = file.read_bytes().rpartition(b")")[2].split()[:4]
            if int(session) == leader and state != b"Z":
                found.append(int(file.parent.name))
    return found
