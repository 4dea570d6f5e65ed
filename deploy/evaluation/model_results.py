"""What the players of the suite `models` came to: J of each, the sweep over widths, and the share of it that they get.

J = test accuracy - that of the untrained model - p D - c C, in points. D are the doublings of the parameters of the
model that is kept, C those of the training FLOPs, both over the narrow model. The sweep trains a model at one, two and
four times its width and keeps the one with the best J in validation; its FLOPs are those of all three.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import log2
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from actors.env.rendering.palette import INK, MUTED, STYLE
from actors.env.rendering.timeline_chart import WIDTH_IN
from actors.slots.objective import Prices, Standing
from deploy.evaluation.model_runs import ModelRun, ModelScript
from deploy.evaluation.text_table import TextTable

NEVER, SWEEP = "never", "sweep"
BUILT = {"built x2": 2, "built x4": 4}
"""Players that build the model wider instead of growing it: multiples of the width."""
COLOURS = ("#0072b2", "#cc79a7", "#e69f00", "#a6761d", "#009e73", "#56b4e9")


@dataclass(frozen=True)
class ModelLine:
    """One player on one model at one width: means over the seeds."""

    model: str
    width: int
    player: str
    runs: int
    over_never: float  # points of J
    objective: float  # J
    test_accuracy: float  # percent
    doublings: float  # D
    compute: float  # C
    params: float  # at the end, in multiples of the bare model's
    seconds: float  # of one core, for one run; for the sweep, of all its runs


@dataclass(frozen=True)
class ModelResults:
    """Runs by (script, width, player, seed); those of `built` players are of a wider model that never grows."""

    scripts: Sequence[ModelScript]
    widths: Mapping[str, Sequence[int]]  # by script
    seeds: Sequence[int]
    players: Sequence[str]  # never first
    prices: Prices
    runs: Mapping[tuple[str, int, str, int], ModelRun]

    @property
    def names(self) -> list[str]:
        """Return the players of the table: those that were played, and the sweep."""
        return [*self.players, SWEEP]

    def _doublings(self, script: str, width: int, player: str, seed: int) -> float:
        """Return D."""
        bare, run = self.runs[script, width, NEVER, seed], self.runs[script, width, player, seed]
        return log2(run.final_params / bare.host_params)

    def _flops(self, script: str, width: int, player: str, seed: int) -> float:
        """Return the training FLOPs, in those of never growing."""
        bare, run = self.runs[script, width, NEVER, seed], self.runs[script, width, player, seed]
        return run.flops / bare.flops if player in BUILT else float(2.0**run.compute)

    def _best(self, script: str, width: int, seed: int) -> str:
        """Return what the sweep keeps."""

        def worth(player: str) -> float:
            accuracy = self.runs[script, width, player, seed].accuracy
            return accuracy - self.prices.doubling * self._doublings(script, width, player, seed)

        return max([NEVER, *BUILT], key=worth)

    def line(self, script: ModelScript, width: int, player: str) -> ModelLine:
        rows = []
        for seed in self.seeds:
            played = self._best(script.name, width, seed) if player == SWEEP else player
            bare, run = self.runs[script.name, width, NEVER, seed], self.runs[script.name, width, played, seed]
            spent = [NEVER, *BUILT] if player == SWEEP else [played]
            doublings = self._doublings(script.name, width, played, seed)
            compute = log2(sum(self._flops(script.name, width, name, seed) for name in spent))
            worth = Standing(run.test_accuracy, doublings, compute).worth(self.prices)
            seconds = sum(self.runs[script.name, width, name, seed].seconds for name in spent)
            sizes = doublings, compute, run.final_params / bare.host_params
            rows.append((worth - bare.test_accuracy, worth - bare.untrained, run.test_accuracy, *sizes, seconds))
        means = [round(float(value), 3) for value in np.mean(rows, axis=0)]
        return ModelLine(script.name, width, player, len(rows), *means)

    @cached_property
    def lines(self) -> list[ModelLine]:
        return [
            self.line(script, width, player)
            for script in self.scripts
            for width in self.widths[script.name]
            for player in self.names
        ]

    def tables(self) -> list[TextTable]:
        """Return the table of all models, and that of the players over all of them."""
        by_key = {(line.model, line.width, line.player): line for line in self.lines}

        def shown(script: ModelScript, width: int, name: str) -> str:
            line = by_key[script.name, width, name]
            return f"{line.test_accuracy:.1f}" + ("" if name == NEVER else f" ({line.over_never:+.1f})")

        models = [
            (script.label, str(width), *(shown(script, width, name) for name in self.names))
            for script in self.scripts
            for width in self.widths[script.name]
        ]
        means = []
        for name in self.names:
            own = [(x.over_never, x.doublings, x.compute) for x in self.lines if x.player == name]
            means.append((name, *(f"{mean:+.2f}" for mean in np.mean(own, axis=0)), f"{min(own)[0]:+.2f}"))
        at = f"at p = {self.prices.doubling:g} and c = {self.prices.compute_doubling:g}"
        title = f"Test accuracy in percent, and J over never growing {at}"
        head = ("player", "J over never", "D", "C", "worst J")
        return [TextTable(title, ("model", "width", *self.names), models), TextTable(f"All models {at}", head, means)]

    def as_dict(self) -> dict[str, Any]:
        return {
            "prices": self.prices._asdict(),
            "seeds": list(self.seeds),
            "lines": [vars(line) for line in self.lines],
            "decisions": {
                f"{script} {width} {player} {seed}": run.decisions
                for (script, width, player, seed), run in self.runs.items()
                if run.decisions
            },
        }


def write_front(results: ModelResults, path: Path) -> None:
    """Draw the front of accuracy against parameters on each model: built at several widths, and grown from each."""
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
        ends, first = [_point(results, script, width, player) for width in widths], player == grown[0]
        if first:
            for start, end in zip(bare, ends, strict=True):
                ax.annotate("", end, start, arrowprops={"arrowstyle": "-", "color": tint, "lw": 1.4, "alpha": 0.5})
        ax.plot(*zip(*ends, strict=True), "o", color=tint, ms=8 if first else 4.5, mec="white", label=player, zorder=3)
    ax.set_xscale("log")
    ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.0f}"))
    ax.xaxis.set_minor_formatter(NullFormatter())
    ax.set_title(script.label, fontsize=10)
    ax.set_xlabel("parameters")
    ax.set_ylabel("test accuracy, %")


def _point(results: ModelResults, script: ModelScript, width: int, player: str) -> tuple[float, float]:
    """Return the parameters at the end, and the test accuracy in percent: means over the seeds."""
    runs = [results.runs[script.name, width, player, seed] for seed in results.seeds]
    return float(np.mean([run.final_params for run in runs])), float(np.mean([run.test_accuracy for run in runs]))
