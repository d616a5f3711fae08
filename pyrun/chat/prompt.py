"""What of a session is sent: a pure function over its rows, so that one prompt is the beginning of the next."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pyrun._kernels import cut_history
from pyrun.chat.sessions import Row, no_result
from pyrun.providers.events import Message

NOTE = "[Earlier messages of this conversation were left out. search_memory finds what they said.]\n\n"
NOTE_TOKENS = 32
MESSAGE_TOKENS = 8  # what a template writes around a message
MARGIN = 64  # what it writes around all of them
BYTES_PER_TOKEN = 3  # fewer than most tokens have: what is estimated too high still fits


@dataclass(frozen=True)
class Prompt:
    messages: list[Message]
    dropped: list[int]  # rows that are left out
    n_cuts: int
    n_over: int  # tokens by which it does not fit all the same
    ahead: list[Message]  # what the next cut will leave of it; empty as long as that is far


def answer_room(context: int) -> int:
    """Tokens that are kept free for an answer. It depends on nothing else: the cut must not move."""
    return max(1, min(16_384, context // 4))


def room(context: int, tool_tokens: int) -> int:
    """Tokens that messages may have."""
    return max(1, context - answer_room(context) - tool_tokens - MARGIN)


def choose(rows: Sequence[Row], n_tokens: int) -> Prompt:
    cut = cut_history([_counted(row) for row in rows], n_tokens, NOTE_TOKENS)
    kept = _indices(cut.kept)
    dropped = sorted(set(range(len(rows))) - set(kept))
    messages = _messages(rows, kept, with_note=cut.n_dropped > 0)
    return Prompt(messages, dropped, cut.n_cuts, cut.n_over, _messages(rows, _indices(cut.ahead), with_note=True))


def _healed(messages: Sequence[Message]) -> list[Message]:
    """Calls without a result get one that says so: behind such a call, no service takes anything else."""
    healed: list[Message] = []
    missing: list[str] = []
    for message in messages:
        if message["role"] == "tool":
            missing = [call for call in missing if call != message["tool_call_id"]]
        else:
            healed += map(no_result, missing)
            missing = [str(call["id"]) for call in message.get("tool_calls") or []]
        healed.append(message)
    return [*healed, *map(no_result, missing)]


def _indices(ranges: Sequence[tuple[int, int]]) -> list[int]:
    return [index for begin, end in ranges for index in range(begin, end)]


def _messages(rows: Sequence[Row], kept: Sequence[int], *, with_note: bool) -> list[Message]:
    messages = _healed([rows[index].message for index in kept])
    if with_note:
        _put_note(messages)
    return messages


def _counted(row: Row) -> tuple[str, int, list[str], list[str]]:
    message = row.message
    calls = [str(call["id"]) for call in message.get("tool_calls") or []]
    results = [str(message["tool_call_id"])] if row.role == "tool" else []
    return row.role, row.n_tokens, calls, results


def _put_note(messages: list[Message]) -> None:
    """Into the first message of the user that is left: many templates know no system message but the first one."""
    for index, message in enumerate(messages):
        if message["role"] == "user":
            messages[index] = {**message, "content": NOTE + str(message["content"])}
            return


def estimate(text: str) -> int:
    return len(text.encode("utf-8", "replace")) // BYTES_PER_TOKEN + MESSAGE_TOKENS
