"""What the cells of the gate say: the best single rule, the best rule of each cell, and a chooser that looks.

All figures are points of J over never growing on the same episodes, and means over cells, which count equally.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.gate.cells import LOOK, RULES, Cell, Played

PRICES = (0.5, 1.0, 2.0, 4.0)
RIDGE = 0.3
"""Ridge coefficient of the chooser, relative to the variance of a feature."""
CHOICES = tuple(i for i, rule in enumerate(RULES) if rule == "never" or rule.endswith(f"@{LOOK}"))
"""Rules that a chooser can still follow after it has looked."""
Cells = Mapping[Cell, Played]
Chooser = Callable[[Played], tuple[NDArray[np.float64], NDArray[np.float64]]]
"""Predicts gain and rent `[rules, N]` over never growing."""


class Gate(NamedTuple):
    """The figures at one price."""

    price: float
    single: str  # the best single rule
    single_points: float
    best_points: float  # the best rule of each cell, cross-validated
    chooser_points: float

    @property
    def headroom(self) -> float:
        return self.best_points - self.single_points

    @property
    def recovered(self) -> float:
        """Points that the chooser is ahead of the best single rule."""
        return self.chooser_points - self.single_points


def over_never(played: Played, price: float) -> NDArray[np.float64]:
    """Return J over never growing, `[rules, N]`."""
    objective = played.objective(price)
    return objective - objective[RULES.index("never")]


def best_single(cells: Cells, price: float) -> int:
    """Return the index of the rule that is best for all cells together."""
    return int(np.mean([over_never(p, price).mean(1) for p in cells.values()], axis=0).argmax())


def best_of_cell(played: Played, price: float) -> float:
    """Return what the best rule of a cell gains, chosen for each episode by the other episodes."""
    points = over_never(played, price)
    others = (points.sum(1, keepdims=True) - points) / (points.shape[1] - 1)
    return float(points[others.argmax(0), np.arange(points.shape[1])].mean())


def features(seen: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the observations with the squares of their features, `[N, 2 D]`."""
    return np.concatenate([seen, seen**2], 1)


def fit_chooser(cells: Sequence[Played]) -> Chooser:
    """Fit gain and rent over never growing to what is observed (ridge regression; Hoerl & Kennard, 1970)."""
    x = features(np.concatenate([p.seen for p in cells]))
    mean, spread = x.mean(0), x.std(0)
    varies = spread > 1e-6

    def scaled(rows: NDArray[np.float64]) -> NDArray[np.float64]:
        return ((features(rows) - mean)[:, varies] / spread[varies]).clip(-4, 4)

    z = scaled(np.concatenate([p.seen for p in cells]))
    gram = z.T @ z + RIDGE * len(z) * np.eye(z.shape[1])
    fitted = []
    for name in ("gain", "rent"):
        y = np.concatenate([getattr(p, name) - getattr(p, name)[RULES.index("never")] for p in cells], 1).T
        fitted.append((np.linalg.solve(gram, z.T @ (y - y.mean(0))), y.mean(0)))

    def predict(played: Played) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        rows = scaled(played.seen)
        gain, rent = ((rows @ weights + at).T for weights, at in fitted)
        return gain, rent

    return predict


def chosen(played: Played, chooser: Chooser, price: float) -> float:
    """Return what the chooser gains: in each episode it follows the rule with the highest predicted J."""
    gain, rent = chooser(played)
    predicted = gain - price * rent
    predicted[RULES.index("never")] = 0.0
    choice = np.array(CHOICES)[predicted[list(CHOICES)].argmax(0)]
    points = over_never(played, price)
    return float(points[choice, np.arange(points.shape[1])].mean())


def gate(cells: Cells, fitted_on: Cells, price: float) -> Gate:
    """Return the figures of `cells`. Rules and chooser are fitted on `fitted_on`, the chooser without the family that
    it chooses for."""
    single = best_single(fitted_on, price)
    choosers = {
        family: fit_chooser([p for cell, p in fitted_on.items() if cell.family != family])
        for family in {cell.family for cell in cells}
    }
    return Gate(
        price,
        RULES[single],
        float(np.mean([over_never(p, price)[single].mean() for p in cells.values()])),
        float(np.mean([best_of_cell(p, price) for p in cells.values()])),
        float(np.mean([chosen(p, choosers[cell.family], price) for cell, p in cells.items()])),
    )
