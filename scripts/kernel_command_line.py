"""Edits kernel parameters in the text of boot loader files, and leaves every other byte. It touches no files."""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

# These kinds of files are known: /etc/default/grub, a snippet in grub.d, an entry of systemd-boot, /etc/kernel/cmdline.
GRUB, SNIPPET, ENTRY, CMDLINE = "grub", "grub snippet", "entry", "cmdline"

FALLBACK = re.compile(r"fallback|rescue|recovery", re.IGNORECASE)


class Failure(Exception):
    """Ends the program with `error: message` and, apart from it, `hint: remedy`."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


@dataclass(frozen=True)
class Piece:
    """A stretch of a file that is kernel command line. Where it does not grow, only values that stand there change."""

    start: int
    end: int
    grows: bool
    bare: bool = False  # it is a shell word without quotes: a second word needs them


VARIABLE = "GRUB_CMDLINE_LINUX_DEFAULT"
ASSIGNS = re.compile(rf"(?<!\w){VARIABLE}\+?=")
ASSIGNMENT = re.compile(
    rf"""[ \t]*(?:export[ \t]+)?{VARIABLE}(?P<plus>\+?)=
    (?: "(?P<double>(?:[^"\\]|\\.)*)" | '(?P<single>[^']*)' | (?P<bare>[^\s"'\\\#;&|<>()$`]*) )
    (?= [ \t\r]*$ | [ \t]*; | [ \t]+\# )""",
    re.VERBOSE,
)
OPTIONS = re.compile(r"^[ \t]*options(?=[ \t\r]|$)(?P<body>[^\n]*)", re.MULTILINE)
KERNEL = re.compile(r"^[ \t]*(?:linux|uki)[ \t]", re.MULTILINE)
WORDS = re.compile(r"^(?![ \t]*#)(?P<body>[^\n]*[^\s][^\n]*)", re.MULTILINE)


def grub_pieces(text: str, *, snippet: bool) -> list[Piece]:
    """Finds the values of all assignments. One that builds on the value before it grows only if nothing else could."""
    found: list[Piece] = []
    offset = 0
    for number, line in enumerate(text.split("\n"), 1):
        if match := ASSIGNMENT.match(line):
            group = next(name for name in ("double", "single", "bare") if match[name] is not None)
            extends = bool(match["plus"] or re.search(rf"\${{?{VARIABLE}\b", match["double"] or ""))
            found.append(Piece(offset + match.start(group), offset + match.end(group), not extends, group == "bare"))
        elif ASSIGNS.search(re.sub(r"(^|\s)#.*", "", line)):
            raise Failure(
                f"line {number} is written in a way that cannot be edited safely: {line.strip()}",
                f'put it on one line of its own, as {VARIABLE}="...", and run this again',
            )
        offset += len(line) + 1
    if found and not snippet and not any(piece.grows for piece in found):
        last = found[-1]
        found[-1] = Piece(last.start, last.end, True, last.bare)
    return found


def pieces(kind: str, text: str) -> list[Piece]:
    if kind in (GRUB, SNIPPET):
        return grub_pieces(text, snippet=kind == SNIPPET)
    matches = list((OPTIONS if kind == ENTRY else WORDS).finditer(text))
    return [Piece(*match.span("body"), grows=match is matches[-1]) for match in matches]


def with_a_place(kind: str, text: str) -> str:
    """Gives the text an empty line for parameters, where a file that needs one has none."""
    if kind == GRUB and not pieces(kind, text):
        line = f'{VARIABLE}=""'
    elif kind == ENTRY and not pieces(kind, text) and KERNEL.search(text):
        line = "options"
    else:
        return text
    newline = "\r\n" if "\r\n" in text else "\n"
    return text + (newline if text and not text.endswith("\n") else "") + line + newline


def token(key: str) -> re.Pattern[str]:
    """Matches `key=value` with the space before it. The kernel takes - for _ in names."""
    name = re.escape(key).replace("_", "[-_]")
    return re.compile(rf"(?P<space>\s*)(?<!\S)(?P<key>{name})=(?P<value>[^\s\\]*)")


def replaced(text: str, found: Sequence[Piece], bodies: Sequence[str]) -> str:
    result, position = "", 0
    for piece, body in zip(found, bodies, strict=True):
        quote = '"' if piece.bare and re.search(r"\s", body) else ""
        result += text[position : piece.start] + quote + body + quote
        position = piece.end
    return result + text[position:]


def with_parameters(kind: str, text: str, wanted: Mapping[str, str], optional: Collection[str] = ()) -> str:
    """Gives the text the wanted values, and `optional` ones only where the parameter stands already."""
    text = with_a_place(kind, text)
    found = pieces(kind, text)
    bodies = [text[piece.start : piece.end] for piece in found]
    # Lines of an entry add up to one command line; each assignment in GRUB's files is one of its own.
    everywhere = "" if kind in (GRUB, SNIPPET) else "\n".join(bodies)
    for index, piece in enumerate(found):
        body = bodies[index]
        missing = [
            f"{key}={value}"
            for key, value in wanted.items()
            if key not in optional and not token(key).search(body) and not token(key).search(everywhere)
        ]
        for key, value in wanted.items():
            body = token(key).sub(lambda m, value=value: f"{m['space']}{m['key']}={value}", body)  # type: ignore[misc]
        if piece.grows and missing:
            words = body.rstrip()
            space = " " if words or kind == ENTRY else ""
            body = words + space + " ".join(missing) + body[len(words) :]
        bodies[index] = body
    return replaced(text, found, bodies)


def without_parameters(kind: str, text: str, ours: Mapping[str, Collection[str]], original: str) -> str:
    """Takes out the values that we set; where they replaced others, those of the original come back."""
    found = pieces(kind, text)
    bodies = [text[piece.start : piece.end] for piece in found]
    originals = [original[piece.start : piece.end] for piece in pieces(kind, original)]
    for (index, body), (key, values) in itertools.product(enumerate(bodies), ours.items()):
        old = token(key).finditer(originals[index] if index < len(originals) else "")
        new, end = "", 0
        for match in token(key).finditer(bodies[index]):
            before = next(old, None)
            new += bodies[index][end : match.start()]
            if match["value"] not in values:
                new += match[0]
            elif before is not None:
                new += f"{match['space']}{before['key']}={before['value']}"
            end = match.end()
        new += bodies[index][end:]
        bodies[index] = new if body[:1].isspace() else new.lstrip()
    return replaced(text, found, bodies)


def is_fallback(name: str, text: str) -> bool:
    told = re.findall(r"^[ \t]*(?:title|initrd)[ \t]+(.*)", text, re.MULTILINE)
    return any(FALLBACK.search(part) for part in [name, *told])
