"""Figures of an evaluation, each a pure function of its results; None if there is nothing to draw."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter, NullFormatter

from actors.env.rendering.palette import GRID, INK, MUTED
from actors.env.rendering.timeline_chart import WIDTH_IN
from deploy.evaluation.players import BEST, BLIND, BUILT, CHOOSER, FIXED, GAP, NEVER, POLICY, SCALES, STREAM
from deploy.evaluation.results import EQUAL, SWEEP, WIDTHS_OF_SWEEP, Results

ZERO = "#b6bec8"
COLOURS = {
    POLICY: "#0072b2",
    BLIND: "#56b4e9",
    CHOOSER: "#cc79a7",
    BEST: "#e69f00",
    FIXED: "#d55e00",
    GAP: "#a6761d",
    STREAM: "#b79f6f",
    SWEEP: "#00684c",
    EQUAL: "#009e73",
    **dict.fromkeys(WIDTHS_OF_SWEEP, "#6b7280"),
}
WIDTH_COLOURS = ("#9ecae1", "#4a98c9", "#1764ab", "#08306b", "#041530")
CHARACTER = 0.0092  # width of one, as a share of the axes
LEADER = {"arrowstyle": "-", "lw": 0.6, "alpha": 0.6}
BEHIND_POINTS, SHARE_OF_FLOPS = 1.0, 1 / 3
"""The targets against the full sweep."""


def colour(line: str) -> str:
    return COLOURS.get(line, MUTED)


def against_sweep(results: Results) -> Figure:
    """Points of J and training FLOPs of each player."""
    figure = Figure(figsize=(WIDTH_IN, 4.6), layout="constrained")
    ax = figure.subplots()
    points: list[tuple[float, float, str]] = []
    for line in results.lines:
        y, x = (0.0 if line.over_never is None else line.over_never.mean), line.training_flops
        if line.over_never is not None:
            ax.plot([x, x], [line.over_never.low, line.over_never.high], color=colour(line.name), lw=1.8, alpha=0.35)
        main = line.name in (POLICY, SWEEP)
        ax.plot(x, y, "o", color=colour(line.name), ms=10 if main else 6.5, mec="white", mew=1, zorder=3)
        points.append((x, y, line.name))
    ax.set_xscale("log")
    low, high = min(x for x, _, _ in points) / 1.25, max(x for x, _, _ in points) * 1.6
    ax.set_xlim(low, high)
    bottom, top = _window([y for _, y, _ in points])
    ax.set_ylim(bottom, top)
    by_name = {name: (x, y) for x, y, name in points}
    if SWEEP in by_name:
        x, y = by_name[SWEEP]
        corner = (low, y - BEHIND_POINTS)
        target = Rectangle(corner, x * SHARE_OF_FLOPS - low, top - corner[1], fc="#e6f4ee", ec="none", zorder=0)
        ax.add_patch(target)
        goal = "target: at most 1 point behind the full sweep, for at most 1/3 of its FLOPs"
        ax.text(0.012, 0.975, goal, transform=ax.transAxes, va="top", color=COLOURS[SWEEP], fontsize=8)
        ax.axhline(y, color=COLOURS[SWEEP], lw=0.9, ls=(0, (4, 3)), zorder=1)
    ax.axhline(0, color=ZERO, lw=0.8, zorder=1)
    _label(ax, points)
    ticks = [t for t in (1, 2, 5, 10, 20, 50, 100, 200) if low <= t <= high]
    ax.set_xticks(ticks)
    ax.xaxis.set_major_formatter(FuncFormatter(lambda v, _: f"×{v:g}"))
    ax.xaxis.set_minor_formatter(NullFormatter())
    ax.set_xlabel("training FLOPs relative to never growing (log scale)")
    ax.set_ylabel("J over never growing, points")
    return figure


def _window(values: Sequence[float]) -> tuple[float, float]:
    """Return limits with room for labels. A player that is far behind all others is cut off."""
    low = max(min(values), float(np.median(values)) - 2.5 * (max(values) - float(np.median(values))) - 1)
    room = 0.2 * (max(values) - low) + 0.1
    return low - room, max(values) + room


def _label(ax: Axes, points: Sequence[tuple[float, float, str]]) -> None:
    """Write each name beside its point, moved up or down where names would overlap."""
    (low, high), (bottom, top) = ax.get_xlim(), ax.get_ylim()
    width, height = np.log(high / low), top - bottom
    taken: list[tuple[float, float, float]] = []  # left, right, middle, in shares of the axes

    def place(x: float, y: float, name: str) -> tuple[float, float, bool]:
        length = CHARACTER * len(name)
        for shift in (0.0, 0.045, -0.045, 0.09, -0.09, 0.135, -0.135, 0.18, -0.18):
            for to_left in (False, True):
                left = x - 0.02 - length if to_left else x + 0.02
                if left < 0 or left + length > 1.02 or not 0 < y + shift < 1:
                    continue
                if all(left + length < a or left > b or abs(y + shift - m) > 0.042 for a, b, m in taken):
                    return left, shift, to_left
        return x + 0.02, 0.0, False

    at = [(float(np.log(x / low) / width), (y - bottom) / height, name) for x, y, name in points]
    taken += [(x - 0.012, x + 0.012, y) for x, y, _ in at]
    for x, y, name in sorted(at, key=lambda p: (p[2] not in (POLICY, SWEEP), -p[1])):
        left, shift, to_left = place(x, y, name)
        length = CHARACTER * len(name)
        taken.append((left, left + length, y + shift))
        ax.annotate(
            name,
            (x, y),
            xytext=(left + (length if to_left else 0), y + shift),
            xycoords="axes fraction",
            ha="right" if to_left else "left",
            va="center",
            color=colour(name),
            fontsize=9,
            bbox={"fc": "white", "ec": "none", "pad": 0.5, "alpha": 0.75},
            fontweight="bold" if name in (POLICY, SWEEP) else "normal",
            arrowprops={"arrowstyle": "-", "color": colour(name), "lw": 0.6, "alpha": 0.6}
            if abs(shift) > 0.05
            else None,
        )


def front(results: Results) -> Figure:
    """Accuracy against added doublings: players at every price, and hosts that were built wider."""
    figure = Figure(figsize=(WIDTH_IN, 4.0), layout="constrained")
    ax = figure.subplots()

    def at(line: str, price: float) -> tuple[float, float]:
        x = results.values(line, lambda row, _: row.doublings, price).mean()
        return float(x), float(results.values(line, lambda row, _: row.accuracy, price).mean())

    built = [at(name, results.prices[0]) for name in WIDTHS_OF_SWEEP if name in results.rows]
    ax.plot(*zip(*built, strict=True), "o-", color=colour(NEVER), lw=1.2, ms=5, mec="white", label="built wider")
    for k, point in zip(SCALES, built, strict=False):
        text = "as drawn" if k == 1 else BUILT.format(k).removeprefix("built wider ").replace("x", "×")
        _beside(ax, text, point, (6, -11), colour(NEVER))
    for line in (SWEEP, BEST, CHOOSER, GAP, BLIND, POLICY):
        if line not in results.rows:
            continue
        points = [at(line, w) for w in results.prices]
        main = line == POLICY
        ax.plot(
            *zip(*points, strict=True),
            "o-",
            color=colour(line),
            lw=2.2 if main else 1.2,
            ms=7 if main else 5,
            mec="white",
            label=line,
            zorder=3 if main else 2,
        )
        if line in (POLICY, SWEEP):
            for w, point in zip(results.prices, points, strict=True):
                _beside(ax, f"{w:g}", point, (-4, 7), colour(line))
    ax.margins(0.06, 0.12)
    ax.set_xlabel("doublings of the parameters at the end")
    ax.set_ylabel("validation accuracy at the end, %")
    ax.legend(loc="lower right", handlelength=1.6)
    return figure


def _beside(ax: Axes, text: str, point: tuple[float, float], offset: tuple[int, int], tint: str) -> None:
    ax.annotate(text, point, xytext=offset, textcoords="offset points", color=tint, fontsize=8)


def by_family(results: Results) -> Figure | None:
    """What the policy is ahead of the best single schedule, families in this order."""
    lines = [line for line in results.family_lines if line.policy_over_best is not None]
    if not lines:
        return None
    found = sorted(((line.policy_over_best, line.family) for line in lines if line.policy_over_best), reverse=True)
    figure = Figure(figsize=(WIDTH_IN, 0.9 + 0.27 * len(found)), layout="constrained")
    ax = figure.subplots()
    for y, (own, _) in enumerate(found):
        ax.plot([own.low, own.high], [y, y], color=colour(POLICY), lw=3, alpha=0.35, solid_capstyle="round")
        ax.plot(own.mean, y, "o", color=colour(POLICY), ms=6.5, mec="white", mew=1)
    total = results.interval(results.against(POLICY, BEST))
    last = len(found)
    ax.axvspan(total.low, total.high, color=colour(POLICY), alpha=0.07, lw=0)
    ax.plot([total.low, total.high], [last, last], color=INK, lw=3, alpha=0.45, solid_capstyle="round")
    ax.plot(total.mean, last, "D", color=INK, ms=6.5, mec="white", mew=1)
    ax.axvline(0, color=ZERO, lw=0.8)
    ax.set_yticks(range(last + 1), [*(name for _, name in found), "all"], color=INK)
    ax.get_yticklabels()[-1].set_fontweight("bold")
    ax.set_ylim(last + 0.6, -0.6)
    ax.set_xlabel("J of the policy minus J of the best single schedule, points")
    ax.grid(axis="x", color=GRID)
    ax.grid(axis="y", visible=False)
    ax.spines["left"].set_visible(False)
    return figure


def growth(results: Results) -> Figure | None:
    """Doublings at the end by price, one curve for each class of widths; beside them the sweep's."""
    if POLICY not in results.rows or SWEEP not in results.rows:
        return None
    figure = Figure(figsize=(WIDTH_IN, 3.4), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    lines = results.width_lines
    for ax, title, of_sweep in zip(panels, (POLICY, SWEEP), (False, True), strict=True):
        for line, tint in zip(lines, WIDTH_COLOURS, strict=False):
            own = line.sweep_doublings if of_sweep else line.doublings
            at = range(len(own))
            ax.plot(at, list(own.values()), "o-", color=tint, lw=2, ms=6, mec="white", label=line.widths, clip_on=False)
        ax.set_xticks(range(len(results.prices)), [f"{w:g}" for w in results.prices])
        ax.set_title(title, fontweight="bold", color=colour(title))
        ax.set_xlabel("price, points per doubling")
    panels[0].set_ylim(bottom=0)
    panels[0].set_ylabel("doublings at the end")
    panels[1].legend(title="units of the host", loc="upper right")
    return figure
