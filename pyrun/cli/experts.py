"""Has `llama-run experts`, which shows the experts of a mixture that work."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from pyrun import console
from pyrun.errors import UserError
from pyrun.experts.counts import ExpertCounts, parse_counts
from pyrun.experts.plot import plot_counts
from pyrun.server.ask import ask
from pyrun.server.served import choose_loaded
from pyrun.server.usual import OTHERWISE, find_server

NUMBERS = range(6)  # these columns are aligned at the right
START = "`llama-run experts --track` starts the counting"


@click.command("experts")
@click.option("--url", help=f"The server to ask {OTHERWISE}.")
@click.option(
    "--model", metavar="NAME", help="Of several models: its name, or a part of it (default: the one that is loaded)."
)
@click.option("--track/--no-track", default=None, help="Start or stop counting; counting costs next to nothing.")
@click.option("--reset", is_flag=True, help="Begin at zero.")
@click.option("--top", type=click.IntRange(min=1), default=5, show_default=True, help="Experts to name per layer.")
@click.option("--plot", metavar="FILE.png", type=click.Path(path_type=Path), help="Draw layers x experts.")
@click.option("--json", "as_json", is_flag=True, help="Print what the server says, as JSON.")
def experts_command(
    url: str | None, model: str | None, track: bool | None, reset: bool, top: int, plot: Path | None, as_json: bool
) -> None:
    """Show which experts of a mixture-of-experts model work, layer by layer.

    BUSIEST 10 % is the share of the choices that the busiest tenth of a layer's experts takes. BALANCE is 1 when all
    work alike and 0 when one does everything. FOR 90 % is how many experts take nine tenths of the choices: the others
    could leave fast memory first. The server's API key, if any, is taken from LLAMA_API_KEY.
    """
    told = _ask(url, model, track, reset)
    if as_json:
        click.echo(json.dumps(told, indent=2))
        return
    counts = parse_counts(told)
    if counts.n_expert == 0:
        raise UserError("the model is dense: it has no experts to count")
    if not counts.layers:
        console.say("nothing is counted yet: " + ("ask the server something" if counts.tracking else START))
        if plot:
            raise UserError("there is nothing to draw yet")
        return
    _print_table(counts, top)
    if plot:
        console.say(f"drawn in {plot_counts(counts, plot)}")


def _ask(url: str | None, model: str | None, track: bool | None, reset: bool) -> dict[str, Any]:
    url, key = find_server(url)
    named = choose_loaded(url, key, model).routed_name
    change = ({} if track is None else {"enabled": track}) | ({"reset": True} if reset else {})
    if change:
        return dict(ask(url, "/expert-tracking", key, model=named, post=change))
    return dict(ask(url, "/expert-stats", key, model=named))


def _print_table(counts: ExpertCounts, top: int) -> None:
    rows = [("layer", "tokens", "busiest 10 %", "balance", "for 90 %", "unused", f"busiest {top}")]
    for layer in counts.layers:
        named = ", ".join(f"{expert} ({share:.1%})" for expert, share in layer.busiest(top))
        shares = f"{layer.busiest_share:.1%}", f"{layer.balance:.3f}", str(layer.needed_for_most), str(layer.unused)
        rows.append((str(layer.layer), f"{layer.tokens:,}", *shares, named))
    for line in console.columns(rows, NUMBERS):
        click.echo(line)
    state = "counting goes on" if counts.tracking else "counting is off"
    used = f"{counts.n_expert_used} of {counts.n_expert} experts per token"
    console.say(f"{used}, {counts.total_tokens:,} tokens counted; {state}")
