"""Sorts what a repository offers into whole models, one for each quantisation, and finds the one a user means."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from pyrun.models.find import PART, is_companion
from pyrun.models.hub import RemoteFile
from pyrun.models.quants import quant_of, spelled

SIZES = ("XXS", "XS", "S", "M", "L", "XL", "XXL")
MMPROJ_ORDER = ("F16", "BF16", "Q8_0", "F32")


@dataclass(frozen=True)
class Variant:
    """One model of a repository: a file, or all parts of a split set in their order."""

    name: str  # the path in the repository, without part number and ending
    quant: str  # it is "" where the name tells none
    files: tuple[RemoteFile, ...]

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)

    @property
    def label(self) -> str:
        return self.quant or PurePosixPath(self.name).name


@dataclass(frozen=True)
class Offer:
    """What can be downloaded from a repository."""

    models: tuple[Variant, ...]  # the smallest comes first
    projectors: tuple[Variant, ...]  # mmproj files, of which the usual choice comes first
    incomplete: tuple[str, ...]  # split sets of which parts are missing on the hub


@dataclass(frozen=True)
class Match:
    """The variants that fit the asked quantisation: one is an answer, several are a question."""

    variants: tuple[Variant, ...]
    is_exact: bool


def offer_of(files: Iterable[RemoteFile]) -> Offer:
    sets: dict[tuple[str, int], dict[int, RemoteFile]] = defaultdict(dict)
    for file in files:
        if not file.path.lower().endswith(".gguf"):
            continue
        part = PART.search(file.path)
        if part is None:
            sets[file.path[: -len(".gguf")], 1][1] = file
        else:
            sets[file.path[: part.start()], int(part.group(2))][int(part.group(1))] = file
    models, projectors, incomplete = [], [], []
    for (name, count), parts in sets.items():
        if sorted(parts) != list(range(1, count + 1)):
            incomplete.append(name)
            continue
        variant = Variant(name, quant_of(parts[1].path), tuple(parts[number] for number in sorted(parts)))
        base = PurePosixPath(name).name
        if "mmproj" in base.lower():
            projectors.append(variant)
        elif not is_companion(base):
            models.append(variant)
    models.sort(key=lambda v: (v.size, v.name))
    projectors.sort(key=lambda v: (_rank(v.quant), v.size, v.name))
    return Offer(tuple(models), tuple(projectors), tuple(sorted(incomplete)))


def _rank(quant: str) -> int:
    return MMPROJ_ORDER.index(quant) if quant in MMPROJ_ORDER else len(MMPROJ_ORDER)


def match(models: Sequence[Variant], wanted: str) -> Match:
    """Finds those of exactly the wanted quantisation or file name, else the nearest of its family, else none.

    The family of Q4_K_M is what differs in the last letter only: Q4_K_S, Q4_K_L, UD-Q4_K_XL. A Q4_0 is another kind
    of number with other kernels, and is not in it. `Q4_K` and `Q4` name the family itself.
    """
    file = wanted.lower().removesuffix(".gguf")
    named = [v for v in models if file in (v.name.lower(), PurePosixPath(v.name).name.lower())]
    exact = named or [v for v in models if v.quant and v.quant.lower() == wanted.lower()]
    exact = exact or [v for v in models if v.quant and _plain(v.quant) == _plain(wanted)]
    if exact:
        return Match(tuple(exact), True)
    asked, middle = _family(wanted)
    # Bits alone name several families, of which the K types are the better ones.
    families = [asked, f"{asked}_K", f"{asked}_0", f"{asked}_1"] if _is_bits(asked) else [asked]
    near: dict[tuple[int, ...], list[Variant]] = defaultdict(list)
    for variant in models:
        family, size = _family(variant.quant)
        if variant.quant and family in families:
            # The nearest comes first, of two the smaller, then what is spelled as it was asked.
            is_other = _prefix(variant.quant) != _prefix(wanted)
            near[families.index(family), abs(size - middle), size > middle, is_other].append(variant)
    return Match(tuple(near[min(near)]) if near else (), False)


def _plain(quant: str) -> str:
    """Takes the uploader's prefix off: UD-Q4_K_XL becomes Q4_K_XL."""
    return spelled(quant).removeprefix("UD-").removeprefix("i1-")


def _prefix(quant: str) -> str:
    return spelled(quant).removesuffix(_plain(quant))


def _is_bits(family: str) -> bool:
    """Q4 and IQ3 say the number of bits and nothing else."""
    return re.fullmatch(r"(I|T)?Q\d", family) is not None


def _family(quant: str) -> tuple[str, int]:
    """Q4_K_S becomes (Q4_K, 2). Where no size is named, the middle one is meant."""
    head, _, tail = _plain(quant).rpartition("_")
    if head and tail in SIZES:
        return head, SIZES.index(tail)
    return _plain(quant), SIZES.index("M")
