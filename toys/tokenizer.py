"""The vocabulary all toy models share: byte-level BPE that takes any text, and a ChatML chat template."""

import functools
import itertools
import re
from collections import Counter
from dataclasses import dataclass

from .corpus import TEXT

VOCABULARY_SIZE = 768  # a multiple of 64, so that no backend pads the output matrix

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")

CHAT_TEMPLATE = """\
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}
        {{- messages[0].content + '\\n\\n' }}
    {%- endif %}
    {{- 'Tools:\\n' }}
    {%- for tool in tools %}
        {{- tool | tojson + '\\n' }}
    {%- endfor %}
    {{- 'Call one with <tool_call>{"name": ..., "arguments": ...}</tool_call><|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if not (tools and loop.first and message.role == 'system') %}
        {{- '<|im_start|>' + message.role + '\\n' }}
        {%- if message.content is string %}
            {{- message.content }}
        {%- endif %}
        {%- for call in message.tool_calls or [] %}
            {{- '\\n<tool_call>{"name": ' + call.function.name | tojson }}
            {{- ', "arguments": ' + call.function.arguments | tojson + '}</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""

# How the gpt-2 pre-tokenizer cuts ASCII text; a merge never crosses such a cut.
_PIECE = re.compile(r"'(?:s|t|re|ve|m|ll|d)| ?[A-Za-z]+| ?[0-9]+| ?[^\sA-Za-z0-9]+|\s+(?!\S)|\s+")

Pair = tuple[str, str]


@dataclass(frozen=True)
class Vocabulary:
    """Tokens in id order (256 bytes, merges, special ones last) and the merges in rank order."""

    tokens: tuple[str, ...]
    merges: tuple[Pair, ...]
    special: tuple[str, ...]

    def id_of(self, token: str) -> int:
        return self.tokens.index(token)

    def bytes_of(self, token_id: int) -> bytes:
        token = self.tokens[token_id]
        if token in self.special:
            return b""
        letters = {letter: byte for byte, letter in enumerate(byte_letters())}
        return bytes(letters[letter] for letter in token)

    def is_printable(self, token_id: int) -> bool:
        """Whether the token stands for printable ASCII and nothing else."""
        text = self.bytes_of(token_id)
        return bool(text) and all(0x20 <= byte <= 0x7E for byte in text)


@functools.cache
def byte_letters() -> tuple[str, ...]:
    """The visible letter that byte-level BPE writes for each byte: itself, or one from U+0100 on."""
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    spare = iter(range(0x100, 0x200))
    return tuple(chr(byte if byte in visible else next(spare)) for byte in range(256))


@functools.cache
def vocabulary() -> Vocabulary:
    letters = byte_letters()
    merges = _learn_merges(VOCABULARY_SIZE - len(letters) - len(SPECIAL))
    tokens = (*letters, *(left + right for left, right in merges), *SPECIAL)
    return Vocabulary(tokens, merges, SPECIAL)


def _learn_merges(count: int) -> tuple[Pair, ...]:
    """The `count` most useful merges of the corpus; ties go to the alphabet, never to hash order."""
    letters = byte_letters()
    pieces = Counter(_PIECE.findall(TEXT))
    words = {tuple(letters[byte] for byte in piece.encode()): n for piece, n in pieces.items()}
    merges: list[Pair] = []
    made: set[str] = set()
    while len(merges) < count:
        pairs: Counter[Pair] = Counter()
        for word, n in words.items():
            for pair in itertools.pairwise(word):
                # Two merges may spell the same token; the vocabulary lists each spelling once.
                if pair[0] + pair[1] not in made:
                    pairs[pair] += n
        if not pairs:
            raise ValueError(f"the corpus yields {len(merges)} merges, {count} are wanted: give it more text")
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        merges.append(best)
        made.add(best[0] + best[1])
        words = {_merge(word, best): n for word, n in words.items()}
    return tuple(merges)


def _merge(word: tuple[str, ...], pair: Pair) -> tuple[str, ...]:
    merged: list[str] = []
    at = 0
    while at < len(word):
        if word[at : at + 2] == pair:
            merged.append(pair[0] + pair[1])
            at += 2
        else:
            merged.append(word[at])
            at += 1
    return tuple(merged)
