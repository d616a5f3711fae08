"""Has `llama-run completion`, which teaches a shell our commands, flags, models, conversations and backends."""

from __future__ import annotations

import os

import click
from click.shell_completion import CompletionItem, get_completion_class

SHELLS = ("bash", "zsh", "fish")
VARIABLE = "_LLAMA_RUN_COMPLETE"
# A shell reads the script from the command itself, so that it is never out of date.
HOW = {
    "bash": 'eval "$(llama-run completion bash)"    # in ~/.bashrc',
    "zsh": 'eval "$(llama-run completion zsh)"    # in ~/.zshrc, behind compinit',
    "fish": "llama-run completion fish | source    # in ~/.config/fish/config.fish",
}


@click.command("completion")
@click.argument("shell", type=click.Choice(SHELLS), required=False)
@click.pass_context
def completion_command(context: click.Context, shell: str | None) -> None:
    """Print what makes the TAB key complete commands, flags, models, conversations and backends.

    Without SHELL, it is the one that SHELL in the environment names.
    """
    chosen = shell or os.environ.get("SHELL", "").rpartition("/")[2]
    found = get_completion_class(chosen) if chosen in SHELLS else None
    if found is None:
        raise click.UsageError(f"name a shell: {', '.join(SHELLS)}")
    click.echo(found(context.find_root().command, {}, "llama-run", VARIABLE).source())
    click.echo(f"# {HOW[chosen]}")


def complete_model(context: click.Context, option: click.Parameter, start: str) -> list[CompletionItem]:
    """The names of models in models/. Whatever is wrong, a key that was pressed must not print errors."""
    try:
        from pyrun.home import find_home
        from pyrun.models.find import list_models

        names = [model.name for model in list_models(find_home())]
    except Exception:
        return []
    files = [] if [name for name in names if start.lower() in name.lower()] else [CompletionItem(start, type="file")]
    return [CompletionItem(name) for name in names if name.lower().startswith(start.lower())] or files


def complete_conversation(context: click.Context, option: click.Parameter, start: str) -> list[CompletionItem]:
    """The hashes of stored conversations, of those that no server has open."""
    try:
        from pyrun.cache.look import list_cache
        from pyrun.cache.usual import usual_cache
        from pyrun.home import find_home

        found = list_cache(context.params.get("folder") or usual_cache(find_home(), os.environ))
    except Exception:
        return []
    return [
        CompletionItem(c.hash, help=f"{c.tokens} tokens, {listing.model or listing.fingerprint[:8]}")
        for listing in found.models
        for c in listing.conversations
        if c.hash.startswith(start.lower())
    ]


def complete_stored_model(context: click.Context, option: click.Parameter, start: str) -> list[CompletionItem]:
    """The names of models that have stored state, and the fingerprints of those without a name."""
    try:
        from pyrun.cache.folder import find_models
        from pyrun.cache.usual import usual_cache
        from pyrun.home import find_home

        names = {model.owner or model.name for model in find_models(usual_cache(find_home(), os.environ))}
    except Exception:
        return []
    return [CompletionItem(name) for name in sorted(names) if name.lower().startswith(start.lower())]
