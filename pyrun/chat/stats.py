"""What an answer cost and what the cache saved, for the line under it and for /stats."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from pyrun.chat.chain import Link
from pyrun.providers.events import End
from pyrun.providers.stream import cost

MEASURABLE = 32  # tokens; fewer say nothing about the speed of evaluating
SOURCES = {
    "slot": "kept by the server",
    "hot": "from RAM",
    "warm": "from RAM",
    "cold": "from disk",
    "shared_folder": "from the shared folder",
}


@dataclass(frozen=True)
class Answer:
    provider: str
    model: str
    first_token_s: float
    seconds: float
    prompt_tokens: int
    reused_tokens: int
    answer_tokens: int
    source: str  # where the reused ones came from; empty where nobody says
    answer_per_s: float
    prompt_per_s: float  # 0 where too little was evaluated to know
    cost: float | None  # dollars
    restore_s: float = 0.0

    def about(self) -> dict[str, Any]:
        return asdict(self)

    def saved_s(self, prompt_per_s: float) -> float:
        """The time that evaluating the reused tokens would have taken."""
        return max(0.0, self.reused_tokens / prompt_per_s - self.restore_s) if prompt_per_s else 0.0

    def line(self, prompt_per_s: float = 0.0) -> str:
        """`prompt_per_s` is a speed that was measured before, for an answer that evaluated too little."""
        parts = [f"first token after {self.first_token_s:.1f} s"]
        if self.prompt_tokens:
            where = f" ({SOURCES.get(self.source, self.source)})" if self.source not in ("", "none") else ""
            parts.append(f"{self.reused_tokens:,} of {self.prompt_tokens:,} tokens reused{where}")
        if self.answer_per_s:
            parts.append(f"{self.answer_per_s:.{1 if self.answer_per_s < 10 else 0}f} tokens/s")
        if saved := self.saved_s(self.prompt_per_s or prompt_per_s):
            parts.append(f"saved {saved:.1f} s")
        if self.cost:
            parts.append(f"${self.cost:.4f}")
        return " · ".join(parts)


def measure(link: Link, begun: float, first: float | None, ended: float, end: End) -> Answer:
    usage, timings = end.usage, end.timings
    evaluated, reused = _number(timings, "prompt_n"), _number(timings, "cache_n")
    seconds = ended - (first or begun)
    speed = _number(timings, "predicted_per_second") or (usage.answer_tokens / seconds if seconds > 0.05 else 0.0)
    return Answer(
        provider=link.name,
        model=link.provider.model,
        first_token_s=(first or ended) - begun,
        seconds=ended - begun,
        prompt_tokens=int(evaluated + reused) if timings else usage.prompt_tokens,
        reused_tokens=int(reused) if timings else usage.cached_tokens,
        answer_tokens=usage.answer_tokens or int(_number(timings, "predicted_n")),
        source=str(timings.get("cache_source") or ""),
        answer_per_s=speed,
        prompt_per_s=_number(timings, "prompt_per_second") if evaluated >= MEASURABLE else 0.0,
        cost=cost(link.provider, usage),
        restore_s=_number(timings, "restore_ms") / 1000,
    )


def _number(timings: dict[str, Any], name: str) -> float:
    value = timings.get(name)
    return float(value) if isinstance(value, int | float) else 0.0


@dataclass
class Totals:
    answers: int = 0
    prompt_tokens: int = 0
    reused_tokens: int = 0
    answer_tokens: int = 0
    seconds: float = 0.0
    saved_s: float = 0.0
    cost: float = 0.0
    unknown_costs: int = 0  # answers whose price nobody knows
    prompt_per_s: float = 0.0  # measured last

    def add(self, answer: Answer) -> None:
        self.prompt_per_s = answer.prompt_per_s or self.prompt_per_s
        self.answers += 1
        self.prompt_tokens += answer.prompt_tokens
        self.reused_tokens += answer.reused_tokens
        self.answer_tokens += answer.answer_tokens
        self.seconds += answer.seconds
        self.saved_s += answer.saved_s(self.prompt_per_s)
        self.cost += answer.cost or 0.0
        self.unknown_costs += answer.cost is None


def totals(abouts: Iterable[dict[str, Any]]) -> Totals:
    """Of a session's rows, by what is known about each."""
    total = Totals()
    for about in abouts:
        if "prompt_tokens" in about:
            total.add(Answer(**about))
    return total
