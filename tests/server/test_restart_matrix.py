"""What is left after the server ends: every kind of memory, every way to end, every way a conversation goes on.

A conversation of three turns is held with one process. The process ends, another one opens the folder, and six prompts
are asked, each in a slot of its own, so that nothing but the store can help. Two things are checked:

- Reused tokens are those of a model of the store that is a few lines long: `Known`.
- Text and log-probabilities equal, bit by bit, those of a server without the cache that never stopped and evaluated the
  same tokens in the same batches. Other batches round differently, and the toy models make much of it: two evaluations
  from the first token that differ in nothing but their batches are further apart than any tolerance could allow.
  For attention that server needs no help: its slot still holds the conversation and is cut where the store cuts. Folded
  state cannot be cut; there the prompt is fed in the pieces in which the conversation evaluated it. (Upstream's own
  context checkpoints are no measure: after one of them the toy `uncut` continues with other numbers.)

The table is printed after the tests and written to restart-matrix.txt in pytest's base folder.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import requests
from backend import BACKEND
from cache_server import TABLE, Answer, CacheServer, Messages, Serve, Tokens, say, smollm2, starter, toy
from helpers import wait_until

import toys
from toys.corpus import TEXT

pytestmark = pytest.mark.server

LINES = TEXT.splitlines()[:18]
SMOL = "SmolLM2"
KINDS = [*toys.MODELS, SMOL]
KV_TYPES = ("f16", "q8_0")
ENDS = ("SIGTERM", "flush, kill -9", "kill -9")
LEAST_BEFORE_LAST_MESSAGE = 256  # tokens that are worth a cut
SEQUELS = ["exact", "grown", "same", "edited", "branch", "new"]


@dataclass(frozen=True)
class Case:
    kind: str
    kv_type: str

    def __str__(self) -> str:
        return f"{self.kind}-{self.kv_type}"

    @property
    def model(self) -> Path:
        return smollm2() if self.kind == SMOL else toy(self.kind)

    @property
    def cuttable(self) -> bool:
        """Whether any prefix of the state stands on its own."""
        return self.kind == SMOL or toys.MODELS[self.kind].memory is toys.Memory.ATTENTION

    @property
    def flags(self) -> list[str]:
        return ["--parallel", "8", "--ctx-size", "8192", "-ctk", self.kv_type, "-ctv", self.kv_type]

    @property
    def cache_flags(self) -> list[str]:
        # Every turn is kept, not only the last before a rest.
        return ["--cache-ssd-page-size", "64" if self.kind == SMOL else "256", "--cache-ssd-settle", "0"]

    def text(self, first: int, n_lines: int) -> str:
        """Other lines for other places; fewer for the model that takes seconds for them."""
        return "\n".join(LINES[first : first + (max(1, n_lines // 3) if self.kind == SMOL else n_lines)])


@dataclass(frozen=True)
class Request:
    """A prompt as messages, or as tokens where it goes on exactly where the answer ended."""

    messages: Messages
    tokens: Tokens
    n_static: int = 0  # tokens before the first message of the user
    last_user: int = 0  # and before the last one

    @staticmethod
    def of(server: CacheServer, messages: Messages) -> Request:
        tokens = server.prompt(messages)
        start = server.tokens("<|im_start|>user")
        users = [n for n in range(len(tokens)) if tokens[n : n + len(start)] == start]
        return Request(messages, tokens, users[0], users[-1])

    def breaks(self, cuttable: bool, begin: int) -> list[int]:
        """Where the server ends a batch behind what is there already: where an anchor pays, and at the end."""
        size = len(self.tokens)
        if cuttable:
            return [size]
        cuts = [self.n_static] if self.n_static > begin else []
        if self.last_user >= max([begin, *cuts]) + LEAST_BEFORE_LAST_MESSAGE:
            cuts.append(self.last_user)
        return [*cuts, *(cut for cut in (size - 4, size) if cut > begin)]

    def ask(self, server: CacheServer, slot: int) -> Answer:
        if self.messages:
            answer = server.chat(self.messages, id_slot=slot)
        else:
            answer = server.complete(self.tokens, id_slot=slot)
        assert answer.prompt_size == len(self.tokens)
        return answer


@dataclass(frozen=True)
class Sequence:
    tokens: Tokens
    cuts: list[int]  # where the batches ended in which it was evaluated


@dataclass
class Known:
    """What the store must know: all that was evaluated, and where its state can be cut."""

    cuttable: bool
    sequences: list[Sequence] = field(default_factory=list)
    anchors: list[Tokens] = field(default_factory=list)

    def reusable(self, prompt: Tokens) -> int:
        limit = len(prompt) - 1  # its logits are the answer's beginning
        if self.cuttable:
            return max((min(limit, common(prompt, known.tokens)) for known in self.sequences), default=0)
        return max((len(a) for a in self.anchors if len(a) <= limit and prompt[: len(a)] == a), default=0)

    def pieces(self, request: Request, reused: int) -> list[int]:
        """Where the batches of a prompt end, those of the part that is reused included."""
        source = next((known for known in self.sequences if common(known.tokens, request.tokens) >= reused), None)
        before = [cut for cut in source.cuts if cut <= reused] if source else []
        return before + request.breaks(self.cuttable, reused)

    def learn(self, request: Request, answer: Answer, reused: int) -> None:
        tokens = request.tokens + list(answer.tokens[:-1])  # the last one was sampled and not evaluated
        cuts = self.pieces(request, reused) + list(range(len(request.tokens) + 1, len(tokens) + 1))
        self.sequences.append(Sequence(tokens, cuts))
        self.anchors += [tokens[:n] for n in (*request.breaks(self.cuttable, reused)[:-1], len(tokens))]


def common(one: Tokens, other: Tokens) -> int:
    return next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


@dataclass
class Reference:
    """The conversation and its sequels, as servers without the cache that never stop see them."""

    case: Case
    turns: list[Request]
    turn_answers: list[Answer]
    turn_reused: list[int]
    sequels: dict[str, Request]
    other: Request  # a conversation with another system prompt
    in_context: dict[str, Answer]  # its slot still holds the conversation
    plain: CacheServer
    fed: dict[tuple[int, ...], Answer] = field(default_factory=dict)

    def answer(self, name: str, pieces: list[int]) -> Answer:
        if self.case.cuttable:
            return self.in_context[name]
        request = self.sequels[name]
        key = (*request.tokens, *pieces)
        if key not in self.fed:
            self.fed[key] = feed(self.plain, request, pieces, list(self.sequels).index(name))
        return self.fed[key]


def feed(server: CacheServer, request: Request, pieces: list[int], slot: int) -> Answer:
    """Has it evaluated in these pieces, by a server that makes no cuts of its own."""
    for end in pieces[:-1]:
        server.complete(request.tokens[:end], n_predict=0, id_slot=slot, cache_prompt=end != pieces[0])
    answer = request.ask(server, slot)
    assert answer.reused == pieces[-2]
    return answer


def require_repeatable(case: Case, serve: Serve) -> None:
    """Some drivers give another answer each time, or none, with the cache off: there is nothing to compare with."""
    if BACKEND == "cpu":
        return
    server = serve(case.model, *case.flags)
    messages = [say("system", case.text(0, 7)), say("user", case.text(7, 2))]
    try:
        answers = {server.chat(messages, cache_prompt=False).said for _ in range(4)}
    except requests.ConnectionError:
        pytest.skip(f"without the cache, {case} ends the server on {BACKEND}")
    server.stop()
    if len(answers) > 1:
        pytest.skip(f"without the cache, {case} has {len(answers)} answers to one prompt on {BACKEND}")


def hold(case: Case, serve: Serve) -> Reference:
    require_repeatable(case, serve)
    server = serve(case.model, *case.flags, *([] if case.cuttable else ["--ctx-checkpoints", "0"]))
    messages = [say("system", case.text(0, 7)), say("user", case.text(7, 2))]
    turns, answers, reused = [], [], []
    known = Known(case.cuttable)
    for n in range(3):
        turns.append(Request.of(server, list(messages)))
        reused.append(known.reusable(turns[-1].tokens))
        if case.cuttable:
            answers.append(turns[-1].ask(server, 0))
        else:
            answers.append(feed(server, turns[-1], known.pieces(turns[-1], reused[-1]), 0))
        known.learn(turns[-1], answers[-1], reused[-1])
        messages += [say("assistant", answers[-1].text), say("user", case.text(9 + 2 * n, 2))]

    *history, last = turns[-1].messages
    goes_on = turns[-1].tokens + list(answers[-1].tokens) + server.tokens(case.text(16, 1))
    # From the one that shares most to the one that shares least: each leaves the next one's part in the slot.
    sequels = {
        "exact": Request([], goes_on),  # tokens, as clients send them that keep the answer's own
        "grown": Request.of(server, messages),
        "same": turns[-1],
        "edited": Request.of(server, [*history, say("user", last["content"] + " Please.")]),
        "branch": Request.of(server, [*turns[1].messages[:-1], say("user", "Why? " + case.text(5, 2))]),
        "new": Request.of(server, [turns[0].messages[0], say("user", "Who? " + case.text(3, 2))]),
    }
    assert list(sequels) == SEQUELS
    other = Request.of(server, [say("system", case.text(10, 7)), say("user", case.text(1, 2))])
    in_context = {name: request.ask(server, 0) for name, request in sequels.items()} if case.cuttable else {}
    return Reference(case, turns, answers, reused, sequels, other, in_context, server)


@pytest.fixture(scope="module", params=[Case(kind, kv_type) for kind in KINDS for kv_type in KV_TYPES], ids=str)
def reference(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reference]:
    with starter(tmp_path_factory) as serve:
        yield hold(request.param, serve)


@pytest.fixture(scope="module")
def table(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[list[str]]]:
    rows = [["model", "K/V", "end", *SEQUELS, "unreported"]]
    yield rows
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    (tmp_path_factory.getbasetemp() / "restart-matrix.txt").write_text("\n".join(lines) + "\n")
    request.config.stash[TABLE] = ["reused/prompt tokens, and where they came from", *lines]


@pytest.mark.parametrize("end", ENDS)
def test_restart_keeps_state(
    reference: Reference, end: str, serve: Serve, tmp_path: Path, table: list[list[str]]
) -> None:
    case = reference.case
    flags = [*case.flags, *case.cache_flags]
    known = Known(case.cuttable)

    before = serve(case.model, *flags, cache=tmp_path / "kv")
    for turn, expected, reused in zip(reference.turns, reference.turn_answers, reference.turn_reused, strict=True):
        answer = turn.ask(before, 0)
        assert answer.reused == reused and answer.said == expected.said
        known.learn(turn, answer, reused)

    unreported: Request | None = None
    if end == "SIGTERM":
        before.stop()
    elif end == "flush, kill -9":
        before.flush()
        before.kill()
    else:
        wait_until(lambda: before.cache()["state"]["checkpoints"] == 3, 30, "all three turns are reported as stored")
        unreported = reference.other
        unreported.ask(before, 1)
        before.kill()

    after = serve(case.model, *flags, cache=tmp_path / "kv")
    row = [case.kind, case.kv_type, end]
    table.append(row)
    for slot, (name, request) in enumerate(reference.sequels.items()):
        answer = request.ask(after, slot)
        row.append(f"{answer.reused}/{answer.prompt_size} {answer.source}")
        assert answer.reused == known.reusable(request.tokens), f"{name}: {answer.timings}"
        assert answer.source == ("cold" if name == "exact" else answer.source) != "slot"
        assert answer.said == reference.answer(name, known.pieces(request, answer.reused)).said, name
        known.learn(request, answer, answer.reused)
        after.flush()  # the next one finds it in the store
    if unreported:  # it may be lost, nothing else may
        row.append(f"{unreported.ask(after, 7).reused}/{len(unreported.tokens)}")
    row += [""] * (len(table[0]) - len(row))
    after.stop()
