"""Figures of an evaluation, each a pure function of its results; None if there is nothing to draw."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from actors.env.rendering.palette import GRID, INK, MUTED
from actors.env.rendering.timeline_chart import WIDTH_IN
from deploy.evaluation import statistics as st
from deploy.evaluation.results import CEILING, FIXED, MAIN, NEVER, PERIODIC, Line, Results

COLOURS = {
    "policy greedy": "#0072b2",
    "policy sampled": "#56b4e9",
    "blind greedy": "#cc79a7",
    "blind sampled": "#e3b4d0",
    "fixed column": "#332288",
    "periodic in the stream": "#f0c27a",
    "tuned periodic": "#e69f00",
    "tuned plateau": "#d55e00",
    "tuned gradient": "#a6761d",
    "per-task best": "#1d232b",
    "never grow": "#6b7280",
    "static maximum": "#8c6bb1",
    "random matched": "#b9a79d",
    "from scratch": "#009e73",
    "from scratch, compute-matched": "#7fceb9",
}
PROFILED = (MAIN, "blind greedy", FIXED, PERIODIC, "tuned plateau", CEILING, "random matched", "static maximum")
ROW_IN = 0.32


def colour(line: str) -> str:
    return COLOURS.get(line, MUTED)


def intervals(results: Results) -> Figure:
    """Mean and IQM of the gain over never growing, on the same episodes."""
    lines = [line for line in results.lines if line.over_never is not None and " at price " not in line.name]
    figure = Figure(figsize=(WIDTH_IN, 0.9 + ROW_IN * len(lines)), layout="constrained")
    panels = figure.subplots(1, 2, sharey=True)
    for ax, title, of_iqm in zip(panels, ("mean, points of J", "IQM, points of J"), (False, True), strict=True):
        bars = [i for i in (line.iqm_over_never if of_iqm else line.over_never for line in lines) if i is not None]
        low, high = _window([(i.low, i.high) for i in bars])
        for row, (line, found) in enumerate(zip(lines, bars, strict=True)):
            if low <= found.mean <= high:
                _bar(ax, row, found.mean, found.low, found.high, line.name)
            else:
                _beyond(ax, row, found.mean, colour(line.name))
        ax.axvline(0, color="#b6bec8", lw=0.8)
        ax.set_xlim(low, high)
        ax.set_title(title)
        _across(ax)
    _rows(panels[0], lines)
    return figure


def improvement(results: Results) -> Figure | None:
    """How often the policy does better on an episode."""
    lines = [line for line in results.lines if line.improvement is not None and " at price " not in line.name]
    if not lines:
        return None
    figure = Figure(figsize=(WIDTH_IN, 0.9 + ROW_IN * len(lines)), layout="constrained")
    ax = figure.subplots()
    for row, line in enumerate(lines):
        assert line.improvement is not None
        _bar(ax, row, line.improvement.mean, line.improvement.low, line.improvement.high, line.name)
    _rows(ax, lines)
    ax.axvline(0.5, color="#b6bec8", lw=0.8)
    ax.set_xlim(0, 1)
    ax.xaxis.set_major_formatter(PercentFormatter(1.0))
    ax.set_xlabel("probability that the policy's J is higher; a tie counts half")
    _across(ax)
    return figure


def profiles(results: Results) -> Figure:
    """The share of episodes that gain more than so many points over never growing."""
    names = [name for name in PROFILED if name in results.rows]
    gains = {name: results.against(name, NEVER).ravel() for name in names}
    growers = [x for name, x in gains.items() if name != "static maximum"]  # which is far off on the left
    low, high = np.quantile(np.concatenate(growers or [np.zeros(1)]), [0.01, 0.99])
    at = np.linspace(low - 1, high + 1, 400)
    figure = Figure(figsize=(WIDTH_IN, 3.4), layout="constrained")
    ax = figure.subplots()
    for name in names:
        ax.plot(at, st.profile(gains[name], at), color=colour(name), lw=2.2 if name == MAIN else 1.4, label=name)
    ax.axvline(0, color="#b6bec8", lw=0.8)
    ax.set_ylim(0, 1.02)
    ax.set_xlim(at[0], at[-1])
    ax.yaxis.set_major_formatter(PercentFormatter(1.0))
    ax.set_xlabel("J over never growing, points")
    ax.set_ylabel("fraction of episodes above")
    ax.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=4, borderaxespad=0, columnspacing=1.2, handlelength=1.2)
    return figure


def pareto(results: Results) -> Figure:
    """Accuracy against what it costs to hold; schedules and policies at every price."""
    figure = Figure(figsize=(WIDTH_IN, 3.6), layout="constrained")
    ax = figure.subplots()
    fronts: dict[str, list[tuple[float, float, float]]] = {}  # price, x, y
    for name in results.rows:
        x, y = float(results.array(name, "rent").mean()), float(results.array(name, "test_accuracy").mean())
        base, at, weight = name.partition(" at price ")
        front = {"policy": MAIN, "periodic": PERIODIC}.get(base, base)
        if front in (MAIN, PERIODIC):
            fronts.setdefault(front, []).append((float(weight) if at else results.price, x, y))
        label = None if at else name
        ax.plot(x, y, "o", color=colour(front), ms=5 if at else 7, mec="white", mew=1, label=label, clip_on=False)
    for name, points in fronts.items():
        front_x, front_y = zip(*sorted((x, y) for _, x, y in points), strict=True)
        ax.plot(front_x, front_y, color=colour(name), lw=1.2, alpha=0.6, zorder=1)
    widest, tallest = np.sqrt(ax.get_xlim()[1]), np.ptp(ax.get_ylim())
    for front, points in fronts.items():
        for told, x, y in _labels(points, 0.04 * widest, 0.04 * float(tallest)):
            side = (6, -11) if front == PERIODIC else (-4, 7)
            ax.annotate(told, (x, y), xytext=side, textcoords="offset points", color=colour(front), fontsize=8)
    ax.set_xscale("function", functions=(lambda v: np.sqrt(np.maximum(v, 0)), np.square))
    ax.set_xlim(0, ax.get_xlim()[1])
    ax.set_xticks([t for t in (0, 0.1, 0.25, 0.5, 1, 2, 3, 4) if t <= ax.get_xlim()[1]])
    ax.set_xlabel("rent: doublings of the parameters, averaged over the horizon (root scale)")
    ax.set_ylabel("final test accuracy, points")
    ax.margins(0.06, 0.1)
    ax.legend(loc="center left", bbox_to_anchor=(1, 0.5), handletextpad=0.2)
    return figure


def _labels(points: list[tuple[float, float, float]], wide: float, tall: float) -> list[tuple[str, float, float]]:
    """One label for points that lie too close together for labels of their own; `wide` on a root scale."""
    groups: list[list[tuple[float, float, float]]] = []
    for point in sorted(points):
        near = [
            g for g in groups if abs(np.sqrt(g[0][1]) - np.sqrt(point[1])) < wide and abs(g[0][2] - point[2]) < tall
        ]
        near[0].append(point) if near else groups.append([point])
    return [(", ".join(f"{w:g}" for w, _, _ in g), g[0][1], g[0][2]) for g in groups]


def regret(results: Results) -> Figure | None:
    """Points of J behind the per-task best schedule, by family."""
    if CEILING not in results.rows:
        return None
    names = [n for n in (MAIN, "blind greedy", FIXED, PERIODIC, "tuned plateau", NEVER) if n in results.rows]
    families = [m.family for m in results.members]
    figure = Figure(figsize=(WIDTH_IN, 1.0 + 0.4 * len(families)), layout="constrained")
    ax = figure.subplots()
    for k, name in enumerate(names):
        behind = results.regret(name)
        offset = 0.13 * ((len(names) - 1) / 2 - k)
        y = [row - offset for row in range(len(families))]
        ax.plot([behind[f] for f in families], y, "o", color=colour(name), ms=6, mec="white", mew=0.8, label=name)
    ax.axvline(0, color="#b6bec8", lw=0.8)
    marks = {m.family: "" if m.headline else " (not in headlines)" for m in results.members}
    ax.set_yticks(range(len(families)), [f + marks[f] for f in families], color=INK)
    ax.set_ylim(len(families) - 0.45, -0.55)
    ax.set_xlabel("points of J behind the per-task best; left of 0 is better than it")
    ax.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=5, handletextpad=0.1, borderaxespad=0, columnspacing=1.0)
    _across(ax)
    return figure


def _window(ranges: list[tuple[float, float]]) -> tuple[float, float]:
    """What to show of them: one that lies far outside does not squeeze all others together."""
    low, high = (np.array(side) for side in zip(*ranges, strict=True))
    room = 2.0 * float(np.median(high - low)) + 1e-6
    kept = (low >= np.median(low) - room) & (high <= np.median(high) + room)
    margin = 0.06 * float(high[kept].max() - low[kept].min()) + 1e-6
    return float(low[kept].min()) - margin, float(high[kept].max()) + margin


def _beyond(ax: Axes, row: int, value: float, tint: str) -> None:
    """Says at the edge what lies outside."""
    left, told = value < 0, f"{abs(value):.1f}"
    ax.annotate(
        f"\N{LEFTWARDS ARROW} \N{MINUS SIGN}{told}" if left else f"{told} \N{RIGHTWARDS ARROW}",
        (0.01 if left else 0.99, row),
        xycoords=ax.get_yaxis_transform(),
        ha="left" if left else "right",
        va="center",
        color=tint,
    )


def _bar(ax: Axes, row: int, mean: float, low: float, high: float, name: str) -> None:
    ax.plot([low, high], [row, row], color=colour(name), lw=3, alpha=0.4)
    ax.plot(mean, row, "o", color=colour(name), ms=7 if name == MAIN else 5.5, mec="white", mew=1)


def _rows(ax: Axes, lines: list[Line]) -> None:
    ax.set_yticks(range(len(lines)), [line.name for line in lines], color=INK)
    ax.set_ylim(len(lines) - 0.4, -0.6)


def _across(ax: Axes) -> None:
    ax.grid(axis="x", color=GRID)
    ax.grid(axis="y", visible=False)
    ax.spines["left"].set_visible(False)
