"""Warnings about a run's metrics, each given once, but that of a large KL again while it stays large."""

from __future__ import annotations

import logging
from math import inf

from learner.config import LearnerConfig

log = logging.getLogger(__name__)

KL_UPDATES = 5  # in a row with a large KL, after which it is reported again; then after twice as many, and so on
LAG_KL = 0.1
"""KL in nats between the acting and the learning policy at which a typical ratio is off by one half, more than twice
what the clip permits."""


class MetricWarnings:
    """Appends to `notes`, which other components append to as well."""

    def __init__(self, config: LearnerConfig, notes: list[str]) -> None:
        self.config, self.notes = config, notes
        self._given: set[str] = set()
        self._large_kl, self._report_at = 0, KL_UPDATES  # updates in a row

    def after_update(self, metrics: dict[str, float]) -> None:
        c = self.config
        error = metrics.get("ratio_error", 0.0)
        if error > c.ratio_error_limit:
            self._warn(
                "ratio_error",
                f"acting and learning disagree: ratios of steps chosen by the current weights are off by {error:.2g}, "
                f"more than {c.ratio_error_limit:g} (ratio_error); make sure that actors and learner run the same "
                "version, and compare how their devices round",
            )
        if metrics["lag_kl"] > LAG_KL:
            self._warn(
                "lag_kl",
                f"the policy that acted is {metrics['lag_kl']:.2f} nats away from the one that learns, above {LAG_KL} "
                "(lag_kl): much of the data falls outside the clip; run fewer actors, lower learner.max_policy_lag or "
                "learner.lr, or set learner.objective decoupled",
            )
        self._about_sizes(metrics)
        self._about_kl(metrics["kl"], metrics.get("kl_limit", inf))

    def _about_kl(self, kl: float, limit: float) -> None:
        if kl <= limit:
            self._large_kl, self._report_at = 0, KL_UPDATES
            return
        self._large_kl += 1
        what = (
            f"by a KL of {kl:.3g}, above {limit:.3g} (1.5 x learner.target_kl): lower learner.lr or "
            "learner.update_epochs, or raise learner.minibatches, before each of which the KL is checked"
        )
        self._warn("kl", f"an update moved the policy {what}")
        if self._large_kl == self._report_at:
            self._report_at *= 2
            self._note(f"{self._large_kl} updates in a row moved the policy too far, the last one {what}")

    def _about_sizes(self, metrics: dict[str, float]) -> None:
        if rewards := metrics.get("clipped_rewards", 0):
            self._warn(
                "rewards",
                f"{rewards:.0f} rewards of a batch were more than 100 standard deviations of the return in size, and "
                "were clipped to that (clipped_rewards): if they are intended, scale the environment's rewards",
            )
        if values := metrics.get("clipped_values", 0):
            self._warn(
                "values",
                f"{values:.0f} values of a batch were more than 100 standard deviations of the return from its mean, "
                "and were clipped to that (clipped_values): check the bootstrap values of the actors and of imported "
                "episodes",
            )
        if steps := metrics.get("clipped_log_probs", 0):
            self._warn(
                "log-probs",
                f"{steps:.0f} steps of a batch were over e^20 times as probable as when they were chosen, and their "
                "log-probs were raised (clipped_log_probs): make sure that all actors run the learner's version",
            )
        if observations := metrics.get("clipped_observations", 0):
            self._warn(
                "observations",
                f"{observations:.0f} entries of a batch's observations were more than 100 standard deviations from "
                "their mean, and were winsorised for the running statistics (clipped_observations): check the "
                "environment's observations, and bound them there",
            )

    def _warn(self, topic: str, text: str) -> None:
        if topic not in self._given:
            self._given.add(topic)
            self._note(text)

    def _note(self, text: str) -> None:
        self.notes.append(text)
        log.warning(text)
