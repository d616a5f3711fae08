"""What a scenario works with: one model on one backend, its peers, and the folder for what is found out."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import interrupt
from benchmarks.limits import forget
from benchmarks.peers import Answer, Message, Peer, PeerError, Remote, Server, SlotServer
from benchmarks.progress import RunProgress
from benchmarks.results import Result, Room
from benchmarks.stats import common_prefix
from benchmarks.text import words
from pyrun.models.facts import ModelFacts
from pyrun.models.find import Model

OURS = "llama-run"
UPSTREAM = "upstream"
SLOTS = "slots"

SIZES = {"small": 1100, "medium": 5200, "large": 15500}
# Between the sizes of a prompt and of its context: the template, and what estimates are off by.
ROOM_TOKENS = 192
CALIBRATION_WORDS = 600


@dataclass(frozen=True)
class Options:
    """What the user asked for."""

    sizes: tuple[str, ...] = tuple(SIZES)
    tokens: int = 128  # of an answer
    repeat: int = 3
    ctx: int | None = None
    peers: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()  # for every llama-server
    prefix: int | None = None  # tokens of the static prefix of an agent or a fleet
    conversations: int | None = None
    turns: int = 2
    clients: int = 4
    requests: int = 4
    chats: Path | None = None
    damage: bool = False
    upstream: Path | None = None


@dataclass
class Bench:
    options: Options
    model: Model
    facts: ModelFacts
    backend: str
    server: Path
    unpatched: Path | None  # for the peers `upstream` and `slots`
    chat_template: Path | None
    caches: Path  # a folder that is ours to fill and empty
    limits: dict[str, Any]
    progress: RunProgress
    folder: Path
    room: Room = field(init=False)
    ctx: int = field(init=False)  # tokens of one slot
    speeds: dict[str, list[float]] = field(default_factory=dict)  # of ours, as they are measured on the way
    _tokens_per_word: float = 1.1  # until it is measured

    def __post_init__(self) -> None:
        self.room = Room(self.folder)
        self.ctx = 0

    def enter(self, scenario: str, wanted_ctx: int) -> None:
        self.room = Room(self.folder / scenario)
        self.ctx = context_for(wanted_ctx, self.options.ctx, self.facts.context)

    def peers(self, slots: int = 1) -> list[Peer]:
        """Ours first. Fresh ones for every scenario, each with a cache and a log of its own."""
        flags = ("--ctx-size", str(self.ctx * slots), "--parallel", str(slots), *self.options.flags)
        named: list[Peer] = [self._server(OURS, self.server, flags, cache=self.caches / "store")]
        for peer in self.options.peers:
            if peer == UPSTREAM:
                assert self.unpatched is not None
                named.append(self._server(UPSTREAM, self.unpatched, flags))
            elif peer == SLOTS:
                assert self.unpatched is not None
                named.append(
                    SlotServer(
                        SLOTS,
                        self.unpatched,
                        self.model.path,
                        flags,
                        self.room.log(SLOTS),
                        chat_template=self.chat_template,
                        slots=self.caches / "slots",
                    )
                )
            else:
                named.append(Remote(peer, peer))
        return named

    def _server(self, name: str, program: Path, flags: Sequence[str], cache: Path | None = None) -> Server:
        log = self.room.log(name)
        return Server(name, program, self.model.path, flags, log, cache=cache, chat_template=self.chat_template)

    def empty_caches(self, peer: Peer) -> None:
        if isinstance(peer, SlotServer):
            shutil.rmtree(peer.slots, ignore_errors=True)
        elif isinstance(peer, Server) and peer.cache is not None:
            shutil.rmtree(peer.cache, ignore_errors=True)

    def forget(self, peer: Peer) -> bool:
        """Takes what a peer has stored out of the page cache."""
        folder = peer.slots if isinstance(peer, SlotServer) else peer.cache if isinstance(peer, Server) else None
        return forget(folder.rglob("*")) if folder is not None else False

    def ask(
        self,
        peer: Peer,
        label: str,
        messages: Sequence[Message],
        max_tokens: int,
        *,
        conversation: str = "",
        **extra: Any,
    ) -> Answer:
        """One answer, recorded. What has to be restored by hand is, and counts into the time to the first token."""
        interrupt.check()
        self.progress.say(f"{self.model.name}: {self.room.folder.name}, {label}, {peer.name}")
        by_hand = peer.bring_back(conversation) if conversation else 0.0
        answer = peer.chat(messages, max_tokens, **extra)
        answer.ttft_ms += by_hand
        answer.total_ms += by_hand
        self.progress.advance(answer.evaluated, answer.n_answer)
        self.room.record(peer.name, label, answer)
        if peer.name == OURS:
            self._learn_speed("prefill_per_s", answer.timings.get("prompt_per_second"), answer.evaluated >= 256)
            self._learn_speed("decode_per_s", answer.timings.get("predicted_per_second"), answer.n_answer >= 16)
        return answer

    def stats(self, peer: Peer, label: str, *, flush: bool = False) -> dict[str, Any]:
        """The cache's counters, where a peer has them."""
        if not (isinstance(peer, Server) and peer.has_cache):
            return {}
        stats = peer.post("/cache/flush", {}) if flush else peer.get("/cache")
        if not stats.get("enabled"):
            raise PeerError(f"the cache of {peer.name} is off: {stats.get('reason', '')}", f"its log is {peer.log}")
        self.room.note_stats(peer.name, label, stats)
        self._learn_speed("copy_bytes_per_s", stats["speed"]["copy_bytes_per_s"], stats["counters"]["loads"] > 0)
        return stats

    def _learn_speed(self, name: str, value: float | None, counts: bool) -> None:
        if value and counts:
            self.speeds.setdefault(name, []).append(value)

    def standing(self, result: Result, peers: Sequence[Peer]) -> list[Peer]:
        return [peer for peer in peers if peer.name not in result["failed"]]

    def hold_to_promise(
        self, result: Result, peer: Peer, label: str, answer: Answer, n_new: int | None, restores_at: str
    ) -> None:
        """Reuse that is not what the store promised makes a result of ours invalid."""
        broken = broken_promise(answer, n_new, restores_at) if peer.name == OURS and n_new is not None else None
        if broken:
            result["problems"].append(f"{OURS}, {label}: {broken}")

    @contextmanager
    def watch(self, result: Result, peer: Peer) -> Iterator[None]:
        """A peer that fails is reported and left out; the others go on."""
        try:
            yield
        except PeerError as error:
            result["failed"].append(peer.name)
            where = f" ({error.hint})" if error.hint else ""
            result["problems"].append(f"{error.message}{where}")
            peer.stop()

    def n_words(self, n_tokens: int) -> int:
        return max(1, round(n_tokens / self._tokens_per_word))

    def text(self, n_tokens: int, seed: object) -> str:
        """Of about as many tokens, for this model's tokenizer."""
        return words(self.n_words(n_tokens), seed)

    def calibrate(self, server: Server) -> None:
        """How many tokens a word has for this model."""
        body = {"content": words(CALIBRATION_WORDS, "calibration"), "add_special": False}
        self._tokens_per_word = len(server.post("/tokenize", body)["tokens"]) / CALIBRATION_WORDS


def context_for(wanted: int, asked: int | None, trained: int | None) -> int:
    """As the user says; else what the scenario needs, in whole thousands, within what the model was trained for."""
    if asked is not None:
        return asked
    rounded = -(-wanted // 1024) * 1024
    return min(rounded, trained) if trained else rounded


class Sent:
    """Which part of a prompt is new: not in the longest prefix that it shares with any sent before."""

    def __init__(self) -> None:
        self._prompts: list[list[int]] = []

    def new_tokens(self, tokens: list[int]) -> int:
        known = max((common_prefix(tokens, other) for other in self._prompts), default=0)
        self._prompts.append(tokens)
        return max(1, len(tokens) - known)


def row_of(answer: Answer, n_new: int | None) -> dict[str, Any]:
    """One request of a conversation, as results have it."""
    return {
        "n_tokens": answer.n_prompt,
        "new": n_new,
        "reused": answer.reused,
        "evaluated": answer.evaluated,
        "source": answer.source,
        "miss": answer.miss,
        "ttft_ms": answer.ttft_ms,
    }


def broken_promise(answer: Answer, n_new: int, restores_at: str) -> str | None:
    """Whether more was evaluated than the store promises, and nothing says why."""
    if answer.evaluated <= n_new or answer.miss == "recompute_faster":
        return None
    if restores_at == "anchors" and answer.miss in ("no_anchor", "parted", "new_tokens", "nothing_stored"):
        return None  # it goes on from the last anchor before the new part, and says so
    return f"{answer.evaluated} tokens were evaluated where {n_new} are new; the reason given is {answer.miss}"
