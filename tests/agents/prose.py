"""Text that stands in for text we may not keep: of the same length, the same each time, and never twice the same.

A fixture writes `{{17:120}}` where line 17 of the recording had 120 characters.
"""

from __future__ import annotations

import random
import re

MARK = re.compile(r"\{\{(\d+):(\d+)\}\}")
WORDS = """
    amber basin cedar delta ember fjord glade haven inlet jetty knoll larch meadow north oasis pebble quarry ridge slope
    thicket upland valley willow yonder arch bridge canal dock edge ferry gate harbour isle lane mill orchard path quay
    road spring trail vault wharf field grove hedge marsh pond reed stone tide wave cloud frost mist rain
"""


def mark(number: int, length: int) -> str:
    return f"{{{{{number}:{length}}}}}"


def prose(number: int, length: int) -> str:
    """Words that begin with the number, so that two lines part where they begin."""
    drawn, words = random.Random(number), WORDS.split()
    text = f"{number:x}"
    while len(text) < length:
        text += " " + drawn.choice(words)
    return text[:length]


def expand(text: str, shrink: int = 1) -> str:
    """The text with its marks written out; a toy that cannot read it all gets lines `shrink` times as short."""
    return MARK.sub(lambda found: prose(int(found[1]), -(-int(found[2]) // shrink)), text)
