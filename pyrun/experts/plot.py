"""Draws a heat map of the experts' work: a row per layer, a column per expert."""

from __future__ import annotations

from pathlib import Path

from pyrun.errors import UserError
from pyrun.experts.counts import ExpertCounts, LayerCounts


def plot_counts(counts: ExpertCounts, path: Path) -> Path:
    """Experts stand by number at the left, to be found; and busiest first at the right, to see how many do the work.

    The file is returned: a name without an ending gets .png.
    """
    import matplotlib  # it takes longer to load than all the rest

    matplotlib.use("Agg")
    from matplotlib import pyplot

    path = path if path.suffix else path.with_suffix(".png")
    by_number = [_relative(layer) for layer in counts.layers]
    by_use = [sorted(row, reverse=True) for row in by_number]
    height = max(2.8, 1.6 + 0.16 * len(by_number))
    figure, axes = pyplot.subplots(1, 2, figsize=(13, height), sharey=True, layout="constrained")
    try:
        top = max(max(row) for row in by_number)
        for plot, rows, label in zip(axes, (by_number, by_use), ("by number", "busiest first"), strict=True):
            image = plot.imshow(rows, aspect="auto", cmap="magma", vmin=0, vmax=top, interpolation="nearest")
            plot.set_xlabel(f"expert, {label}")
        axes[0].set_ylabel("layer")
        axes[0].set_yticks(range(len(by_number)), [str(layer.layer) for layer in counts.layers], fontsize=7)
        figure.suptitle(
            f"{counts.n_expert_used} of {counts.n_expert} experts per token, {counts.total_tokens:,} tokens"
        )
        figure.colorbar(image, ax=axes, label="use (1: an even share)")
        figure.savefig(path, dpi=150)
    except (OSError, ValueError) as error:  # ValueError stands for a format that matplotlib does not know
        raise UserError(
            f"cannot write the plot to {path}: {error}",
            "give a file that can be written and ends in .png, .svg or .pdf",
        ) from error
    finally:
        pyplot.close(figure)
    return path


def _relative(layer: LayerCounts) -> list[float]:
    """Gives each expert's use as a multiple of an even share."""
    return [count * len(layer.counts) / layer.total for count in layer.counts]
