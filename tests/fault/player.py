"""Plays operations against a server with the cache, and checks all that can be checked after each of them.

- Every answer is the referee's.
- A request reuses no more than its user asked before and did not have removed.
- Nothing takes longer than `DEADLINE`, no request is refused, and the process ends only when it is told to.
"""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from typing import Any

import requests
from cache_server import Answer, CacheServer, Tokens, chat_answers, completion
from urllib3.exceptions import ReadTimeoutError

from .operations import (
    Ask,
    Edited,
    Operation,
    RemoveConversations,
    RemoveUser,
    Restart,
    Setup,
    Sleep,
    SlotFile,
    Talk,
    Together,
)
from .referee import TOP, Referee, common

DEADLINE = 60.0  # seconds; the longest prompt takes less than one
POLL = 0.05


class Fault(Exception):
    """Something that must not happen. `what` is a column of the table: wrong, hung or broken."""

    def __init__(self, what: str, text: str) -> None:
        super().__init__(f"{what}: {text}")
        self.what = what


@dataclass
class Tally:
    answers: int = 0
    ties: int = 0
    wrong: int = 0
    hung: int = 0
    broken: int = 0
    restarts: int = 0
    kills: int = 0
    removals: int = 0
    sleeps: int = 0
    cancels: int = 0
    reused: int = 0  # tokens
    evaluated: int = 0
    apart: float = 0.0  # the most that was taken for rounding

    def add(self, other: Tally) -> None:
        for f in fields(self):
            mine, theirs = getattr(self, f.name), getattr(other, f.name)
            setattr(self, f.name, max(mine, theirs) if f.name == "apart" else mine + theirs)


class Player:
    """`start` starts the server with the flags and the folder of the round."""

    def __init__(self, start: Callable[[], CacheServer], setup: Setup, referee: Referee, strict: bool) -> None:
        self.start = start
        self.strict = strict  # whether turns that never ended must be listed, too
        self.cut_off = False  # whether there may be any
        self.setup = setup
        self.referee = referee
        self.tally = Tally()
        self.known: dict[str, list[Tokens]] = defaultdict(list)  # what each user may reuse
        self.passed_on: list[Tokens] = []  # and what everybody may, because a slot's file brought it back
        self.server = start()

    def play(self, operation: Operation) -> str:
        """What came of it, in a few words. Raises Fault."""
        match operation:
            case Ask():
                told = self._ask([operation])
            case Together():
                told = self._ask(list(operation.asks))
            case SlotFile():
                told = self._slot_file(operation)
            case RemoveConversations():
                told = self._remove_conversations(operation)
            case RemoveUser():
                told = self._remove_user(operation)
            case Sleep():
                told = self._sleep(operation)
            case Restart():
                told = self._restart(operation)
        self._check_alive()
        return told

    def close(self) -> None:
        """Ends the round as it should end: with sound files and a polite stop."""
        self._call("GET", "/slots")  # a server that sleeps has closed its cache; this wakes it
        state = self._call("GET", "/cache").json()
        if state["enabled"] != self.setup.cached:
            raise Fault("broken", f"the cache is not as asked for: {state}")
        if any(state.get("damaged", {}).values()):
            raise Fault("broken", f"damaged files: {state['damaged']}")
        self._stop()

    # Asking

    def _ask(self, asks: list[Ask]) -> str:
        prompts = [self.referee.tokens(ask.prompt) for ask in asks]
        whole = [[*tokens, *self.referee.answer(tokens).tokens] for tokens in prompts]
        may_reuse = [
            max(
                (
                    common(tokens, seen)
                    for seen in [
                        *self.known[ask.user],
                        *self.passed_on,
                        # Those that ask at the same time may be faster.
                        *(whole[j] for j, other in enumerate(asks) if other.user == ask.user and j != i),
                    ]
                ),
                default=0,
            )
            for i, (ask, tokens) in enumerate(zip(asks, prompts, strict=True))
        ]
        for ask, tokens in zip(asks, whole, strict=True):
            self.known[ask.user].append(tokens)
        if len(asks) == 1:
            answered = [self._send(asks[0], prompts[0])]
        else:
            with ThreadPoolExecutor(len(asks)) as clients:
                answered = list(clients.map(self._send, asks, prompts))
        return " | ".join(map(self._check, asks, prompts, may_reuse, answered))

    def _check(self, ask: Ask, tokens: Tokens, may_reuse: int, answers: list[Answer]) -> str:
        if not answers:
            self.tally.cancels += 1
            self.cut_off = True
            return f"{len(tokens)} tokens, hung up"
        told = []
        for n, answer in enumerate(answers):
            verdict = self.referee.judge(tokens, answer)
            source = answer.timings.get("cache_source")
            what = f"{answer.reused} of {len(tokens)} tokens from {source}, {verdict.apart:.5f} apart"
            told.append(what + (" (a tie)" if verdict.is_tie else ""))
            if len(answer.tokens) != ask.n_predict or verdict.is_wrong:
                right = self.referee.answer(tokens)
                raise Fault("wrong", f"{ask}: {what}: {answer.tokens} is not {right.tokens}; {answer.timings}")
            self.tally.answers += 1
            self.tally.ties += verdict.is_tie
            self.tally.apart = max(self.tally.apart, verdict.apart)
            self.known[ask.user].append([*tokens, *answer.tokens])
            if n > 0:
                continue  # further answers to a prompt take its state from the first one
            self.tally.reused += answer.reused
            self.tally.evaluated += answer.prompt_size - answer.reused
            if answer.prompt_size != len(tokens):
                raise Fault("broken", f"{ask}: {answer.prompt_size} tokens are reported, {len(tokens)} were sent")
            # One more may be right by chance, where a client hung up before it saw all of the answer.
            if answer.reused > may_reuse + (may_reuse > 0):
                raise Fault("broken", f"{ask}: {what}, of which the user may reuse {may_reuse}; {answer.timings}")
        return "; ".join(told)

    def _send(self, ask: Ask, tokens: Tokens) -> list[Answer]:
        """The answers; none when the client hung up before."""
        options: dict[str, Any] = {"temperature": 0}
        options |= {"llama_user_id": ask.user} if ask.user else {}
        options |= {"id_slot": ask.slot} if ask.slot is not None else {}
        if isinstance(ask.prompt, Talk | Edited) and not ask.streamed:
            messages = self.referee.messages(ask.prompt)
            body = {"messages": messages, "max_tokens": ask.n_predict, "logprobs": True, "top_logprobs": TOP}
            response = self._post(ask, "/v1/chat/completions", body | options | {"n": ask.answers})
            return chat_answers(response.json()) if response else []
        body = {"prompt": tokens, "n_predict": ask.n_predict, "n_probs": TOP, "return_tokens": True}
        if ask.streamed:
            return self._stream(ask, body | options | {"stream": True})
        response = self._post(ask, "/completion", body | options | {"n_cmpl": ask.answers})
        answers = response.json() if response else []
        return [completion(answer) for answer in (answers if isinstance(answers, list) else [answers])]

    def _post(self, ask: Ask, path: str, body: dict[str, Any]) -> requests.Response | None:
        if ask.leaves_after is None:
            return self._call("POST", path, body)
        try:
            return self._call("POST", path, body, seconds=ask.leaves_after)
        except Fault as fault:
            if fault.what == "hung":
                return None
            raise

    def _stream(self, ask: Ask, body: dict[str, Any]) -> list[Answer]:
        ends = time.monotonic() + DEADLINE
        parts: list[dict[str, Any]] = []
        try:
            with self._call("POST", "/completion", body, stream=True) as response:
                for line in response.iter_lines():
                    if line.startswith(b"data: {"):
                        parts.append(json.loads(line.removeprefix(b"data: ")))
                    if time.monotonic() > ends:
                        raise Fault("hung", f"{ask}: the stream does not end")
                    if ask.leaves_at is not None and len(parts) >= ask.leaves_at:
                        return []
        except requests.RequestException as error:
            raise self._lost(f"{ask}: {error!r}") from error
        if not parts or "timings" not in parts[-1]:
            raise Fault("broken", f"{ask}: the stream ends early: {parts[-1:]}")
        whole = {
            "content": "".join(part["content"] for part in parts),
            "tokens": [token for part in parts[:-1] for token in part["tokens"]],
            "completion_probabilities": [p for part in parts[:-1] for p in part.get("completion_probabilities", [])],
            "timings": parts[-1]["timings"],
        }
        return [completion(whole)]

    def _call(
        self,
        method: str,
        path: str,
        body: object = None,
        good: tuple[int, ...] = (200,),
        seconds: float = DEADLINE,
        stream: bool = False,
    ) -> requests.Response:
        try:
            response = requests.request(method, self.server.url + path, json=body, timeout=seconds, stream=stream)
        except requests.RequestException as error:
            # Time that runs out within the body is told as a lost connection.
            if isinstance(error, requests.Timeout) or isinstance((*error.args, None)[0], ReadTimeoutError):
                raise Fault("hung", f"{method} {path}: nothing within {seconds} s") from error
            raise self._lost(f"{method} {path}: {error!r}") from error
        if response.status_code not in good:
            raise Fault("broken", f"{method} {path}: {response.status_code} {response.text[:500]}")
        return response

    # Operators

    def _wait_until_idle(self) -> None:
        """Clients that hung up may still be served for a moment."""
        if not self._is_asleep():  # asking for the slots would wake it
            busy = "is_processing"
            self._wait(lambda: not any(slot[busy] for slot in self._call("GET", "/slots").json()), "idle slots")

    def _is_asleep(self) -> bool:
        return bool(self._call("GET", "/props").json()["is_sleeping"])

    def _slot_file(self, operation: SlotFile) -> str:
        path = f"/slots/{operation.slot}?action={operation.action}"
        # Not every kind of memory can be saved into a file, and there may be none yet.
        good = (200,) if operation.action == "erase" else (200, 400)
        response = self._call("POST", path, {"filename": operation.file}, good)
        if operation.action == "restore" and response.status_code == 200:
            self.passed_on = [tokens for seen in self.known.values() for tokens in seen]
        return f"{response.status_code}"

    def _remove_conversations(self, operation: RemoveConversations) -> str:
        self._wait_until_idle()
        self._call("POST", "/cache/flush")  # what waits for the writer is not listed yet
        query = f"?user_id={operation.user}" if operation.user else ""
        listed = [c["hash"] for c in self._call("GET", f"/cache/conversations{query}").json()["conversations"]]
        removed = listed
        if operation.place is not None and listed:
            removed = [listed[operation.place % len(listed)]]
        for name in removed:
            self._call("DELETE", f"/cache/conversations/{name}{query}")
        left = [c["hash"] for c in self._call("GET", f"/cache/conversations{query}").json()["conversations"]]
        # On a busy machine, a client that hung up within milliseconds may be served only now, after the removal.
        late = set(left) - set(listed)
        if set(left) - late != set(listed) - set(removed):
            raise Fault("broken", f"{operation}: {removed} of {listed} were removed, {left} are left")
        self.tally.removals += len(removed)
        # What found no room was never stored, and so never listed, but a slot may still hold it. What was cut off has
        # pages and anchors, and no end of a turn under which it would be listed.
        if operation.place is None and not late and self.setup.roomy and (self.strict or not self.cut_off):
            self.known[operation.user].clear()
        return f"{len(removed)} of {len(listed)}"

    def _remove_user(self, operation: RemoveUser) -> str:
        self._wait_until_idle()
        freed = self._call("DELETE", f"/cache/users/{operation.user}").json()["bytes_freed"]
        self.known[operation.user].clear()
        self.tally.removals += 1
        return f"{freed} bytes"

    def _sleep(self, operation: Sleep) -> str:
        self.tally.sleeps += 1
        if operation.seconds is not None:
            time.sleep(operation.seconds)
            return ""
        self._wait(self._is_asleep, "sleep")
        return "it sleeps"

    def _restart(self, operation: Restart) -> str:
        if operation.kill:
            self.server.kill()
            self.cut_off = True
            self.tally.kills += 1
        else:
            self._stop()
            self.tally.restarts += 1
        self.server = self.start()
        return ""

    def _stop(self) -> None:
        self._wait(self.server.can_be_stopped, "what SIGTERM calls")
        self.server.process.send_signal(signal.SIGTERM)
        try:
            code = self.server.process.wait(DEADLINE)
        except subprocess.TimeoutExpired as error:
            raise Fault("hung", f"SIGTERM does not end it:\n{self._end_of_log()}") from error
        if code != 0:
            raise Fault("broken", f"SIGTERM ends it with code {code}:\n{self._end_of_log()}")

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        ends = time.monotonic() + DEADLINE
        while not condition():
            if time.monotonic() > ends:
                raise Fault("hung", f"no {what} within {DEADLINE} s")
            time.sleep(POLL)

    # Its life

    def _lost(self, what: str) -> Fault:
        """A connection that broke: because the process did?"""
        time.sleep(1)  # it may still write a core
        code = self.server.process.poll()
        if code is None:
            return Fault("broken", what)
        return Fault("broken", f"{what}: the server ended with code {code}:\n{self._end_of_log()}")

    def _check_alive(self) -> None:
        if self.server.process.poll() is not None:
            raise self._lost("after the last request")

    def _end_of_log(self) -> str:
        return "\n".join(self.server.said().splitlines()[-15:])
