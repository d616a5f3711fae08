"""`llama-run --list-models`."""

from __future__ import annotations

from rich.table import Table

from pyrun import console
from pyrun.home import Home
from pyrun.models.find import list_models


def print_models(home: Home) -> None:
    models = list_models(home)
    if not models:
        console.say(
            f"{home.models} is empty; `llama-run --download` gets a model, `llama-run --server` a small default"
        )
        return
    table = Table(box=None, pad_edge=False)
    table.add_column("model")
    table.add_column("size", justify="right")
    table.add_column("file")
    for model in models:
        table.add_row(model.name, f"{model.size / 1e9:.2f} GB", str(model.path.relative_to(home.models)))
    console.out.print(table)
