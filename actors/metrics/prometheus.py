"""Prometheus endpoint for processes without Ray; metrics are named `tamiyo_<name>`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from actors.errors import UserError
from actors.metrics.http import MetricsServer
from actors.metrics.registry import exported, lookup


class ProcessMetrics(Collector):
    """Exports the last reported values of each role. Counters are reported as running totals. Thread-safe."""

    def __init__(self, run: str) -> None:
        self._run = run
        self._lock = threading.Lock()
        self._values: dict[tuple[str, str], float] = {}  # by role and reported name

    def reporter(self, role: str) -> Callable[[Mapping[str, float]], None]:
        """Return a function that records the metrics of one role.

        The function raises `KeyError` for a name that `actors.metrics.registry` does not declare.
        """

        def report(values: Mapping[str, float]) -> None:
            for name, value in values.items():
                lookup(name)
                with self._lock:
                    self._values[role, name] = value

        return report

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        """See `prometheus_client.registry.Collector.collect`."""
        with self._lock:
            values = dict(self._values)
        families: dict[str, CounterMetricFamily | GaugeMetricFamily] = {}
        for (role, name), value in values.items():
            series = exported(name)
            labels = {"role": role, "run": self._run} | series.labels
            if series.name not in families:
                family_type = CounterMetricFamily if series.metric.kind == "counter" else GaugeMetricFamily
                families[series.name] = family_type(series.name, series.help, labels=list(labels))
            families[series.name].add_metric(list(labels.values()), value)
        yield from families.values()

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
