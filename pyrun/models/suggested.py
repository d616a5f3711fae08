"""Which models to begin with, by what fits into the memory of a machine. It is pure: bytes in, models out."""

from __future__ import annotations

from dataclasses import dataclass

SHOWN = 3
SHARE = 0.7  # of the memory: the rest is for the context


@dataclass(frozen=True)
class Suggestion:
    name: str  # as --download takes it
    size: int  # bytes, about
    note: str


# From the smallest to the largest; those that few experts work in are quick where the memory is slow.
KNOWN = (
    Suggestion("unsloth/Qwen3-0.6B-GGUF:Q8_0", 640_000_000, "small, for short answers"),
    Suggestion("unsloth/Qwen3-1.7B-GGUF:Q4_K_M", 1_110_000_000, "small"),
    Suggestion("unsloth/Qwen3-4B-Instruct-2507-GGUF:Q4_K_M", 2_500_000_000, "for a laptop, calls tools"),
    Suggestion("unsloth/Qwen3-8B-GGUF:Q4_K_M", 5_030_000_000, "reasons before it answers"),
    Suggestion("ggml-org/gpt-oss-20b-GGUF", 12_100_000_000, "a mixture, quick for its size"),
    Suggestion("unsloth/Qwen3-30B-A3B-Instruct-2507-GGUF:Q4_K_M", 18_600_000_000, "a mixture, quick, for agents"),
    Suggestion("ggml-org/gpt-oss-120b-GGUF", 63_400_000_000, "a large mixture"),
)


def suggestions(memory: int) -> list[Suggestion]:
    """The largest that fit, the largest first."""
    return [one for one in reversed(KNOWN) if one.size <= memory * SHARE][:SHOWN]
