"""Holds what a scenario works with: one model on one backend, its peers, and the folder for what is found out."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import interrupt
from benchmarks.limits import forget
from benchmarks.peers import Answer, Message, Peer, PeerError, Remote, Server, SlotServer
from benchmarks.progress import RunProgress
from benchmarks.records import Limits, Result, Row, SpeedName
from benchmarks.results import Room, is_url
from benchmarks.stats import common_prefix
from benchmarks.text import words
from pyrun.models.facts import ModelFacts
from pyrun.models.find import Model

OURS = "llama-run"
UPSTREAM = "upstream"
SLOTS = "slots"
OFF = "off"

SIZES = {"small": 1100, "medium": 5200, "large": 15500}
# A context is this much larger than its prompt: the template needs room, and estimates are off by some.
ROOM_TOKENS = 192
CALIBRATION_WORDS = 600
# For these reasons a model that goes on at anchors may evaluate more than is new. An empty store is none of them.
ANCHOR_MISSES = ("no_anchor", "parted", "new_tokens")
# Anchors lie up to 4 tokens before a prompt's end, or before the words that a template puts in front of a message.
ANCHOR_SLACK = 16
LEAST_BEFORE_LAST_MESSAGE = 256  # tokens that are evaluated: fewer are not worth an anchor before the last message
OTHER_TEXT = "¶"  # no message begins with it


@dataclass(frozen=True)
class Options:
    """What the user asked for."""

    sizes: tuple[str, ...] = tuple(SIZES)
    tokens: int | None = None  # an answer has so many; with None, as many as the scenario is made for
    repeat: int = 3
    ctx: int | None = None
    peers: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()  # every llama-server gets them
    prefix: int | None = None  # the static prefix of an agent or a fleet has so many tokens
    conversations: int | None = None
    turns: int = 2
    clients: int = 4
    slots: int = 4  # of a swarm
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
    unpatched: Path | None  # the peers `upstream` and `slots` need it
    chat_template: Path | None
    caches: Path  # a folder that is ours to fill and empty
    limits: Limits
    progress: RunProgress
    folder: Path
    room: Room = field(init=False)
    ctx: int = field(init=False)  # one slot has so many tokens
    salt: str = field(init=False)  # what conversations of all peers begin with
    speeds: dict[SpeedName, list[float]] = field(default_factory=dict)  # what our server measures on the way
    _tokens_per_word: float = 1.1  # a guess, until it is measured

    def __post_init__(self) -> None:
        self.room = Room(self.folder)
        self.ctx = 0
        # A server that is not ours to empty may know these prompts from an earlier run: it gets others each time.
        self.salt = os.urandom(8).hex() if any(map(is_url, self.options.peers)) else ""

    def enter(self, scenario: str, wanted_ctx: int) -> None:
        self.room = Room(self.folder / scenario)
        self.ctx = context_for(wanted_ctx, self.options.ctx, self.facts.context)

    def peers(self, slots: int = 1) -> list[Peer]:
        """Ours comes first. Every scenario gets fresh ones, each with a cache and a log of its own."""
        flags = ("--ctx-size", str(self.ctx * slots), "--parallel", str(slots), *self.options.flags)
        named: list[Peer] = [self._server(OURS, self.server, flags, cache=self.caches / "store")]
        for peer in self.options.peers:
            if peer == UPSTREAM:
                assert self.unpatched is not None
                named.append(self._server(UPSTREAM, self.unpatched, flags))
            elif peer == OFF:
                named.append(self._server(OFF, self.server, flags))
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
        """What was left behind would make a cold start warm."""
        folder = peer.stored_in if isinstance(peer, Server) else None
        if folder is None or not folder.exists():
            return
        try:
            shutil.rmtree(folder)
        except OSError as error:
            raise PeerError(
                f"cannot empty the cache of {peer.name}: {error.filename}: {error.strerror or error}",
                f"who else uses {folder}?",
            ) from error

    def forget(self, result: Result, peer: Peer, *others: Path) -> bool:
        """Takes what a peer has stored, and other files, out of the page cache. What stays there is noted."""
        folder = peer.stored_in if isinstance(peer, Server) else None
        gone = forget([*(folder.rglob("*") if folder is not None else ()), *others])
        if not gone:
            result["notes"].append(
                f"{peer.name}: stored files stayed in the page cache over a restart, so that its warm times are not "
                "those of the disk; as root, all of it can be dropped"
            )
        return gone

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
        """Asks for one answer and records it.

        What has to be restored by hand is restored first, and that counts into the time to the first token.
        """
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
        """Asks for the cache's counters. A peer without a cache has none, which gives an empty dict."""
        if not (isinstance(peer, Server) and peer.has_cache):
            return {}
        stats = peer.save_all() if flush else peer.get("/cache")
        if not stats.get("enabled"):
            raise PeerError(f"the cache of {peer.name} is off: {stats.get('reason', '')}", f"its log is {peer.log}")
        self.room.note_stats(peer.name, label, stats)
        self._learn_speed("copy_bytes_per_s", stats["speed"]["copy_bytes_per_s"], stats["counters"]["loads"] > 0)
        return stats

    def _learn_speed(self, name: SpeedName, value: float | None, counts: bool) -> None:
        if value and counts:
            self.speeds.setdefault(name, []).append(value)

    def standing(self, result: Result, peers: Sequence[Peer]) -> list[Peer]:
        return [peer for peer in peers if peer.name not in result["failed"]]

    def fresh(self, peer: Peer, sent: Sent, messages: Sequence[Message], restores_at: str) -> Fresh | None:
        """Finds out what of a prompt is new. It is None for a peer that does not tell how it cuts text into tokens."""
        if not isinstance(peer, Server):
            return None
        return sent.add(peer.tokens(messages), anchors_of(messages, peer.tokens) if restores_at == "anchors" else ())

    def hold_to_promise(
        self, result: Result, peer: Peer, label: str, answer: Answer, fresh: Fresh | None, restores_at: str
    ) -> None:
        """Reuse that is not what the store promised makes a result of ours invalid."""
        broken = broken_promise(answer, fresh, restores_at) if peer.name == OURS and fresh is not None else None
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

    def salted(self, text: str) -> str:
        return f"{self.salt} {text}" if self.salt else text

    def n_words(self, n_tokens: int) -> int:
        return max(1, round(n_tokens / self._tokens_per_word))

    def text(self, n_tokens: int, seed: object) -> str:
        """Writes a text that this model's tokenizer cuts into about so many tokens."""
        return words(self.n_words(n_tokens), seed)

    def calibrate(self, server: Server) -> None:
        """Learns how many tokens a word has for this model."""
        body = {"content": words(CALIBRATION_WORDS, "calibration"), "add_special": False}
        self._tokens_per_word = len(server.post("/tokenize", body)["tokens"]) / CALIBRATION_WORDS


def context_for(wanted: int, asked: int | None, trained: int | None) -> int:
    """The user decides; else it is what the scenario needs, in whole thousands, if the model was trained for that."""
    if asked is not None:
        return asked
    rounded = -(-wanted // 1024) * 1024
    return min(rounded, trained) if trained else rounded


@dataclass(frozen=True)
class Fresh:
    """What of a prompt has to be evaluated."""

    new: int  # what the longest prefix that it shares with any prompt sent before does not hold
    after_anchor: int  # what lies behind the last anchor within such a prefix


class Sent:
    """The prompts sent so far, each with the lengths at which anchors are promised."""

    def __init__(self, least_before_last_message: int = LEAST_BEFORE_LAST_MESSAGE) -> None:
        self._prompts: list[tuple[list[int], tuple[int, ...]]] = []
        self._least = least_before_last_message

    def add(self, tokens: list[int], anchors: tuple[int, ...] = ()) -> Fresh:
        known = anchored = 0
        for other, its_anchors in self._prompts:
            common = common_prefix(tokens, other)
            known = max(known, common)
            anchored = max([anchored, *(at for at in its_anchors if at <= common)])
        first, *between, end = anchors or (0, 0)
        begin = max(anchored, first)
        self._prompts.append((tokens, (first, *(at for at in between if at >= begin + self._least), end)))
        return Fresh(max(1, len(tokens) - known), max(1, len(tokens) - anchored))


def anchors_of(messages: Sequence[Message], tokenise: Callable[[Sequence[Message]], list[int]]) -> tuple[int, ...]:
    """The store has anchors at these lengths: before the first and maybe the last user message, and near the end.

    Templates do not tell where a message begins. It is where the prompt parts from one with another text there.
    """
    tokens = tokenise(messages)
    users = [at for at, message in enumerate(messages) if message["role"] == "user"]
    begins = [common_prefix(tokens, tokenise(_with_other_text(messages, at))) for at in (users[0], users[-1])]
    return (*begins, len(tokens))


def _with_other_text(messages: Sequence[Message], at: int) -> list[Message]:
    return [*messages[:at], {**messages[at], "content": OTHER_TEXT}, *messages[at + 1 :]]


def row_of(answer: Answer, fresh: Fresh | None) -> Row:
    return {
        "n_tokens": answer.n_prompt,
        "new": fresh.new if fresh is not None else None,
        "reused": answer.reused,
        "evaluated": answer.evaluated,
        "source": answer.source,
        "miss": answer.miss,
        "ttft_ms": answer.ttft_ms,
    }


def broken_promise(answer: Answer, fresh: Fresh, restores_at: str) -> str | None:
    """Says how much more was evaluated than the store promises; None where it kept its promise."""
    if answer.evaluated <= fresh.new or answer.miss == "recompute_faster":
        return None
    told = f"{answer.evaluated} tokens were evaluated where {fresh.new} are new"
    if restores_at == "anchors":
        # It goes on from the last anchor before the new part, and says so.
        if answer.evaluated <= fresh.after_anchor + ANCHOR_SLACK and answer.miss in ANCHOR_MISSES:
            return None
        told += f" and {fresh.after_anchor} lie behind the last anchor"
    return f"{told}; the reason given is {answer.miss}"
