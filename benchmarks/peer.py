"""A llama-server under measurement: started with given flags, asked over HTTP, stopped politely or not."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import requests

Message = dict[str, str]

START_SECONDS = 300


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

    @property
    def reused(self) -> int:
        return int(self.timings["cache_n"])

    @property
    def evaluated(self) -> int:
        return int(self.timings["prompt_n"])

    @property
    def source(self) -> str:
        return str(self.timings.get("cache_source", "slot" if self.reused else "none"))


@dataclass
class Peer:
    """One server program with its flags; start, stop and kill as often as the scenario says."""

    name: str
    program: Path
    model: Path
    flags: Sequence[str]
    port: int
    log: Path
    environment: dict[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        command = [
            str(self.program),
            "-m",
            str(self.model),
            "--host",
            "127.0.0.1",
            "--port",
            str(self.port),
            *self.flags,
        ]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command, stdout=log, stderr=subprocess.STDOUT, env={**os.environ, **self.environment}
            )
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise RuntimeError(f"{self.name} ended with code {self.process.returncode}; see {self.log}")
            try:
                if requests.get(f"{self.url}/health", timeout=2).status_code == 200:
                    return
            except requests.RequestException:
                pass
            time.sleep(0.05)
        raise RuntimeError(f"{self.name} did not start within {START_SECONDS} s; see {self.log}")

    def stop(self, how: signal.Signals = signal.SIGTERM) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(how)
            self.process.wait(120)

    def post(self, path: str, body: object) -> dict[str, Any]:
        answer = requests.post(f"{self.url}{path}", json=body, timeout=3600)
        answer.raise_for_status()
        result: dict[str, Any] = answer.json()
        return result

    def get(self, path: str) -> dict[str, Any]:
        answer = requests.get(f"{self.url}{path}", timeout=60)
        answer.raise_for_status()
        result: dict[str, Any] = answer.json()
        return result

    def tokens(self, messages: Sequence[Message]) -> list[int]:
        prompt = self.post("/apply-template", {"messages": list(messages)})["prompt"]
        tokens: list[int] = self.post("/tokenize", {"content": prompt, "add_special": True, "parse_special": True})[
            "tokens"
        ]
        return tokens

    def chat(self, messages: Sequence[Message], max_tokens: int) -> Answer:
        """Streams an answer; the time to the first token is what the client sees."""
        body = {"messages": list(messages), "max_tokens": max_tokens, "temperature": 0, "stream": True}
        return self._stream("/v1/chat/completions", body)

    def complete(self, prompt: str | list[int], max_tokens: int, **extra: object) -> Answer:
        body = {"prompt": prompt, "n_predict": max_tokens, "temperature": 0, "stream": True, **extra}
        return self._stream("/completion", body)

    def _stream(self, path: str, body: dict[str, Any]) -> Answer:
        began = time.perf_counter()
        first = 0.0
        text = ""
        timings: dict[str, Any] = {}
        with requests.post(f"{self.url}{path}", json=body, stream=True, timeout=3600) as response:
            response.raise_for_status()
            for line in response.iter_lines():
                if not line.startswith(b"data: ") or line == b"data: [DONE]":
                    continue
                event = json.loads(line[len(b"data: ") :])
                piece = event.get("content", "")
                if event.get("choices"):
                    delta = event["choices"][0].get("delta", {})
                    piece = delta.get("content") or delta.get("reasoning_content") or ""
                if piece and not first:
                    first = time.perf_counter()
                text += piece
                timings = event.get("timings", timings)
        ended = time.perf_counter()
        return Answer(text, timings, ((first or ended) - began) * 1000, (ended - began) * 1000)
