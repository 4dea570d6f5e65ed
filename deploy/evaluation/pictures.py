"""Figures of an evaluation, each a pure function of its results; None if there is nothing to draw."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from actors.env.rendering.palette import GRID, INK, MUTED, STYLE
from actors.env.rendering.timeline_chart import WIDTH_IN
from deploy.evaluation.players import BEST, BLIND, CHOOSER, GAP, POLICY, SCALES
from deploy.evaluation.results import EQUAL, SWEEP, WIDTHS_OF_SWEEP, Results

COLOURS = {
    POLICY: "#0072b2",
    SWEEP: "#00684c",
    EQUAL: "#009e73",
    BEST: "#e69f00",
    CHOOSER: "#cc79a7",
    GAP: "#a6761d",
    BLIND: "#56b4e9",
}
"""The players that are drawn beside hosts that were built wider, and their colours."""


class EvaluationFigure(NamedTuple):
    """A figure with its title and caption."""

    name: str
    title: str
    caption: str
    draw: Callable[[Results], Figure | None]


def against_sweep(results: Results) -> Figure:
    """Points of J and training FLOPs of each player."""
    figure = Figure(figsize=(WIDTH_IN, 4.2), layout="constrained")
    ax = figure.subplots()
    for line in results.lines:
        if line.name not in COLOURS and line.name not in WIDTHS_OF_SWEEP:
            continue
        tint, found = COLOURS.get(line.name, MUTED), line.over_never
        if found is not None:
            ax.plot([line.training_flops] * 2, [found.low, found.high], color=tint, lw=1.8, alpha=0.35)
        y, size = 0.0 if found is None else found.mean, 10 if line.name in (POLICY, SWEEP) else 6.5
        label = line.name if line.name in COLOURS else None
        ax.plot(line.training_flops, y, "o", color=tint, ms=size, mec="white", zorder=3, label=label)
        if label is None:
            _beside(ax, line.name, (line.training_flops, y), (6, -11), MUTED)
    ax.axhline(0, color=MUTED, lw=0.8, zorder=1)
    ax.set_xscale("log")
    ax.xaxis.set_major_formatter(FuncFormatter(lambda v, _: f"×{v:g}"))
    ax.xaxis.set_minor_formatter(NullFormatter())
    ax.set_xlabel("training FLOPs relative to never growing (log scale)")
    ax.set_ylabel("J over never growing, points")
    ax.legend(loc="upper left", bbox_to_anchor=(1, 1))
    return figure


def front(results: Results) -> Figure:
    """Accuracy against added doublings: players at every price, and hosts that were built wider."""
    figure = Figure(figsize=(WIDTH_IN, 4.0), layout="constrained")
    ax = figure.subplots()

    def at(line: str, price: float) -> tuple[float, float]:
        x = results.values(line, lambda row, _: row.doublings, price).mean()
        return float(x), float(results.values(line, lambda row, _: row.accuracy, price).mean())

    built = [at(name, results.prices[0]) for name in WIDTHS_OF_SWEEP]
    ax.plot(*zip(*built, strict=True), "o-", color=MUTED, lw=1.2, ms=5, mec="white", label="built wider")
    for k, point in zip(SCALES, built, strict=True):
        _beside(ax, "as drawn" if k == 1 else f"×{k}", point, (6, -11), MUTED)
    for line in (SWEEP, BEST, CHOOSER, GAP, BLIND, POLICY):
        if line not in results.rows:
            continue
        points, (width, size) = [at(line, w) for w in results.prices], (2.2, 7) if line == POLICY else (1.2, 5)
        ax.plot(*zip(*points, strict=True), "o-", color=COLOURS[line], lw=width, ms=size, mec="white", label=line)
        if line in (POLICY, SWEEP):
            for w, point in zip(results.prices, points, strict=True):
                _beside(ax, f"{w:g}", point, (-4, 7), COLOURS[line])
    ax.margins(0.06, 0.12)
    ax.set_xlabel("doublings of the parameters at the end")
    ax.set_ylabel("validation accuracy at the end, %")
    ax.legend(loc="lower right", handlelength=1.6)
    return figure


def by_family(results: Results) -> Figure | None:
    """What the policy is ahead of the best single schedule, families in this order."""
    lines = [(line.policy_over_best, line.family) for line in results.family_lines if line.policy_over_best is not None]
    if not lines:
        return None
    rows = [(found, name, COLOURS[POLICY]) for found, name in sorted(lines, reverse=True)]
    rows.append((results.interval(results.against(POLICY, BEST)), "all", INK))
    figure = Figure(figsize=(WIDTH_IN, 0.9 + 0.27 * len(rows)), layout="constrained")
    ax = figure.subplots()
    for y, (found, _, tint) in enumerate(rows):
        ax.plot([found.low, found.high], [y, y], color=tint, lw=3, alpha=0.35, solid_capstyle="round")
        ax.plot(found.mean, y, "o", color=tint, ms=6.5, mec="white", mew=1)
    ax.axvline(0, color=MUTED, lw=0.8)
    ax.set_yticks(range(len(rows)), [name for _, name, _ in rows], color=INK)
    ax.set_ylim(len(rows) - 0.4, -0.6)
    ax.set_xlabel("J of the policy minus J of the best single schedule, points")
    ax.grid(axis="x", color=GRID)
    ax.grid(axis="y", visible=False)
    ax.spines["left"].set_visible(False)
    return figure


def _beside(ax: Axes, text: str, point: tuple[float, float], offset: tuple[int, int], tint: str) -> None:
    ax.annotate(text, point, xytext=offset, textcoords="offset points", color=tint, fontsize=8)


FIGURES = (
    EvaluationFigure(
        "sweep",
        "One run against a sweep",
        "J over never growing, the mean over the prices, against the training FLOPs of one run, with 95% intervals.",
        against_sweep,
    ),
    EvaluationFigure(
        "front",
        "Accuracy and size",
        "Validation accuracy at the end against the doublings of the parameters, means over families and episodes. "
        "Lines connect a player at different prices (the numbers, in points per doubling), and hosts that were built "
        "wider.",
        front,
    ),
    EvaluationFigure(
        "families",
        "By family",
        "J of the policy minus J of the best single schedule on the same episodes, the mean over the prices. Bars are "
        "95% intervals over policies and episodes.",
        by_family,
    ),
)


def write_figures(results: Results, folder: Path) -> list[EvaluationFigure]:
    """Write the figures as PNG, and return those that there are."""
    with matplotlib.rc_context(STYLE):
        drawn = [(spec, spec.draw(results)) for spec in FIGURES]
        for spec, figure in drawn:
            if figure is not None:
                figure.savefig(folder / f"{spec.name}.png", facecolor="white")
    return [spec for spec, figure in drawn if figure is not None]
