"""A benchmark of no model that is there, and a peer that answers without a process."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from benchmarks.bench import Bench, Options
from benchmarks.peers import Answer, Message, Server
from benchmarks.progress import RunProgress
from pyrun.models.facts import ModelFacts
from pyrun.models.find import Model


def answer(
    evaluated: int = 1, reused: int = 99, source: str = "cold", miss: str | None = None, text: str = "a"
) -> Answer:
    timings: dict[str, Any] = {"cache_n": reused, "prompt_n": evaluated, "cache_source": source}
    if miss:
        timings["cache_miss"] = {"reason": miss, "at": 1}
    return Answer(text, timings, 10.0, 20.0)


def bench_of(folder: Path, **options: Any) -> Bench:
    """Of no model that is there."""
    return Bench(
        options=Options(**options),
        model=Model(folder / "toy.gguf", "toy", 1),
        facts=cast(ModelFacts, SimpleNamespace(context=None)),
        backend="cpu",
        server=folder / "llama-server",
        unpatched=folder / "upstream",
        chat_template=None,
        caches=folder,
        limits={},
        progress=RunProgress(),
        folder=folder / "results",
    )


class Scripted(Server):
    """Answers without a process, phase after phase."""

    def __init__(self, name: str, folder: Path, *answers: Answer) -> None:
        super().__init__(name, folder / "program", folder / "model", (), folder / "log", cache=folder / "store")
        self.answers = list(answers)

    def start(self) -> None:
        (self.cache or Path()).mkdir(exist_ok=True)

    def warm_up(self) -> None:
        pass

    def get(self, path: str) -> dict[str, Any]:
        assert path == "/cache"
        return {"reading_ahead": False}

    def chat(self, messages: Sequence[Message], max_tokens: int, **extra: object) -> Answer:
        return self.answers.pop(0)
