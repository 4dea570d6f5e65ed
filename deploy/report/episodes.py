"""What the report needs of a run's episodes, gathered record by record: its memory does not grow with the run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from actors.types.episode import EndReason
from deploy.report.statistics import Floats, stratified_mean

BINS = 600  # of updates, for the learning curve


class EpisodeStatistics:
    """Counts of all episodes, and moments of the returns of whole ones."""

    def __init__(self, records: Iterable[Mapping[str, Any]], last_update: int) -> None:
        """Gather the records of a run with so many updates."""
        self._updates_per_bin = 1 + last_update // BINS
        self.count = self.steps = 0
        self.whole = 0  # that are not segments; a segment has the return up to its end
        self.moments: dict[str, Floats] = {}
        """By task: number, sum and sum of squares of the returns in each bin, `[BINS, 3]`."""
        for record in records:
            self.count += 1
            self.steps += int(record["steps"])
            value = float(record["return"])
            if record.get("end_reason") != EndReason.CUT:
                self.whole += 1
                at = min(int(record["update"]) // self._updates_per_bin, BINS - 1)
                self.moments.setdefault(record["task_id"], np.zeros((BINS, 3)))[at] += (1.0, value, value * value)

    def rolling_returns(self, updates: Floats, window: int) -> Floats:
        """Return the stratified mean and its band over the whole episodes of the last `window` updates,
        `[3, updates]`; NaN where there are none."""
        by_task = np.stack(list(self.moments.values()))  # [tasks, BINS, 3]
        until = np.concatenate([np.zeros((len(by_task), 1, 3)), by_task.cumsum(1)], 1)
        bins = (updates // self._updates_per_bin).astype(np.int64).clip(0, BINS - 1)
        first = bins[np.maximum(np.arange(len(bins)) - window + 1, 0)]
        return stratified_mean(*np.moveaxis(until[:, bins + 1] - until[:, first], -1, 0))
