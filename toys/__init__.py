"""Toy models: tiny, deterministic GGUF files, one for every kind of memory the server knows.

    path = toys.ensure("hybrid-moe", folder)

Weights are random but tamed: greedy text is printable and never ends early, and the next token depends on
what stood far back in the prompt, so a state that was restored wrongly shows in the log-probabilities.
"""

from .catalogue import MODELS, Memory, Toy
from .files import ensure, generator_digest, write
from .tokenizer import CHAT_TEMPLATE, Vocabulary, vocabulary
from .weights import Weights

__all__ = [
    "CHAT_TEMPLATE",
    "MODELS",
    "Memory",
    "Toy",
    "Vocabulary",
    "Weights",
    "ensure",
    "generator_digest",
    "vocabulary",
    "write",
]
