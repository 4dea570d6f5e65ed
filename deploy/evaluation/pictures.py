"""Figures of an evaluation, each a pure function of its results. Their docstrings are what the page says of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from actors.env.rendering.palette import MUTED, STYLE
from actors.env.rendering.timeline_chart import WIDTH_IN
from actors.slots.objective import Prices
from deploy.evaluation.players import BEST, BLIND, CHOOSER, POLICY, SCALES, TRIAL
from deploy.evaluation.results import EQUAL, SWEEP, WIDTHS_OF_SWEEP, Results

COLOURS = {
    POLICY: "#0072b2",
    SWEEP: "#00684c",
    EQUAL: "#009e73",
    BEST: "#e69f00",
    TRIAL: "#d55e00",
    CHOOSER: "#cc79a7",
    BLIND: "#56b4e9",
}
"""The players that are drawn beside hosts that were built wider, and their colours."""
PHONE_IN = 5.6  # a width at which texts can be read on a phone and on a page
SIZES = {POLICY: 10.0, SWEEP: 8.0, BEST: 10.0}
"""Of markers. The best single rule is often the best trial, which is drawn on top of it."""


def sweep(results: Mapping[str, Results]) -> Figure:
    """One run against a sweep

    J over never growing, the mean over the prices, against the training FLOPs, with 95% intervals.
    """
    figure = Figure(figsize=(PHONE_IN, 3.0 * len(results) + 0.6), layout="constrained")
    panels = figure.subplots(len(results), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
    for ax, (condition, part) in zip(panels, results.items(), strict=True):
        for line in part.lines:
            if line.name not in COLOURS and line.name not in WIDTHS_OF_SWEEP:
                continue
            tint, found = COLOURS.get(line.name, MUTED), line.over_never
            if found is not None:
                ax.plot([line.flops] * 2, [found.low, found.high], color=tint, lw=1.8, alpha=0.35)
            y, size = 0.0 if found is None else found.mean, SIZES.get(line.name, 6.5)
            label = line.name if line.name in COLOURS else None
            ax.plot(line.flops, y, "o", color=tint, ms=size, mec="white", zorder=3, label=label)
            if label is None:
                k = SCALES[WIDTHS_OF_SWEEP.index(line.name)]
                offset = (-7, 4 if abs(y) < 0.5 else -3)  # not on the line of 0
                _beside(ax, f"built ×{k}" if k > 1 else "never", (line.flops, y), offset, MUTED, "right")
        ax.axhline(0, color=MUTED, lw=0.8, zorder=1)
        ax.set_xscale("log")
        ax.margins(0.16, 0.1)
        ax.xaxis.set_major_formatter(FuncFormatter(lambda v, _: f"×{v:g}"))
        ax.xaxis.set_minor_formatter(NullFormatter())
        ax.set_title(condition, fontsize=10)
        ax.set_ylabel("J over never growing, points")
    panels[-1].set_xlabel("training FLOPs, in those of never growing")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


def front(results: Mapping[str, Results]) -> Figure:
    """Accuracy, size and compute

    Validation accuracy at the end against the doublings of the parameters and of the training FLOPs, means over
    families and episodes. Lines connect a player at different prices (the numbers, in points per doubling of the
    parameters), and hosts that were built wider.
    """
    figure = Figure(figsize=(WIDTH_IN, 3.4 * len(results)), layout="constrained")
    rows = figure.subplots(len(results), 2, sharey=True, squeeze=False)
    for panels, (condition, part) in zip(rows, results.items(), strict=True):
        _front(panels[0], part, "doublings")
        _front(panels[1], part, "compute")
        panels[0].set_ylabel(f"validation accuracy at {condition}, %")
    rows[-1][0].set_xlabel("doublings of the parameters at the end")
    rows[-1][1].set_xlabel("doublings of the training FLOPs")
    figure.legend(*rows[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=4, handlelength=1.6)
    return figure


def _front(ax: Axes, results: Results, cost: str) -> None:
    def at(line: str, price: Prices) -> tuple[float, float]:
        return float(results.values(line, cost, price).mean()), float(results.values(line, "accuracy", price).mean())

    built = [at(name, results.prices[0]) for name in WIDTHS_OF_SWEEP]
    ax.plot(*zip(*built, strict=True), "o-", color=MUTED, lw=1.2, ms=5, mec="white", label="built wider")
    for k, point in zip(SCALES, built, strict=True):
        _beside(ax, "never" if k == 1 else f"×{k}", point, (6, -11), MUTED)
    for line in (SWEEP, BEST, TRIAL, CHOOSER, BLIND, POLICY):
        if line not in results.episodes:
            continue
        points, size = [at(line, w) for w in results.prices], SIZES.get(line, 6.5) - 2
        ax.plot(*zip(*points, strict=True), "o-", color=COLOURS[line], lw=0.3 * size, ms=size, mec="white", label=line)
        if line == POLICY or (line == SWEEP and cost == "doublings"):  # a sweep costs the same at every price
            for w, point in zip(results.prices, points, strict=True):
                _beside(ax, f"{w.doubling:g}", point, (-4, 7), COLOURS[line])
    ax.margins(0.08, 0.12)


def _beside(
    ax: Axes, text: str, point: tuple[float, float], offset: tuple[int, int], tint: str, ha: str = "left"
) -> None:
    ax.annotate(text, point, xytext=offset, textcoords="offset points", color=tint, fontsize=8, ha=ha)


FIGURES = (sweep, front)


def write_figures(results: Mapping[str, Results], folder: Path) -> None:
    """Write the figures as PNG."""
    with matplotlib.rc_context(STYLE):
        for draw in FIGURES:
            draw(results).savefig(folder / f"{draw.__name__}.png", facecolor="white")
