"""`MetricPoints`: a validation metric in points, so that prices and policies mean the same for every task."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite

from actors.config import require


@dataclass
class MetricPoints:
    """Turns what a training run measures into points from 0 to 100.

    Accuracy in points is its percentage. Of any other metric, points are the share, in percent, of the distance between
    the first measurement and the best possible value that has been covered: 0 at the first measurement, 100 at the best
    value. A value worse than the first has 0 points.
    """

    higher_is_better: bool | None
    """None for accuracy, from 0 to 1."""
    best: float
    """Best possible value."""
    first: float | None = None
    """First measurement that is finite; None before it."""

    def points(self, value: float | None) -> float | None:
        """Return `value` in points; None if it is unknown. Raises `UserError` for a value that cannot be."""
        if value is None or not isfinite(value):
            return None
        if self.higher_is_better is None:
            require(value <= 1.0, f"accuracy is {value}: give a share between 0 and 1, not percent")
            return 100.0 * value
        beyond = value - self.best if self.higher_is_better else self.best - value
        require(
            beyond <= 1e-6 * abs(self.best),
            f"the metric is {value:g}, better than the best possible value {self.best:g}: set best_metric",
        )
        self.first = value if self.first is None else self.first
        left = self.best - self.first
        share = (value - self.first) / left if left else float(value == self.best)
        return 100.0 * min(max(share, 0.0), 1.0)
