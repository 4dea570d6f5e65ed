"""The front of accuracy against parameters on each model: built at several widths, and grown from each of them."""

from __future__ import annotations

from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from actors.env.rendering.palette import INK, MUTED, STYLE
from actors.env.rendering.timeline_chart import WIDTH_IN
from deploy.evaluation.models.results import BUILT, NEVER, ModelResults
from deploy.evaluation.models.scripts import ModelScript

COLOURS = ("#0072b2", "#cc79a7", "#e69f00", "#a6761d", "#009e73", "#56b4e9")
Point = tuple[float, float]
"""Parameters at the end, and test accuracy in percent: means over the seeds."""


def write_front(results: ModelResults, path: Path) -> None:
    with matplotlib.rc_context(STYLE):
        front(results).savefig(path, facecolor="white")


def front(results: ModelResults) -> Figure:
    """One panel for each script. Lines lead from a bare model to what the first player made of it."""
    rows = len(results.scripts) // 3 + 1  # so that the last panel is free for the legend
    figure = Figure(figsize=(WIDTH_IN, 2.9 * rows), layout="constrained")
    panels = figure.subplots(rows, 3, squeeze=False).ravel()
    for ax, script in zip(panels, results.scripts, strict=False):
        _panel(ax, results, script)
    for ax in panels[len(results.scripts) :]:
        ax.axis("off")
    panels[-1].legend(*panels[0].get_legend_handles_labels(), loc="center left", fontsize=9)
    return figure


def _panel(ax: Axes, results: ModelResults, script: ModelScript) -> None:
    widths = results.widths[script.name]
    built = sorted({_point(results, script, w, name) for w in widths for name in (NEVER, *BUILT)})
    ax.plot(*zip(*built, strict=True), "-", color=MUTED, lw=1.1, alpha=0.7, label="built at some width", zorder=1)
    bare = [_point(results, script, width, NEVER) for width in widths]
    ax.plot(*zip(*bare, strict=True), "o", color=INK, ms=5, label="never grow", zorder=4)
    grown = [name for name in results.players if name not in (NEVER, *BUILT)]
    for player, tint in zip(grown, COLOURS, strict=False):
        own, first = [_point(results, script, width, player) for width in widths], player == grown[0]
        if first:
            for start, end in zip(bare, own, strict=True):
                ax.annotate("", end, start, arrowprops={"arrowstyle": "-", "color": tint, "lw": 1.4, "alpha": 0.5})
        ax.plot(*zip(*own, strict=True), "o", color=tint, ms=8 if first else 4.5, mec="white", label=player, zorder=3)
    ax.set_xscale("log")
    ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.0f}"))
    ax.xaxis.set_minor_formatter(NullFormatter())
    ax.set_title(script.label, fontsize=10)
    ax.set_xlabel("parameters")
    ax.set_ylabel("test accuracy, %")


def _point(results: ModelResults, script: ModelScript, width: int, player: str) -> Point:
    runs = [results.runs[script.name, width, player, seed] for seed in results.seeds]
    return float(np.mean([run.final_params for run in runs])), float(np.mean([run.test_accuracy for run in runs]))
