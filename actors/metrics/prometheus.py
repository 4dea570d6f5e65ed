"""Metrics of a process without Ray, on a port of its own, as `tamiyo_<name>`."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from actors.errors import UserError
from actors.metrics.registry import exported

Labels = tuple[tuple[str, str], ...]


class ProcessMetrics(Collector):
    """What was reported last, of each role; counters take running totals. Safe to use from several threads."""

    def __init__(self, run: str) -> None:
        self._run = run
        self._lock = threading.Lock()
        self._values: dict[str, dict[Labels, float]] = {}
        self._texts: dict[str, tuple[str, str]] = {}  # kind, text

    def reporter(self, role: str) -> Callable[[Mapping[str, float]], None]:
        """Takes what one role reports; raises `KeyError` for a name that `actors.metrics.registry` does not declare."""

        def report(values: Mapping[str, float]) -> None:
            for name, value in values.items():
                shown = exported(name)
                labels = {"role": role, "run": self._run} | shown.labels
                with self._lock:
                    self._texts[shown.name] = (shown.metric.kind, shown.text)
                    self._values.setdefault(shown.name, {})[tuple(labels.items())] = value

        return report

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        with self._lock:
            values = {name: dict(rows) for name, rows in self._values.items()}
        for name, rows in values.items():
            kind, text = self._texts[name]
            family = CounterMetricFamily if kind == "counter" else GaugeMetricFamily
            labels = [label for label, _ in next(iter(rows))]
            shown = family(name, text, labels=labels)
            for row, value in rows.items():
                shown.add_metric([member for _, member in row], value)
            yield shown

    def serve(self, host: str, port: int) -> Callable[[], None]:
        """Show them at http://host:port/metrics; returns what ends that. Raises `UserError` where it cannot."""
        registry = CollectorRegistry()
        registry.register(self)
        try:
            server, thread = start_http_server(port, host, registry)
        except OSError as error:
            raise UserError(f"cannot show metrics on {host}:{port} ({error.strerror or error})") from error

        def end() -> None:
            server.shutdown()
            server.server_close()
            thread.join()

        return end
