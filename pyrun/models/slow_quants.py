"""Knows which quantisations evaluate prompts slowly on a CPU: nobody wrote code for several of their rows at once.

The type tables of llama.cpp's ggml-cpu (repack.cpp) say so, for processors with dot products (ARM) or AVX2 (x86). On
two ARM cores, SmolLM2-135M in Q4_1 was measured at 75-120 tokens/s, slower than plain fp32 elsewhere (130-200).
"""

from __future__ import annotations

import re

# The codebook types look their values up in tables, on every processor.
CODEBOOK = ("IQ1", "IQ2", "IQ3")
SLOW = {
    "ARM": (*CODEBOOK, "IQ4_XS", "Q2_K", "Q3_K", "Q4_1", "Q5_0", "Q5_1"),
    "x86": CODEBOOK,
}
BETTER = {"ARM": "Q4_0, Q4_K_M and Q8_0", "x86": "Q4_0, Q4_K_M and IQ4_NL"}


def family_of_cpu(machine: str) -> str | None:
    """Makes ARM or x86 of what platform.machine() says, and None where nothing is known."""
    name = machine.lower()
    if name.startswith(("aarch64", "arm")):
        return "ARM"
    if re.fullmatch(r"x86_64|amd64|i[3-6]86", name):
        return "x86"
    return None


def slow_on_cpu(quant: str, machine: str) -> str | None:
    """Says what to tell a user who wants this quantisation on this machine, if anything."""
    cpu = family_of_cpu(machine)
    if cpu is None or not any(re.search(rf"(^|-){slow}(_|$)", quant.upper()) for slow in SLOW[cpu]):
        return None
    return f"{quant} is slow on {cpu} processors: it has no fast kernels there; {BETTER[cpu]} have"
