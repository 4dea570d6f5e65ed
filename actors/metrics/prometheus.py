"""Prometheus endpoint for processes without Ray; metrics are named `tamiyo_<name>`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from actors.errors import UserError
from actors.metrics.http import MetricsServer
from actors.metrics.registry import exported

Labels = tuple[tuple[str, str], ...]


class ProcessMetrics(Collector):
    """Exports the last reported values of each role. Counters are reported as running totals. Thread-safe."""

    def __init__(self, run: str) -> None:
        self._run = run
        self._lock = threading.Lock()
        self._values: dict[str, dict[Labels, float]] = {}
        self._help: dict[str, tuple[str, str]] = {}  # kind, help text

    def reporter(self, role: str) -> Callable[[Mapping[str, float]], None]:
        """Return a function that records the metrics of one role.

        The function raises `KeyError` for a name that `actors.metrics.registry` does not declare.
        """

        def report(values: Mapping[str, float]) -> None:
            for name, value in values.items():
                series = exported(name)
                labels = {"role": role, "run": self._run} | series.labels
                with self._lock:
                    self._help[series.name] = (series.metric.kind, series.help)
                    self._values.setdefault(series.name, {})[tuple(labels.items())] = value

        return report

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        """See `prometheus_client.registry.Collector.collect`."""
        with self._lock:
            values = {name: dict(rows) for name, rows in self._values.items()}
        for name, rows in values.items():
            kind, help_text = self._help[name]
            family_type = CounterMetricFamily if kind == "counter" else GaugeMetricFamily
            labels = [label for label, _ in next(iter(rows))]
            family = family_type(name, help_text, labels=labels)
            for row, value in rows.items():
                family.add_metric([member for _, member in row], value)
            yield family

    def serve(self, host: str, port: int) -> Callable[[], None]:
        """Serve the metrics at http://host:port/metrics and return a function that stops the server.

        Raises `UserError` if the address cannot be used.
        """
        registry = CollectorRegistry()
        registry.register(self)
        try:
            return MetricsServer(host, port, registry).close
        except OSError as error:
            raise UserError(f"cannot serve metrics on {host}:{port} ({error.strerror or error})") from error
