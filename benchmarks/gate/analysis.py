"""What the cells of the gate say: the best single rule, the best rule of each cell, and a chooser that looks.

All figures are points of J over never growing on the same episodes, and means over cells, which count equally.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from actors.config import EnvConfig
from actors.rules import choices
from actors.rules.gains import ColumnChoice, GainModel, early_features, fit_gains
from actors.rules.reader import ObservationReader
from actors.slots.spaces import seed_spaces
from benchmarks.gate.cells import RULES, Cell, Played

PRICES = (0.5, 1.0, 2.0, 4.0)
RIDGE = 0.3
"""Ridge coefficient of the chooser, relative to the variance of a feature."""
CHOICES = tuple(ColumnChoice(*choice) for choice in choices.CHOICES)
"""Rules that a chooser can still follow after it has looked, beside never growing."""
READER = ObservationReader(seed_spaces(EnvConfig().total_slots))
Cells = Mapping[Cell, Played]
Chooser = Callable[[Played], tuple[NDArray[np.float64], NDArray[np.float64]]]
"""Predicts gain and rent `[choices, N]` over never growing."""


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


def features(cells: Sequence[Played]) -> NDArray[np.float64]:
    """Return what a chooser reads of each episode, `[N, F]`."""
    return early_features(READER, np.concatenate([p.seen for p in cells]).astype(np.float32))


def fit_gain(cells: Sequence[Played], part: str = "gain") -> GainModel:
    """Fit one part of J over never growing, `gain` or `rent`, to what is observed."""
    return fit_gains(CHOICES, features(cells), _over_never(cells, part), RIDGE)


def fit_chooser(cells: Sequence[Played]) -> Chooser:
    """Fit gain and rent over never growing to what is observed."""
    gain, rent = fit_gain(cells), fit_gain(cells, "rent")

    def predict(played: Played) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        own = features([played])
        return gain.predict(own).T, rent.predict(own).T

    return predict


def _over_never(cells: Sequence[Played], name: str) -> NDArray[np.float64]:
    """Return one part of J over never growing, of every choice, `[N, choices]`."""
    chosen = [RULES.index(choice.name) for choice in CHOICES]
    parts = [getattr(p, name) - getattr(p, name)[RULES.index("never")] for p in cells]
    return np.concatenate([part[chosen] for part in parts], 1).T


def chosen(played: Played, chooser: Chooser, price: float) -> float:
    """Return what the chooser gains: in each episode it follows the rule with the highest predicted J."""
    gain, rent = chooser(played)
    predicted = gain - price * rent
    numbers = np.array([RULES.index(choice.name) for choice in CHOICES])
    choice = np.where(predicted.max(0) > 0, numbers[predicted.argmax(0)], RULES.index("never"))
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
