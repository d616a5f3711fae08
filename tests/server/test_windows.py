"""Requests at the same time, on models with a sliding window, in a K/V cache that slots share."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor

import pytest
from cache_server import Serve, toy

from toys.corpus import TEXT

pytestmark = pytest.mark.server

# With flash attention the CPU backend rounds to 16 bits, differently for batches of other shapes.
EXACT = ("-ctk", "f32", "-ctv", "f32", "-fa", "off")


@pytest.mark.parametrize("name", ["swa-gemma3", "swa-gptoss"])
def test_answers_are_those_of_a_lone_request(serve: Serve, name: str) -> None:
    """Upstream forgets cells of a window that a batch in several parts still looks at: a quarter was wrong."""
    lone = serve(toy(name), "--parallel", "1", "--ctx-size", "2048", *EXACT)
    server = serve(toy(name), "--parallel", "4", "--kv-unified", "--ctx-size", "8192", "-ub", "256", *EXACT)
    text = lone.tokens(TEXT) * 2
    dice = random.Random(1)
    worst = []
    for _ in range(4):
        prompts = [text[start : start + dice.randrange(300, 900)] for start in dice.sample(range(900), 4)]
        with ThreadPoolExecutor(4) as clients:
            answers = list(clients.map(lambda p: server.complete(p, n_predict=8, cache_prompt=False), prompts))
        wanted = [lone.complete(prompt, n_predict=8, cache_prompt=False) for prompt in prompts]
        worst += [answer.apart(right) for answer, right in zip(answers, wanted, strict=True)]
    assert max(worst) < 0.05, sorted(worst)[-8:]
