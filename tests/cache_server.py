"""llama-server with the SSD cache, started directly so that signals reach it, and what its answers say."""

from __future__ import annotations

import contextlib
import math
import os
import re
import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
import requests
from backend import BINARY, PATIENCE, WORKERS, require_backend, server_environment
from helpers import ROOT, free_port, wait_until
from worker_fixtures import WorkerProcess, rpc_flags, start_workers

import toys
from pyrun.home import Home
from pyrun.models.default import ensure_default_model

Tokens = list[int]
Messages = list[dict[str, str]]

TABLE: pytest.StashKey[list[str]] = pytest.StashKey()


def toy(name: str) -> Path:
    return toys.ensure(name, ROOT / ".cache" / "toys")


def smollm2() -> Path:
    return ensure_default_model(Home(ROOT))


def routes() -> list[tuple[str, str]]:
    """All that the server has, from the calls that register them."""
    found = []
    folders = ROOT / "llama.cpp" / "source" / "tools" / "server", ROOT / "kernels" / "server"
    for source in [folders[0] / "server.cpp", *folders[1].rglob("*routes.cpp")]:
        for method, path in re.findall(r'http\.(get|post|del) ?\("(/[^"]*)"', source.read_text()):
            found.append(({"del": "DELETE"}.get(method, method.upper()), re.sub(r":\w+", "0", path)))
    assert len(found) > 50, found
    return found


def say(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


@dataclass(frozen=True)
class Answer:
    """What came back: text, tokens with the log-probabilities of the likeliest, and what the cache did."""

    text: str
    tokens: tuple[int, ...]
    logprobs: tuple[tuple[tuple[int, float], ...], ...]
    timings: dict[str, Any]

    @property
    def reused(self) -> int:
        return int(self.timings["cache_n"])

    @property
    def prompt_size(self) -> int:
        return self.reused + int(self.timings["prompt_n"])

    @property
    def source(self) -> str:
        return str(self.timings["cache_source"])

    @property
    def miss(self) -> str | None:
        """Why tokens were evaluated."""
        reason = self.timings.get("cache_miss", {}).get("reason")
        return None if reason is None else str(reason)

    @property
    def said(self) -> tuple[object, ...]:
        """What two runs must have in common, bit by bit."""
        return self.text, self.tokens, self.logprobs

    def apart(self, other: Answer) -> float:
        """The largest difference of log-probabilities up to the first token where the two part.

        For runs whose batches differ in size and so in rounding: where they part, the two tokens must have been a tie.
        """
        worst = 0.0
        for n, (mine, theirs) in enumerate(zip(self.logprobs, other.logprobs, strict=True)):
            known = dict(theirs)
            worst = max([worst, *(abs(p - known.get(token, -math.inf)) for token, p in mine[:2])])
            if self.tokens[n] != other.tokens[n]:
                return max(worst, abs(known[other.tokens[n]] - known.get(self.tokens[n], -math.inf)))
        return worst


def _entries(content: Sequence[dict[str, Any]], top: str) -> tuple[tuple[tuple[int, float], ...], ...]:
    return tuple(tuple((int(e["id"]), float(e["logprob"])) for e in entry[top]) for entry in content)


@dataclass
class CacheServer:
    process: subprocess.Popen[bytes]
    port: int
    output: Path
    api_key: str | None = None
    workers: Sequence[WorkerProcess] = ()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def request(self, method: str, path: str, body: object = None, **options: Any) -> requests.Response:
        headers = {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}
        return requests.request(
            method, f"{self.url}{path}", json=body, headers=headers, timeout=120 * PATIENCE, **options
        )

    def get(self, path: str) -> Any:
        response = self.request("GET", path)
        assert response.status_code == 200, response.text
        return response.json()

    def post(self, path: str, body: object) -> Any:
        response = self.request("POST", path, body)
        assert response.status_code == 200, response.text
        return response.json()

    # The two ways to ask, with greedy sampling and log-probabilities.

    def chat(self, messages: Messages, max_tokens: int = 6, **options: Any) -> Answer:
        body = {"messages": messages, "max_tokens": max_tokens, "temperature": 0, "logprobs": True, "top_logprobs": 5}
        answer = self.post("/v1/chat/completions", body | options)
        self.rest()
        return chat_answers(answer)[0]

    def complete(self, prompt: str | Tokens, n_predict: int = 6, **options: Any) -> Answer:
        body = {"prompt": prompt, "n_predict": n_predict, "temperature": 0, "n_probs": 5, "return_tokens": True}
        answer = self.post("/completion", body | options)
        self.rest()
        return completion(answer)

    def rest(self) -> None:
        """Returns when the inference thread has counted what it answered and handed it to the cache.

        An answer is there a moment earlier. That thread itself tells of its slots, so that it is done when it does.
        """
        self.request("GET", "/slots")

    def n_waiting(self) -> int:
        """Requests that no slot works on, and what is to be done with a slot that is busy."""
        found = re.search(r"^llamacpp:requests_deferred (\d+)$", self.request("GET", "/metrics").text, re.MULTILINE)
        assert found
        return int(found[1])

    # What the server makes of messages.

    def tokens(self, text: str) -> Tokens:
        body = {"content": text, "add_special": True, "parse_special": True}
        return list(self.post("/tokenize", body)["tokens"])

    def prompt(self, messages: Messages, answer_follows: bool = True) -> Tokens:
        body = {"messages": messages, "add_generation_prompt": answer_follows}
        return self.tokens(self.post("/apply-template", body)["prompt"])

    # The cache.

    def cache(self) -> dict[str, Any]:
        return dict(self.get("/cache"))

    def conversations(self) -> list[dict[str, Any]]:
        return list(self.get("/cache/conversations")["conversations"])

    def flush(self) -> dict[str, Any]:
        return dict(self.post("/cache/flush", {}))

    # Its life.

    def is_healthy(self) -> bool:
        """Not some other server that was faster to take the port."""
        try:
            mine = [c.laddr.port for c in psutil.Process(self.process.pid).net_connections() if c.status == "LISTEN"]
            return self.port in mine and requests.get(f"{self.url}/health", timeout=5).status_code == 200
        except (requests.RequestException, psutil.Error):
            return False

    def wait_until_healthy(self) -> None:
        wait_until(
            lambda: self.is_healthy() or self.process.poll() is not None, 60 * PATIENCE, f"healthy:\n{self.said()}"
        )
        assert self.process.poll() is None, self.said()

    def can_be_stopped(self) -> bool:
        """Upstream says that it is ready a moment before it knows what to do with SIGTERM."""
        if self.process.poll() is not None:
            return True
        status = Path(f"/proc/{self.process.pid}/status").read_text(encoding="ascii", errors="replace")
        (caught,) = (line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:"))
        return bool(int(caught, 16) >> (signal.SIGTERM - 1) & 1)

    def stop(self) -> None:
        wait_until(self.can_be_stopped, 60 * PATIENCE, "it knows what to do with SIGTERM")
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(60) == 0, self.said()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def release_workers(self) -> None:
        for worker in self.workers:
            worker.kill()

    def said(self) -> str:
        return self.output.read_text(errors="replace")


def completion(answer: dict[str, Any]) -> Answer:
    """One answer of POST /completion."""
    logprobs = _entries(answer.get("completion_probabilities", []), "top_logprobs")
    return Answer(answer["content"], tuple(answer["tokens"]), logprobs, answer["timings"])


def chat_answers(answer: dict[str, Any]) -> list[Answer]:
    """The answers of POST /v1/chat/completions, of which a request may ask for several."""
    answers = []
    for choice in answer["choices"]:
        content = choice["logprobs"]["content"]
        tokens = tuple(int(entry["id"]) for entry in content)
        text = choice["message"]["content"]
        answers.append(Answer(text, tokens, _entries(content, "top_logprobs"), answer["timings"]))
    return answers


def launch(
    binary: Path, model: Path | None, *flags: str, output: Path, cache: Path | None = None, api_key: str | None = None
) -> CacheServer:
    """Starts a server and does not wait for it."""
    port = free_port()
    command = [str(binary), "--port", str(port), "--no-webui", "--no-warmup", "--threads", "1"]
    command += ["--model", str(model)] if model else []
    command += ["--cache-ssd", str(cache)] if cache else []
    command += ["--api-key", api_key] if api_key else []
    # Threads that spin while they wait would take the cores from other servers of a test.
    environment = os.environ | {"OMP_WAIT_POLICY": "PASSIVE"} | server_environment()
    with output.open("wb") as file:
        process = subprocess.Popen([*command, *flags], stdout=file, stderr=subprocess.STDOUT, env=environment)
    return CacheServer(process, port, output, api_key)


Serve = Callable[..., CacheServer]


@contextlib.contextmanager
def starter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serve]:
    require_backend()
    started: list[CacheServer] = []

    def start(
        model: Path | None, *flags: str, cache: Path | None = None, ready: bool = True, api_key: str | None = None
    ) -> CacheServer:
        output = tmp_path_factory.mktemp("server") / "output"
        workers = start_workers(output.parent, WORKERS)
        split = rpc_flags(workers) if workers else []
        server = launch(BINARY, model, *flags, *split, output=output, cache=cache, api_key=api_key)
        server.workers = workers
        started.append(server)
        if ready:
            server.wait_until_healthy()
        return server

    try:
        yield start
    finally:
        for server in started:
            if server.process.poll() is None:
                server.kill()
            server.release_workers()


@pytest.fixture
def serve(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serve]:
    """Starts servers: serve(MODEL, FLAG, ..., cache=FOLDER). What is left of them is killed after the test."""
    with starter(tmp_path_factory) as start:
        yield start


@pytest.fixture
def kv(tmp_path: Path) -> Path:
    """For one cache of a test, which is not there yet."""
    return tmp_path / "kv"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    lines = config.stash.get(TABLE, [])
    if lines:
        terminalreporter.section("restart matrix")
        for line in lines:
            terminalreporter.write_line(line)
