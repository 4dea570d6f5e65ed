"""Metrics of a Ray process, on Ray's own export port, as `ray_tamiyo_<name>`."""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping

from ray.util.metrics import Counter, Gauge

from actors.metrics.registry import exported

NEXT_TO_NOTHING = sys.float_info.min
"""Ray takes no zero, and a counter that is not there looks as if it had never been told of."""


REPEAT_S = 5.0
"""Ray forgets a gauge that nobody has set for some twenty seconds, and an update or a wave may take longer."""


class RayMetrics:
    """Declares a metric when it is first reported; counters take running totals, and gauges last as long as their
    process, or until `close`."""

    def __init__(self, role: str, run: str) -> None:
        self._tags = {"role": role, "run": run}
        self._gauges: dict[str, Gauge] = {}
        self._last: dict[str, tuple[Gauge, dict[str, str], float]] = {}  # by the name as reported
        self._counters: dict[str, tuple[Counter, float]] = {}
        self._lock = threading.Lock()
        self._closed = threading.Event()
        threading.Thread(target=self._repeat, name="metrics", daemon=True).start()

    def close(self) -> None:
        with self._lock:
            self._closed.set()

    def report(self, values: Mapping[str, float]) -> None:
        """Raises `KeyError` for a name that `actors/metrics/registry.py` does not declare."""
        for name, value in values.items():
            shown = exported(name)
            tags = self._tags | shown.labels
            if shown.metric.kind == "counter":
                self._count(shown.name, shown.text, tags, value)
                continue
            if shown.name not in self._gauges:
                self._gauges[shown.name] = Gauge(shown.name, shown.text, tuple(tags))
            with self._lock:
                self._gauges[shown.name].set(value, tags)
                self._last[name] = (self._gauges[shown.name], tags, value)

    def _repeat(self) -> None:
        while not self._closed.wait(REPEAT_S):
            with self._lock:
                for gauge, tags, value in self._last.values():
                    if not self._closed.is_set():
                        gauge.set(value, tags)

    def _count(self, name: str, text: str, tags: dict[str, str], value: float) -> None:
        if name not in self._counters:
            counter = Counter(name, text, tuple(tags))
            counter.inc(NEXT_TO_NOTHING, tags)
            self._counters[name] = (counter, 0.0)
        counter, before = self._counters[name]
        if value > before:
            counter.inc(value - before, tags)
        self._counters[name] = (counter, max(value, before))
