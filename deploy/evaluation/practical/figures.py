"""The figures of the suite `practical`: accuracy against parameters, and J against training FLOPs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from actors.env.rendering.palette import INK, MUTED, STYLE
from actors.env.rendering.timeline_chart import WIDTH_IN
from deploy.evaluation.practical.results import BUILT, NEVER, WIDTHS, PracticalResults
from deploy.evaluation.practical.runs import PracticalModel
from deploy.evaluation.statistics import Array
from deploy.evaluation.suite import FREE

COLOURS = ("#0072b2", "#cc79a7", "#e69f00", "#a6761d", "#009e73", "#56b4e9", "#d55e00")
FRONT, COMPUTE = "practical-front.png", "practical-compute.png"


def write_figures(results: Mapping[str, PracticalResults], folder: Path) -> None:
    with matplotlib.rc_context(STYLE):
        front(results[FREE]).savefig(folder / FRONT, facecolor="white")
        compute(results).savefig(folder / COMPUTE, facecolor="white")


def compute(results: Mapping[str, PracticalResults]) -> Figure:
    """A panel for each price of compute: mean J over never growing against mean training FLOPs, a point a player."""
    figure = Figure(figsize=(WIDTH_IN, 3.6), layout="constrained")
    for ax, (name, part) in zip(figure.subplots(1, len(results), sharey=True), results.items(), strict=True):
        for player, tint in zip(part.names, (INK, *COLOURS, MUTED), strict=False):
            if found := part.outcomes(player):
                x, y = np.exp2(np.mean([np.log2(o.flops) for o in found])), np.mean([o.over_never for o in found])
                ax.plot([x], [y], "o", color=tint, ms=7, mec="white", label=f"{player} ({len(found)})")
        ax.axhline(0.0, color=MUTED, lw=0.8)
        ax.set_xscale("log", base=2)
        ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
        ax.set_title(name, fontsize=10)
        ax.set_xlabel("training FLOPs, never growing = 1")
        ax.set_ylabel("J over never growing, points")
        ax.legend(fontsize=8)
    return figure


def front(results: PracticalResults) -> Figure:
    """A panel for each model. Lines lead from a bare model to what the first player made of it."""
    rows = len(results.models) // 3 + 1  # so that the last panel is free for the legend
    figure = Figure(figsize=(WIDTH_IN, 2.9 * rows), layout="constrained")
    panels = figure.subplots(rows, 3, squeeze=False).ravel()
    for ax, model in zip(panels, results.models, strict=False):
        _panel(ax, results, model)
    for ax in panels[len(results.models) :]:
        ax.axis("off")
    panels[-1].legend(*panels[0].get_legend_handles_labels(), loc="center left", fontsize=9)
    return figure


def _panel(ax: Axes, results: PracticalResults, model: PracticalModel) -> None:
    def points(players: Sequence[str]) -> Array:
        """Return the parameters and the test metric at the end, means over the seeds, `[2, widths * players]`."""
        found = [results.outcomes(player, model.name, w) for w in results.widths[model.name] for player in players]
        means = [np.mean([(o.params, o.test) for o in runs], 0) if runs else (np.nan, np.nan) for runs in found]
        return np.transpose(means)

    built = points(WIDTHS)
    built = np.unique(built[:, np.isfinite(built[0])], axis=1)
    ax.plot(*built, "-", color=MUTED, lw=1.1, alpha=0.7, label="built at some width", zorder=1)
    bare = points([NEVER])
    ax.plot(*bare, "o", color=INK, ms=5, label="never grow", zorder=4)
    grown = [name for name in results.players if name not in (NEVER, *BUILT)]
    for player, tint in zip(grown, COLOURS, strict=False):
        ends, first = points([player]), player == grown[0]
        for start, end in zip(bare.T, ends.T, strict=True):
            if first and np.isfinite([*start, *end]).all():
                ax.annotate("", end, start, arrowprops={"arrowstyle": "-", "color": tint, "lw": 1.4, "alpha": 0.5})
        ax.plot(*ends, "o", color=tint, ms=8 if first else 4.5, mec="white", label=player, zorder=3)
    ax.set_xscale("log")
    ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.0f}"))
    ax.xaxis.set_minor_formatter(NullFormatter())
    ax.set_title(model.label, fontsize=10)
    ax.set_xlabel("parameters")
    ax.set_ylabel("test R2, %" if "price" in model.name else "test accuracy, %")
