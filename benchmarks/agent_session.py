"""An agent's session of eleven turns: how many tokens are evaluated, against those that are truly new.

    python -m benchmarks.agent_session [MODEL] [--upstream SERVER] [--system 2000] [--no-restart]

One slot. A static system prompt, tool results that grow, answers whose reasoning is stripped from the history, a side
conversation with the same system prompt, branches back to older turns, an edited last message, and kill -9 with a
restart in the middle. Truly new are the tokens of a prompt beyond the longest prefix it shares with any sent before.
"""

from __future__ import annotations

import argparse
import signal
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from rich.table import Table

from benchmarks.peer import Answer, Message, Peer, free_port
from benchmarks.text import words
from pyrun import console
from pyrun.home import find_home
from pyrun.models.default import ensure_default_model

ANSWER_TOKENS = 48


@dataclass
class Conversation:
    """What the client sends: the history without the reasoning that the answers began with."""

    messages: list[Message]

    def copy(self) -> Conversation:
        return Conversation(list(self.messages))

    def ask(self, text: str, role: str = "user") -> None:
        self.messages.append({"role": role, "content": text})

    def keep(self, answer: str) -> None:
        # The first half stands for the reasoning, which no client sends back.
        self.messages.append({"role": "assistant", "content": answer[len(answer) // 2 :].strip() or "done"})


@dataclass
class Turn:
    what: str
    conversation: Conversation
    restart_before: bool = False


def script(n_system: int) -> Iterator[Turn]:
    """Each turn is asked when the one before has been answered (and its answer kept in its conversation)."""
    system = {"role": "system", "content": "You are a coding agent. " + words(n_system, "system")}
    main = Conversation([system])
    main.ask("Find out why the test fails. " + words(60, 1))
    yield Turn("first task", main)
    main.ask("Tool result:\n" + words(120, 2))
    yield Turn("tool result", main)
    main.ask("Tool result:\n" + words(200, 3))
    at_third = main.copy()
    yield Turn("larger tool result", main)
    side = Conversation([system])
    side.ask("Summarise the open files. " + words(40, 4))
    yield Turn("side conversation, same system prompt", side)
    main.ask("Tool result:\n" + words(260, 5))
    yield Turn("back to the main one", main)
    main.ask("Tool result:\n" + words(320, 6))
    yield Turn("after kill -9 and a restart", main, restart_before=True)
    branch = at_third
    branch.messages[-1] = {"role": "user", "content": branch.messages[-1]["content"] + " But look at the other file."}
    yield Turn("branch back to turn 3", branch)
    branch.ask("Tool result:\n" + words(150, 8))
    yield Turn("the branch goes on", branch)
    main.ask("Now write the fix. " + words(80, 9))
    yield Turn("the main one again", main)
    side.ask("And the closed ones? " + words(60, 10))
    yield Turn("the side one again", side)
    main.messages[-1] = {"role": "assistant", "content": "The fix is written."}
    main.ask("Write a test for it. " + words(70, 11))
    yield Turn("the main one, its last answer edited", main)


@dataclass
class Row:
    what: str
    n_tokens: int
    n_new: int
    answer: Answer


@dataclass
class Result:
    rows: list[Row] = field(default_factory=list)

    @property
    def ratio(self) -> float:
        return sum(row.answer.evaluated for row in self.rows) / sum(row.n_new for row in self.rows)


def common_prefix(a: list[int], b: list[int]) -> int:
    for i, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return i
    return min(len(a), len(b))


def play(peer: Peer, n_system: int, restart: bool) -> Result:
    result = Result()
    sent: list[list[int]] = []
    peer.start()
    try:
        for turn in script(n_system):
            if turn.restart_before and restart:
                time.sleep(1)  # an agent's tool runs for at least that long
                peer.stop(signal.SIGKILL)
                peer.start()
            tokens = peer.tokens(turn.conversation.messages)
            n_new = len(tokens) - max((common_prefix(tokens, other) for other in sent), default=0)
            sent.append(tokens)
            answer = peer.chat(turn.conversation.messages, ANSWER_TOKENS)
            turn.conversation.keep(answer.text)
            result.rows.append(Row(turn.what, len(tokens), max(1, n_new), answer))
    finally:
        peer.stop()
    return result


def show(model: Path, results: dict[str, Result]) -> None:
    table = Table(title=f"eleven turns of an agent on {model.name}: tokens evaluated")
    table.add_column("turn")
    for column in ("prompt", "new", *results, "from", "TTFT ms"):
        table.add_column(column, justify="left" if column == "from" else "right")
    ours = results["llama-run"]
    for i, row in enumerate(ours.rows):
        table.add_row(
            f"{i + 1} {row.what}",
            str(row.n_tokens),
            str(row.n_new),
            *(str(result.rows[i].answer.evaluated) for result in results.values()),
            row.answer.source,
            f"{row.answer.ttft_ms:.0f}",
        )
    table.add_row("evaluated / new", "", "", *(f"{result.ratio:.2f}" for result in results.values()), "", "")
    console.out.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", type=Path, help="a GGUF file (default: the built-in model)")
    parser.add_argument("--upstream", type=Path, help="an unpatched llama-server to run beside it")
    parser.add_argument("--system", type=int, default=2000, help="words in the system prompt")
    parser.add_argument("--ctx", type=int, default=8192)
    parser.add_argument("--no-restart", action="store_true", help="leave out kill -9 and the restart")
    options = parser.parse_args()

    home = find_home()
    model = options.model or ensure_default_model(home)
    flags = ["-c", str(options.ctx), "-np", "1"]
    results: dict[str, Result] = {}
    with tempfile.TemporaryDirectory() as folder:
        peers = [
            Peer("llama-run", home.server_binary("cpu"), model, [*flags, "--cache-ssd", f"{folder}/cache"], free_port(),
                 Path(folder) / "llama-run.log"),
        ]  # fmt: skip
        if options.upstream:
            peers.append(Peer("upstream", options.upstream, model, flags, free_port(), Path(folder) / "upstream.log"))
        for peer in peers:
            results[peer.name] = play(peer, options.system, not options.no_restart)
    show(model, results)


if __name__ == "__main__":
    main()
