"""Metrics of Ray processes, exported by Ray as `ray_tamiyo_<name>`."""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping

from ray.util.metrics import Counter, Gauge

from actors.metrics.registry import exported

TINY_INCREMENT = sys.float_info.min
"""Ray rejects increments of 0, and a counter that was never incremented is not exported."""
REPEAT_S = 5.0
"""Ray drops a gauge that has not been set for about 20 seconds; an update or a wave may take longer."""


class RayMetrics:
    """Declares each metric when it is first reported. Counters are reported as running totals.

    Gauges are set repeatedly, so that Ray exports them until the process ends or `close` is called.
    """

    def __init__(self, role: str, run: str) -> None:
        self._tags = {"role": role, "run": run}
        self._gauges: dict[str, Gauge] = {}
        self._last: dict[str, tuple[Gauge, dict[str, str], float]] = {}  # by reported name
        self._counters: dict[str, tuple[Counter, float]] = {}
        self._lock = threading.Lock()
        self._closed = threading.Event()
        threading.Thread(target=self._repeat, name="metrics", daemon=True).start()

    def close(self) -> None:
        """Stop repeating gauges."""
        with self._lock:
            self._closed.set()

    def report(self, values: Mapping[str, float]) -> None:
        """Export `values`. Raises `KeyError` for a name that `actors/metrics/registry.py` does not declare."""
        for name, value in values.items():
            series = exported(name)
            tags = self._tags | series.labels
            if series.metric.kind == "counter":
                self._count(series.name, series.help, tags, value)
                continue
            if series.name not in self._gauges:
                self._gauges[series.name] = Gauge(series.name, series.help, tuple(tags))
            with self._lock:
                self._gauges[series.name].set(value, tags)
                self._last[name] = (self._gauges[series.name], tags, value)

    def _repeat(self) -> None:
        while not self._closed.wait(REPEAT_S):
            with self._lock:
                for gauge, tags, value in self._last.values():
                    if not self._closed.is_set():
                        gauge.set(value, tags)

    def _count(self, name: str, help_text: str, tags: dict[str, str], total: float) -> None:
        if name not in self._counters:
            counter = Counter(name, help_text, tuple(tags))
            counter.inc(TINY_INCREMENT, tags)
            self._counters[name] = (counter, 0.0)
        counter, before = self._counters[name]
        if total > before:
            counter.inc(total - before, tags)
        self._counters[name] = (counter, max(total, before))
