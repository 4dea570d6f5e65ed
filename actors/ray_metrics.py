"""Metrics of a Ray process, on Ray's own export port, as `ray_tamiyo_<name>`."""

from __future__ import annotations

from collections.abc import Mapping

from ray.util.metrics import Counter, Gauge

from actors.metrics import lookup


class RayMetrics:
    """Declares a metric when it is first reported; counters take running totals."""

    def __init__(self, role: str) -> None:
        self._role = role
        self._gauges: dict[str, Gauge] = {}
        self._counters: dict[str, tuple[Counter, float]] = {}

    def report(self, values: Mapping[str, float]) -> None:
        """Raises `KeyError` for a name that `actors/metrics.py` does not declare."""
        for name, value in values.items():
            metric = lookup(name)
            exported = "tamiyo_" + name.replace("/", "_").lower()
            text = f"{metric.help} [{metric.unit}]"
            if metric.kind == "counter":
                counter, before = self._counters.get(name) or (Counter(exported, text, ("role",)), 0.0)
                if value > before:
                    counter.inc(value - before, {"role": self._role})
                self._counters[name] = (counter, max(value, before))
            else:
                gauge = self._gauges.setdefault(name, Gauge(exported, text, ("role",)))
                gauge.set(value, {"role": self._role})
