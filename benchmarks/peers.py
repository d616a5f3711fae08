"""Starts what is measured, asks it over HTTP as a client asks, and stops it, politely or not.

`Server` is one llama-server with its flags, `SlotServer` one whose state is saved and restored by hand, and `Remote`
anything that speaks OpenAI's protocol at a URL and is not ours to start or stop.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import psutil
import requests

from pyrun.errors import UserError
from pyrun.server.address import Address
from pyrun.server.command import ServerSettings, server_command
from pyrun.server.supervisor import end_with_parent

Message = dict[str, str]

STOP_SECONDS = 120
SAVE_SECONDS = 600  # a state has at least so long to be written or read back
# Turns follow each other without a pause here. Every one is kept, so that no clock decides what is found again.
AT_ONCE = ("--cache-ssd-settle", "0")
READ_AHEAD = "--cache-ssd-read-ahead"
SLOW_BYTES_PER_S = 20e6  # a slower disk is not worth a cache
WARM_UP = "Count from one to ten, slowly, and say nothing else. " * 4
SHOWN_LINES = 8


class PeerError(UserError):
    """A peer that does not start, ended by itself, or does not answer."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class Answer:
    text: str
    timings: dict[str, Any]
    ttft_ms: float
    total_ms: float
    usage: dict[str, Any] = field(default_factory=dict)

    @property
    def reused(self) -> int:
        cached = (self.usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
        return int(self.timings.get("cache_n", cached))

    @property
    def evaluated(self) -> int:
        return int(self.timings.get("prompt_n", self.usage.get("prompt_tokens", 0) - self.reused))

    @property
    def n_prompt(self) -> int:
        return self.reused + self.evaluated

    @property
    def n_answer(self) -> int:
        return int(self.timings.get("predicted_n", self.usage.get("completion_tokens", 0)))

    @property
    def source(self) -> str:
        return str(self.timings.get("cache_source", "slot" if self.reused else "none"))

    @property
    def miss(self) -> str | None:
        """Says why tokens were evaluated, if the server does."""
        return (self.timings.get("cache_miss") or {}).get("reason")


class Pace:
    """How fast a server is, as far as measured; from it follows for how long an answer may keep a client waiting."""

    SLACK = 6.0  # a neighbour on the machine may slow it down
    QUIET_SECONDS = 60.0
    clients = 1  # so many ask at once, and wait for each other

    def __init__(self) -> None:
        self.prefill = 10.0  # tokens/s: nothing that anyone would use is slower
        self.decode = 0.5

    def learn(self, answer: Answer) -> None:
        if answer.timings.get("prompt_n", 0) >= 32:
            self.prefill = float(answer.timings["prompt_per_second"])
        if answer.timings.get("predicted_n", 0) >= 4:
            self.decode = float(answer.timings["predicted_per_second"])

    def patience(self, n_prompt: float) -> float:
        """So many seconds may pass between two signs of life, of which the first comes when the prompt is evaluated."""
        return self.QUIET_SECONDS + self.SLACK * self.clients * (n_prompt / self.prefill + 1 / self.decode)


class Peer(Protocol):
    """What a scenario needs to know of a peer."""

    name: str
    can_restart: bool
    manual: bool  # its state has to be kept and brought back by hand
    pace: Pace

    @property
    def has_cache(self) -> bool: ...  # it says at /cache what it reads and writes
    def start(self) -> None: ...
    def stop(self, how: signal.Signals = signal.SIGTERM) -> None: ...
    def chat(self, messages: Sequence[Message], max_tokens: int, **extra: object) -> Answer: ...
    def warm_up(self) -> None: ...
    def keep(self, conversation: str) -> int:
        """Saves the state by hand where that is needed; gives the bytes written."""
        ...

    def bring_back(self, conversation: str) -> float:
        """Restores it by hand where that is needed; gives the milliseconds it took."""
        ...


class _Client:
    """Asks a server, and says what went wrong with that."""

    name: str

    def __init__(self) -> None:
        self.pace = Pace()

    @property
    def url(self) -> str:
        raise NotImplementedError

    def headers(self) -> dict[str, str]:
        return {}

    def why(self, error: Exception) -> PeerError:
        return PeerError(f"{self.name} does not answer: {_short(error)}", f"is {self.url} the right address?")

    def post(self, path: str, body: object, seconds: float = 600) -> dict[str, Any]:
        return self._call("POST", path, body, seconds)

    def get(self, path: str) -> dict[str, Any]:
        return self._call("GET", path, None, 60)

    def _call(self, method: str, path: str, body: object, seconds: float) -> dict[str, Any]:
        try:
            answer = requests.request(method, self.url + path, json=body, headers=self.headers(), timeout=seconds)
            answer.raise_for_status()
            result: dict[str, Any] = answer.json()
        except (requests.RequestException, ValueError) as error:
            raise self.why(error) from error
        return result

    def _stream(self, path: str, body: dict[str, Any], n_prompt: float) -> Answer:
        """The time to the first token is what the client sees."""
        began = time.perf_counter()
        try:
            with requests.post(
                self.url + path,
                json=body,
                stream=True,
                headers=self.headers(),
                timeout=(30, self.pace.patience(n_prompt)),
            ) as response:
                if response.status_code >= 400:
                    raise PeerError(f"{self.name} answers {response.status_code}: {response.text[:300]}")
                answer = _read_stream(response, began)
        except (requests.RequestException, ValueError) as error:
            raise self.why(error) from error
        self.pace.learn(answer)
        return answer


def _read_stream(response: requests.Response, began: float) -> Answer:
    first = 0.0
    text = ""
    timings: dict[str, Any] = {}
    usage: dict[str, Any] = {}
    finished = False
    for line in response.iter_lines():
        if line == b"data: [DONE]":
            finished = True
        if not line.startswith(b"data: ") or line == b"data: [DONE]":
            continue
        event = json.loads(line[len(b"data: ") :])
        if "error" in event:
            raise requests.RequestException(f"the stream ended with an error: {event['error']}")
        piece = event.get("content", "")
        if event.get("choices"):
            delta = event["choices"][0].get("delta", {})
            piece = delta.get("content") or delta.get("reasoning_content") or delta.get("reasoning") or ""
        if piece and not first:
            first = time.perf_counter()
        text += piece
        timings = event.get("timings", timings)
        usage = event.get("usage") or usage
        finished = finished or bool(event.get("stop"))
    ended = time.perf_counter()
    if not finished:
        raise requests.RequestException("the stream ended before the answer did")
    return Answer(text, timings, ((first or ended) - began) * 1000, (ended - began) * 1000, usage)


@dataclass
class Server(_Client):
    """One llama-server with its flags. It is started, stopped and killed as often as the scenario says."""

    name: str
    program: Path
    model: Path
    flags: Sequence[str]
    log: Path
    port: int = 0  # 0 stands for any that is free
    environment: dict[str, str] = field(default_factory=dict)
    cache: Path | None = None  # the folder of the SSD cache
    reads_ahead: bool = False  # after the start, what was used last
    settles: bool = False  # as it does by default, before it writes
    chat_template: Path | None = None
    process: subprocess.Popen[bytes] | None = None
    can_restart: bool = True
    manual: bool = False

    def __post_init__(self) -> None:
        super().__init__()
        self.port = self.port or free_port()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def has_cache(self) -> bool:
        return self.cache is not None

    @property
    def command(self) -> list[str]:
        settings = ServerSettings(
            binary=self.program,
            model=self.model,
            address=Address(port=self.port),
            cache=str(self.cache) if self.cache else None,
            chat_template=self.chat_template,
            extra=(*self._cache_flags(), *self.flags),
        )
        return server_command(settings)

    def _cache_flags(self) -> tuple[str, ...]:
        if self.cache is None:
            return ()
        return (*(() if self.settles else AT_ONCE), READ_AHEAD, "on" if self.reads_ahead else "off")

    def start(self) -> None:
        if not self.model.is_file():
            raise PeerError(f"there is no model {self.model}", "the command takes the path of a GGUF file")
        self.log.parent.mkdir(parents=True, exist_ok=True)
        try:
            with self.log.open("ab") as log:
                log.write(f"$ {' '.join(self.command)}\n".encode())
                log.flush()
                self.process = subprocess.Popen(
                    self.command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    env={**os.environ, **self.environment},
                    # Ctrl-C is for the benchmark, which then stops its servers in order.
                    start_new_session=True,
                    preexec_fn=end_with_parent(os.getpid()),
                )
        except OSError as error:
            raise PeerError(f"cannot start {self.program}: {error.strerror or error}", "is it built?") from error
        self._wait_until_healthy()

    def _wait_until_healthy(self) -> None:
        # A model that is not in RAM yet has to be read: 50 MB/s is a slow disk.
        seconds = 120 + self.model.stat().st_size / 50e6
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if not self.is_running():
                raise self._ended("while it started")
            try:
                if requests.get(f"{self.url}/health", timeout=2).status_code == 200:
                    return
            except requests.RequestException:
                pass
            time.sleep(0.05)
        self.stop(signal.SIGKILL)
        raise PeerError(f"{self.name} did not start within {seconds:.0f} s", f"its log is {self.log}")

    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        """Waits for it to save what it has."""
        if self.process is None or not self.is_running():
            return
        self.process.send_signal(how)
        try:
            self.process.wait(STOP_SECONDS + self.saving_seconds())
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    @property
    def stored_in(self) -> Path | None:
        return self.cache

    def saving_seconds(self) -> float:
        """A slow disk takes so long for all that is stored, and for what may still wait in RAM to be."""
        try:
            in_ram = psutil.Process(self.process.pid).memory_info().rss if self.process else 0
        except psutil.Error:
            in_ram = 0
        return (in_ram + _bytes_in(self.stored_in)) / SLOW_BYTES_PER_S

    def save_all(self) -> dict[str, Any]:
        """Returns when everything is on disk."""
        return self.post("/cache/flush", {}, SAVE_SECONDS + self.saving_seconds())

    def why(self, error: Exception) -> PeerError:
        if self.process is not None:
            try:  # a server that dies takes its connections along a moment before it is gone
                self.process.wait(2)
            except subprocess.TimeoutExpired:
                return PeerError(f"{self.name} does not answer: {_short(error)}", f"its log is {self.log}")
        return self._ended("in the middle of a request")

    def _ended(self, when: str) -> PeerError:
        code = self.process.returncode if self.process else 0
        how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        tail = ""
        if code >= 0:  # it has said why
            lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
            tail = ":\n" + "\n".join("  " + line for line in lines[-SHOWN_LINES:])
        return PeerError(f"{self.name} ended {when} ({how}){tail}", f"its log is {self.log}")

    def keep(self, conversation: str) -> int:
        return 0

    def bring_back(self, conversation: str) -> float:
        return 0.0

    def tokens(self, messages: Sequence[Message]) -> list[int]:
        prompt = self.post("/apply-template", {"messages": list(messages)})["prompt"]
        body = {"content": prompt, "add_special": True, "parse_special": True}
        tokens: list[int] = self.post("/tokenize", body)["tokens"]
        return tokens

    def chat(self, messages: Sequence[Message], max_tokens: int, **extra: object) -> Answer:
        body = {"messages": list(messages), "max_tokens": max_tokens, "temperature": 0, "stream": True, **extra}
        return self._stream("/v1/chat/completions", body, _guess_tokens(messages))

    def complete(self, prompt: str | list[int], max_tokens: int, **extra: object) -> Answer:
        body = {"prompt": prompt, "n_predict": max_tokens, "temperature": 0, "stream": True, **extra}
        return self._stream("/completion", body, len(prompt))

    def warm_up(self) -> None:
        """A short answer makes the process ready, and tells how fast it is.

        Nothing of it is stored, and no prompt begins with what it leaves in the slot, not even with a template's words.
        """
        self.complete(WARM_UP, 8, cache_prompt=False, ignore_eos=True)


@dataclass
class SlotServer(Server):
    """Upstream as a patient user runs it: the slot is saved after every answer, and restored before the next one."""

    slots: Path = field(default_factory=Path)
    manual: bool = True

    @property
    def command(self) -> list[str]:
        self.slots.mkdir(parents=True, exist_ok=True)
        return [*super().command, "--slot-save-path", str(self.slots)]

    @property
    def stored_in(self) -> Path | None:
        return self.slots

    def keep(self, conversation: str) -> int:
        return int(self._slot("save", conversation, SAVE_SECONDS + self.saving_seconds())["n_written"])

    def bring_back(self, conversation: str) -> float:
        if not (self.slots / f"{conversation}.bin").exists():
            return 0.0
        seconds = SAVE_SECONDS + self.saving_seconds()
        began = time.perf_counter()
        self._slot("restore", conversation, seconds)
        return (time.perf_counter() - began) * 1000

    def _slot(self, action: str, conversation: str, seconds: float) -> dict[str, Any]:
        return self.post(f"/slots/0?action={action}", {"filename": f"{conversation}.bin"}, seconds)


@dataclass
class Remote(_Client):
    """Any server that speaks OpenAI's protocol. It is somebody else's: never restarted, its cache never emptied."""

    name: str
    address: str  # with or without /v1
    model_name: str = ""
    key: str = ""
    can_restart: bool = False
    has_cache: bool = False
    manual: bool = False

    def __post_init__(self) -> None:
        super().__init__()
        self.address = self.address.rstrip("/").removesuffix("/v1")
        self.key = self.key or os.environ.get("OPENAI_API_KEY", "")

    @property
    def url(self) -> str:
        return self.address

    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.key}"} if self.key else {}

    def start(self) -> None:
        """Only looks whether the server is there, and takes the first model that it offers."""
        models = self.get("/v1/models").get("data", [])
        if not self.model_name and models:
            self.model_name = str(models[0]["id"])

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        pass

    def keep(self, conversation: str) -> int:
        return 0

    def bring_back(self, conversation: str) -> float:
        return 0.0

    def chat(self, messages: Sequence[Message], max_tokens: int, **extra: object) -> Answer:
        """The request has none of llama-server's own fields, because others may refuse them."""
        body = {
            "model": self.model_name,
            "messages": list(messages),
            "max_tokens": max_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        return self._stream("/v1/chat/completions", body, _guess_tokens(messages))

    def warm_up(self) -> None:
        self.chat([{"role": "user", "content": WARM_UP}], 8)


def _guess_tokens(messages: Sequence[Message]) -> float:
    return sum(len(message["content"]) for message in messages) / 2  # few tokenizers make more of a text


def _bytes_in(folder: Path | None) -> int:
    """Counts what is in a folder. A server may be at work in it, so that files may go away meanwhile."""
    total = 0
    for place, _, names in os.walk(folder) if folder is not None else ():
        for name in names:
            with contextlib.suppress(OSError):
                total += (Path(place) / name).stat().st_size
    return total


def _short(error: Exception) -> str:
    text = str(error)
    return f"{type(error).__name__}: {text[:200]}" if text else type(error).__name__
