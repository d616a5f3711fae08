"""Says what the right answer to a prompt is, and whether another one is the same but for rounding.

The right one comes from a server without the cache that evaluates every prompt from its first token, alone. Batches
that begin elsewhere, or that other slots share, round differently, and a router of experts may choose another one for
it. So an answer that is not quite the same is compared with more evaluations by that server, each in other pieces: a
wrong state is far from all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from cache_server import Answer, CacheServer, Messages, Tokens, say

from .operations import ANSWER_TOKENS, Edited, Further, Parted, Prompt, Raw, Talk

TOP = 10  # of the likeliest tokens whose log-probabilities are compared
# In log-probabilities. With all in f32, evaluations in other batches differ by 0.00001 at most, but those of
# swa-gemma3 by 0.003, presumably because the CPU backend looks GELU up in a table of 16 bits.
SAME = 0.005
TIE = 0.1  # what rounding makes of it where a router or the choice of a token was close


@dataclass(frozen=True)
class Verdict:
    """How far an answer is from the nearest right one."""

    apart: float
    is_tie: bool = False
    is_wrong: bool = False


@dataclass
class Referee:
    server: CacheServer
    answers: dict[tuple[int, ...], Answer] = field(default_factory=dict)
    prompts: dict[Prompt, Tokens] = field(default_factory=dict)

    def messages(self, prompt: Talk | Edited) -> Messages:
        if isinstance(prompt, Edited):
            whole = self.messages(prompt.talk)
            at = 2 * prompt.at + bool(prompt.talk.system)
            edited = [] if prompt.question is None else [say("user", prompt.question), whole[at + 1]]
            return [*whole[:at], *edited, *whole[at + 2 :]]
        messages = [say("system", prompt.system)] if prompt.system else []
        for n, question in enumerate(prompt.questions, 1):
            messages.append(say("user", question))
            if n < len(prompt.questions):
                asked = replace(prompt, questions=prompt.questions[:n])
                messages.append(say("assistant", self.answer(self.tokens(asked)).text))
        return messages

    def tokens(self, prompt: Prompt) -> Tokens:
        if prompt not in self.prompts:
            self.prompts[prompt] = self._tokens(prompt)
        return self.prompts[prompt]

    def _tokens(self, prompt: Prompt) -> Tokens:
        if isinstance(prompt, Raw):
            return list(prompt.tokens)
        if isinstance(prompt, Further):
            start = self.tokens(prompt.start)
            return [*start, *self.answer(start).tokens, *prompt.tokens]
        if isinstance(prompt, Parted):
            return [*self.tokens(prompt.start)[: prompt.kept], *prompt.tokens]
        return self.server.prompt(self.messages(prompt))

    def answer(self, tokens: Tokens) -> Answer:
        key = tuple(tokens)
        if key not in self.answers:
            self.answers[key] = self._evaluate(tokens)
        return self.answers[key]

    def judge(self, tokens: Tokens, got: Answer) -> Verdict:
        apart = distance(self.answer(tokens), got)
        if apart < SAME:
            return Verdict(apart)
        opinions = [self.answer(tokens), *self._opinions(tokens, got.reused)]
        nearest = min(distance(opinion, got) for opinion in opinions)
        if nearest < SAME:
            return Verdict(nearest, is_tie=True)
        unsure = max(distance(one, other) for one in opinions for other in opinions)
        if nearest < TIE and nearest < 2 * unsure:
            return Verdict(nearest, is_tie=True)
        return Verdict(nearest, is_wrong=True)

    def _opinions(self, tokens: Tokens, reused: int) -> Iterator[Answer]:
        """The same prompt in two pieces: where the other server cut it, and elsewhere. And with the last tokens that it
        reused one by one, as they were when they were an answer."""
        size = len(tokens)
        for cut in sorted({reused, size // 3, size // 2, size - 4, size - 1}):
            if 0 < cut < size:
                yield self._evaluate(tokens, cut)
        if ANSWER_TOKENS < reused < size:
            for first in {reused - ANSWER_TOKENS, reused - 2}:
                yield self._evaluate(tokens, *range(first, reused + 1))

    def _evaluate(self, tokens: Tokens, *cuts: int) -> Answer:
        for n, cut in enumerate(cuts):
            self.server.complete(tokens[:cut], n_predict=0, cache_prompt=n > 0)
        answer = self.server.complete(tokens, ANSWER_TOKENS, n_probs=TOP, cache_prompt=bool(cuts))
        assert len(answer.tokens) == ANSWER_TOKENS, answer.timings
        return answer


def distance(right: Answer, got: Answer) -> float:
    """Between log-probabilities, up to where a tie parts the two. The right one may be longer."""
    n = len(got.tokens)
    return got.apart(replace(right, tokens=right.tokens[:n], logprobs=right.logprobs[:n]))


def common(one: Tokens, other: Tokens) -> int:
    return next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
