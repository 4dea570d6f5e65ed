"""`ServingMetrics`: the Prometheus metrics of the policy server."""

from __future__ import annotations

from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from actors.metrics.registry import SERVE, prometheus_name
from actors.serving.server.training import Account

FIGURES = ("produced", "accepted", "steps", "cut_sessions", "dropped_sessions", "refused")
_KINDS: dict[str, Any] = {"counter": Counter, "gauge": Gauge, "histogram": Histogram}
_SECONDS_BUCKETS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0)
_STEPS_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


class ServingMetrics:
    """One attribute for each metric of `actors.metrics.registry.SERVE`, in a Prometheus registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.steps = self._add("serve_steps")
        self.replays = self._add("serve_replays")
        self.refusals = self._add("serve_refusals", "reason")
        self.step_s = self._add("serve_step_s", buckets=_SECONDS_BUCKETS)
        self.batch_steps = self._add("serve_batch_steps", buckets=_STEPS_BUCKETS)
        self.forward_s = self._add("serve_forward_s", buckets=_SECONDS_BUCKETS)
        self.sessions = self._add("serve_sessions")
        self.opened = self._add("serve_sessions_opened")
        self.imported = self._add("serve_sessions_imported")
        self.expired = self._add("serve_sessions_expired")
        self.evicted = self._add("serve_sessions_evicted")
        self.moved = self._add("serve_sessions_moved")
        self.policy_version = self._add("serve_policy_version")
        self.versions_held = self._add("serve_versions_held")
        self.swaps = self._add("serve_swaps")
        self._totals = {figure: self._add(f"serve_train_{figure}", "account") for figure in FIGURES}
        self._unsent = self._add("serve_train_unsent", "account")
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

    def _add(self, name: str, *labels: str, **options: Any) -> Any:
        metric = SERVE[name]
        text = f"{metric.help} [{metric.unit}]"
        return _KINDS[metric.kind](prometheus_name(metric), text, labels, registry=self.registry, **options)
