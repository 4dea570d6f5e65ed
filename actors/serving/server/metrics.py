"""`ServingMetrics`: the Prometheus metrics of the policy server."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from actors.metrics.registry import SERVE, prometheus_name
from actors.serving.account import Account

FIGURES = ("produced", "accepted", "steps", "cut_sessions", "dropped_sessions", "refused")
_SECONDS_BUCKETS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0)
_STEPS_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


class ServingMetrics:
    """One attribute for each metric of `actors.metrics.registry.SERVE`, in a Prometheus registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.steps = self._counter("serve_steps")
        self.replays = self._counter("serve_replays")
        self.refusals = self._counter("serve_refusals", ("reason",))
        self.step_s = self._histogram("serve_step_s", _SECONDS_BUCKETS)
        self.batch_steps = self._histogram("serve_batch_steps", _STEPS_BUCKETS)
        self.forward_s = self._histogram("serve_forward_s", _SECONDS_BUCKETS)
        self.sessions = self._gauge("serve_sessions")
        self.opened = self._counter("serve_sessions_opened")
        self.imported = self._counter("serve_sessions_imported")
        self.expired = self._counter("serve_sessions_expired")
        self.evicted = self._counter("serve_sessions_evicted")
        self.moved = self._counter("serve_sessions_moved")
        self.policy_version = self._gauge("serve_policy_version")
        self.versions_held = self._gauge("serve_versions_held")
        self.swaps = self._counter("serve_swaps")
        self._totals = {figure: self._counter(f"serve_train_{figure}", ("account",)) for figure in FIGURES}
        self._unsent = self._gauge("serve_train_unsent", ("account",))
        self._counted: dict[tuple[str, str], int] = {}  # by account and figure

    def observe_batch(self, steps: int, seconds: float) -> None:
        """Record one forward pass."""
        self.batch_steps.observe(steps)
        self.forward_s.observe(seconds)

    def count(self, account: Account) -> None:
        """Set the metrics of one account of training sessions."""
        for figure, counter in self._totals.items():
            value, key = getattr(account, figure), (account.name, figure)
            counter.labels(account.name).inc(value - self._counted.get(key, 0))
            self._counted[key] = value
        self._unsent.labels(account.name).set(account.unsent)

    def _counter(self, name: str, labels: tuple[str, ...] = ()) -> Counter:
        return Counter(prometheus_name(SERVE[name]), _description(name), labels, registry=self.registry)

    def _gauge(self, name: str, labels: tuple[str, ...] = ()) -> Gauge:
        return Gauge(prometheus_name(SERVE[name]), _description(name), labels, registry=self.registry)

    def _histogram(self, name: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(prometheus_name(SERVE[name]), _description(name), buckets=buckets, registry=self.registry)


def _description(name: str) -> str:
    return f"{SERVE[name].help} [{SERVE[name].unit}]"
