"""Guesses what somebody meant by words that the command line does not know. It is pure: words in, hint out."""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Sequence

# The commands of similar programs lead to ours.
MEANT = {
    "--server": ("serve", "server", "run"),
    "--download": ("download", "pull", "get", "fetch"),
    "--list-models": ("list", "ls", "models", "list-models"),
    "--list-backends": ("backends", "list-backends"),
    "--version": ("version",),
    "--help": ("help",),
}
TAKES_NAME = ("--server", "--download")


def for_command(words: Sequence[str], known: Sequence[str]) -> str | None:
    """`words` are the command that there is none of, and what follows it; `known` are those that there are."""
    name = words[0]
    flag = next((flag for flag, names in MEANT.items() if name.lower() in names), None)
    if flag is not None:
        return f"that is `llama-run {shlex.join([flag, *(words[1:] if flag in TAKES_NAME else ())])}`"
    if name.lower().endswith(".gguf"):
        return f"a model is served by `llama-run {shlex.join(['--server', *words])}`"
    near = difflib.get_close_matches(name.lower(), known, n=1)
    return f"did you mean `llama-run {shlex.join([*near, *words[1:]])}`?" if near else None


def for_option(words: Sequence[str], option: str) -> str | None:
    """`words` are the whole command line, in which the option is not one of ours."""
    if all(word.partition("=")[0] != "--server" for word in words):
        return None
    at = next((i for i, word in enumerate(words) if word.startswith(option)), len(words))
    # llama-server does not take --flag=value.
    flag, *rest = [*(words[at] if at < len(words) else option).split("=", 1), *words[at + 1 :]]
    value = rest[:1] if rest and not rest[0].startswith("-") else []
    return f"flags of llama-server go behind `--`: llama-run --server -- {shlex.join([flag, *value])}"
