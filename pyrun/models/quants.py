"""Reads the quantisation of a model from its file's name."""

from __future__ import annotations

import re
from pathlib import PurePosixPath

# Uploaders write quantisations so: Q4_K_M, IQ4_XS, UD-Q4_K_XL, i1-Q5_K_S, MXFP4_MOE, BF16, Q4_0_4_8 ...
QUANT = re.compile(
    r"(?<![A-Z0-9])(?:(?:UD|I1)-)?"
    r"(?:(?:I?Q|TQ)\d(?:_(?:\d|K|XXS|XS|S|M|L|XL|XXL|NL))*|(?:MX|NV)FP4(?:_MOE)?|BF16|FP?16|FP?32)(?![A-Z0-9])",
    re.IGNORECASE,
)


def quant_of(path: str) -> str:
    """Finds the quantisation in a file's name, else in its folder's: `UD-Q4_K_XL`, or "" where there is none."""
    pure = PurePosixPath(path)
    for text in (pure.name, *(parent.name for parent in pure.parents)):
        found = QUANT.findall(text)
        if found:
            return spelled(found[-1])
    return ""


def spelled(quant: str) -> str:
    """Writes it in the usual letters: q4_k_m becomes Q4_K_M, fp16 becomes F16."""
    text = quant.upper().replace("FP16", "F16").replace("FP32", "F32")
    return "i1-" + text[3:] if text.startswith("I1-") else text
