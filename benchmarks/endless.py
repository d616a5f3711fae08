"""What does a chat cost that outgrows its context? Ours, upstream's context shift, a client that drops the oldest.

    python -m benchmarks.endless [MODEL] [--turns 60] [--tokens 40000] [--ctx 8192] [--peers ours,shift,naive]
                               [-- FLAG ...]

Every turn goes through the OpenAI client, with the whole history, and a person reads for a while between two turns:
long enough for what is evaluated ahead to end. Counted are tokens that were evaluated, in turns and ahead, for each
token that was new: of the user's message and of the answer. With --check N, every N-th answer is compared with that of
a fresh server that is given the prompt of the messages that were kept. The two evaluate it in batches of other sizes,
so that the last bits differ: where they part, it is told how much likelier one token was than the other. At a tie that
is next to nothing, and `-- -ctk f32 -ctv f32 -fa off` makes ties rare: less is rounded. Then both are asked once more,
and it is told whether one of them answers otherwise than before: such a machine gives no text twice. The answers to who
drops the oldest are compared, too: they tell what a slot without a cache makes of it. What follows `--` goes to every
server.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import openai

from benchmarks import interrupt
from benchmarks.peers import Server
from benchmarks.text import words
from pyrun import console
from pyrun.home import Home, find_home
from pyrun.models.default import CHAT_TEMPLATE, ensure_default_model

ANSWER_TOKENS = 48
TOKENS_PER_WORD = 1.02  # rather fewer than any vocabulary makes of them
N_PROBS = 5  # of the likeliest tokens that are told
SYSTEM = "You are a careful assistant. " + words(60, "system")
PEERS = ("ours", "shift", "naive")
LONGEST_PAUSE = 600.0


@dataclass
class Outcome:
    peer: str
    n_new: int = 0  # tokens of users' messages and answers
    n_evaluated: int = 0  # tokens of prompts and answers that were, while somebody waited
    n_ahead: int = 0  # tokens that were evaluated while nobody waited
    n_cuts: int = 0
    n_dropped: int = 0  # messages, at the end
    errors: list[str] = field(default_factory=list)
    n_compared: int = 0
    gaps: list[float] = field(default_factory=list)  # of log-probabilities, where compared answers part
    drifts: list[float] = field(default_factory=list)  # of those of the tokens before, at most, of each answer
    n_unsteady: int = 0  # times that a server, asked again where answers parted, said something else
    prompt_ms: list[float] = field(default_factory=list)

    @property
    def per_new(self) -> float:
        return self.n_evaluated / self.n_new if self.n_new else 0.0


class Talk:
    """The same questions for every peer, and the answers that it gave."""

    def __init__(self, turns: int, tokens: int) -> None:
        self.messages: list[Any] = [{"role": "system", "content": SYSTEM}]
        self._words = max(8, int((tokens / turns - ANSWER_TOKENS) / TOKENS_PER_WORD))
        self._turn = 0

    def ask(self) -> None:
        self._turn += 1
        text = f"Question {self._turn}: {words(self._words, self._turn)}?"
        self.messages.append({"role": "user", "content": text})

    def answer(self, text: str) -> None:
        self.messages.append({"role": "assistant", "content": text})

    def drop_oldest_exchange(self) -> bool:
        if len(self.messages) < 4:
            return False
        del self.messages[1:3]
        return True


def flags(peer: str, args: argparse.Namespace) -> list[str]:
    common = ["--ctx-size", str(args.ctx), "--parallel", "1", "--no-webui", *args.flags]
    return common + {"ours": ["--context-overflow", "evict"], "shift": ["--context-shift"], "naive": []}[peer]


@contextmanager
def running(server: Server) -> Iterator[Server]:
    server.start()
    try:
        yield server
    finally:
        server.stop()


def measure(peer: str, server: Server, fresh: Server | None, args: argparse.Namespace) -> Outcome:
    outcome = Outcome(peer)
    talk = Talk(args.turns, args.tokens)
    # A connection that is kept would be closed by the server after 5 seconds, perhaps in the moment it is used again.
    each_its_own = {"Connection": "close"}
    client = openai.OpenAI(
        base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=3600, default_headers=each_its_own
    )
    n_dropped = 0
    for turn in range(1, args.turns + 1):
        talk.ask()
        outcome.n_new += count(server, talk.messages[-1]["content"])
        if peer == "naive":
            while count(server, *(m["content"] for m in talk.messages)) > args.ctx - 512:
                if not talk.drop_oldest_exchange():
                    break
        try:
            said = client.chat.completions.create(
                model="any",
                messages=talk.messages,
                max_tokens=ANSWER_TOKENS,
                temperature=0,
                logprobs=True,
                top_logprobs=N_PROBS,
            )
        except openai.APIStatusError as error:
            outcome.errors.append(f"turn {turn}: {error.status_code} {json.dumps(error.body)[:120]}")
            break
        timings: dict[str, Any] = said.timings  # type: ignore[attr-defined]
        text = said.choices[0].message.content or ""
        outcome.n_evaluated += timings["prompt_n"] + timings["predicted_n"]
        outcome.n_new += timings["predicted_n"]
        outcome.prompt_ms.append(timings["prompt_ms"])
        dropped = timings.get("context_dropped", {}).get("messages", 0)
        outcome.n_cuts += dropped > n_dropped
        n_dropped = outcome.n_dropped = dropped
        if fresh and turn % args.check == 0:
            console.say(f"{peer}: turn {turn} ({timings.get('cache_source', 'slot')}):")
            prompt = server.post("/apply-template", {"messages": talk.messages})["prompt"]
            choice: dict[str, Any] = said.choices[0].to_dict()
            check(outcome, choice["logprobs"]["content"], prompt, server, fresh)
        talk.answer(text)
        if peer == "ours":
            outcome.n_ahead = wait_until_quiet(server)
        console.say(
            f"{peer}: turn {turn}, {timings['cache_n']} reused, {timings['prompt_n']} evaluated in "
            f"{timings['prompt_ms'] / 1000:.1f} s, {dropped} messages left out, {outcome.n_ahead} tokens ahead so far"
        )
    return outcome


def check(outcome: Outcome, ours: Any, prompt: str, server: Server, fresh: Server) -> None:
    """Compares an answer with that of a fresh server; where they part, both are asked once more."""
    theirs = answer_of(fresh, prompt)
    met = compare(ours, theirs)
    console.say(f"  the answer {met}")
    outcome.n_compared += 1
    outcome.drifts.append(met.drift)
    if met.gap is None:
        return
    outcome.gaps.append(met.gap)
    for one, before in ((server, ours), (fresh, theirs)):
        again = compare(before, answer_of(one, prompt, cached=one is server))
        console.say(f"  asked again, the answer of {one.name} {again}")
        outcome.n_unsteady += again.gap is not None


@dataclass
class Comparison:
    """Of an answer with another to the same prompt, as that of a fresh server."""

    n_same: int  # tokens, from the first on
    drift: float  # of their log-probabilities, at most
    gap: float | None = None  # how much likelier the one's next token was than the other's; None: there is no other
    texts: tuple[str, str] = ("", "")  # from there on

    def __str__(self) -> str:
        if self.gap is None:
            return f"is the same, log-probabilities within {self.drift:.4f}"
        return (
            f"differs behind {self.n_same} tokens (log-probabilities within "
            f"{self.drift:.4f}), by {self.gap:.4f}: {self.texts[0]!r} and {self.texts[1]!r}"
        )


def answer_of(server: Server, prompt: str, cached: bool = False) -> Any:
    """Its tokens, each with those that were likeliest there."""
    body = {"prompt": prompt, "n_predict": ANSWER_TOKENS, "temperature": 0, "cache_prompt": cached, "n_probs": N_PROBS}
    return server.post("/completion", body)["completion_probabilities"]


def compare(ours: Any, theirs: Any) -> Comparison:
    pairs = list(zip(ours, theirs, strict=False))
    n_same = next((i for i, (a, b) in enumerate(pairs) if a["id"] != b["id"]), len(pairs))
    met = Comparison(n_same, max((abs(a["logprob"] - b["logprob"]) for a, b in pairs[:n_same]), default=0.0))
    if n_same < len(pairs):
        a, b = pairs[n_same]
        met.gap = max(behind(a, b["id"]), behind(b, a["id"]))
    elif len(ours) != len(theirs):
        met.gap = math.inf
    met.texts = (text_of(ours[n_same:]), text_of(theirs[n_same:]))
    return met


def text_of(tokens: Sequence[Any]) -> str:
    return "".join(token["token"] for token in tokens)


def behind(entry: dict[str, Any], token: int) -> float:
    """How much less likely the token was than the one that was taken."""
    known = {other["id"]: other["logprob"] for other in entry["top_logprobs"]}
    return float(entry["logprob"] - known.get(token, -math.inf))


def count(server: Server, *texts: str) -> int:
    return sum(len(server.post("/tokenize", {"content": text})["tokens"]) + 5 for text in texts)


def wait_until_quiet(server: Server) -> int:
    """Returns when nothing is evaluated ahead any more, with the tokens that were so far."""
    end = time.monotonic() + LONGEST_PAUSE
    before = -1
    while time.monotonic() < end:
        time.sleep(1.0)
        ahead = int(server.get("/cache")["overflow"]["tokens_ahead"])
        slots: Any = server.get("/slots")
        busy = any(slot["is_processing"] for slot in slots)
        if ahead == before and not busy:
            break
        before = ahead
    return ahead


def main() -> None:
    interrupt.heed()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", type=Path, help="a GGUF file (default: the built-in model)")
    parser.add_argument("--turns", type=int, default=60)
    parser.add_argument("--tokens", type=int, default=40_000, help="of the whole conversation")
    parser.add_argument("--ctx", type=int, default=8192)
    parser.add_argument("--peers", default=",".join(PEERS))
    parser.add_argument("--check", type=int, default=0, help="compare every n-th answer with a fresh server's")
    parser.add_argument("--upstream", type=Path, help="an unpatched llama-server, for shift and naive")
    parser.add_argument("--out", type=Path, help="write the outcome as JSON lines, too")
    cut = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    args = parser.parse_args(sys.argv[1:cut])
    args.flags = sys.argv[cut + 1 :]
    home: Home = find_home()
    model = args.model or ensure_default_model(home)
    template = None if args.model else CHAT_TEMPLATE
    ours = home.server_binary("cpu")
    with tempfile.TemporaryDirectory() as folder:
        for peer in args.peers.split(","):
            program = ours if peer == "ours" else args.upstream or ours
            cache = Path(folder) / "kv" if peer == "ours" else None
            log = Path(folder) / f"{peer}.log"
            server = Server(peer, program, model, flags(peer, args), log, cache=cache, chat_template=template)
            with running(server):
                if peer != "shift" and args.check:  # whose answers are of other prompts, and only alike
                    with running(
                        Server("fresh", program, model, flags("naive", args), log, chat_template=template)
                    ) as fresh:
                        outcome = measure(peer, server, fresh, args)
                else:
                    outcome = measure(peer, server, None, args)
            report(outcome)
            if args.out:
                with args.out.open("a") as file:
                    file.write(json.dumps(asdict(outcome)) + "\n")


def report(o: Outcome) -> None:
    with_ahead = (o.n_evaluated + o.n_ahead) / o.n_new if o.n_new else 0.0
    console.say(
        f"{o.peer}: {len(o.prompt_ms)} turns, {o.n_new} new tokens, {o.n_evaluated} evaluated in turns "
        f"({o.per_new:.2f} for each new one), {o.n_ahead} ahead ({with_ahead:.2f} with those), {o.n_cuts} cuts, "
        f"{o.n_dropped} messages left out at the end, longest wait {max(o.prompt_ms, default=0) / 1000:.1f} s"
    )
    if o.n_compared:
        console.say(f"  {len(o.gaps)} of {o.n_compared} answers differ{by(o.gaps)}")
        console.say(f"  {o.n_unsteady} times a server that was asked again said something else")
        console.say(f"  log-probabilities of equal tokens differ by at most {max(o.drifts):.4f}")
    for error in o.errors:
        console.say(f"  {error}")


def by(gaps: Sequence[float]) -> str:
    return f"; where they part, log-probabilities differ by {', '.join(f'{gap:.4f}' for gap in gaps)}" if gaps else ""


if __name__ == "__main__":
    main()
