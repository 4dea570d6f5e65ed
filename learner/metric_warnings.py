"""Warnings about a run's metrics, each given once, but that of a KL that stays large again while it does."""

from __future__ import annotations

import logging
from math import inf

from learner.config import LearnerConfig

log = logging.getLogger(__name__)

KL_UPDATES = 5  # in a row with a large KL, after which it is reported; then after twice as many, and so on
LAG_KL = 0.1
"""KL in nats between the acting and the learning policy at which a typical ratio is off by one half, more than twice
what the clip permits."""
TEXTS = {
    "ratio_error": "acting and learning disagree: ratios of steps chosen by the current weights are off by "
    "{value:.2g}, more than {limit:g} (ratio_error); make sure that actors and learner run the same version, and "
    "compare how their devices round",
    "lag_kl": "the policy that acted is {value:.2f} nats away from the one that learns, above {limit} (lag_kl): much "
    "of the data falls outside the clip; run fewer actors, lower learner.max_policy_lag or learner.lr, or set "
    "learner.objective decoupled",
    "clipped_rewards": "{value:.0f} rewards of a batch were more than 100 standard deviations of the return in size, "
    "and were clipped to that (clipped_rewards): if they are intended, scale the environment's rewards",
    "clipped_values": "{value:.0f} values of a batch were more than 100 standard deviations of the return from its "
    "mean, and were clipped to that (clipped_values): check the bootstrap values of the actors and of imported "
    "episodes",
    "clipped_log_probs": "{value:.0f} steps of a batch were over e^20 times as probable as when they were chosen, and "
    "their log-probs were raised (clipped_log_probs): make sure that all actors run the learner's version",
    "clipped_observations": "{value:.0f} entries of a batch's observations were more than 100 standard deviations from "
    "their mean, and were winsorised for the running statistics (clipped_observations): check the environment's "
    "observations, and bound them there",
}
"""By the metric that exceeded its limit."""
LARGE_KL = (
    "{updates} updates in a row moved the policy too far, the last one by a KL of {value:.3g}, above {limit:.3g} (1.5 "
    "x learner.target_kl): lower learner.lr or learner.update_epochs, or raise learner.minibatches, before each of "
    "which the KL is checked"
)


class MetricWarnings:
    """Appends to `notes`, which other components append to as well."""

    def __init__(self, config: LearnerConfig, notes: list[str]) -> None:
        self.config, self.notes = config, notes
        self._given: set[str] = set()
        self._large_kl, self._report_at = 0, KL_UPDATES  # updates in a row

    def after_update(self, metrics: dict[str, float]) -> None:
        kl, kl_limit = metrics["kl"], metrics.get("kl_limit", inf)
        limits = {"ratio_error": self.config.ratio_error_limit, "lag_kl": LAG_KL}
        for name, text in TEXTS.items():
            value, limit = metrics.get(name, 0.0), limits.get(name, 0.0)
            if value > limit and name not in self._given:
                self._given.add(name)
                self._note(text.format(value=value, limit=limit))
        if kl <= kl_limit:
            self._large_kl, self._report_at = 0, KL_UPDATES
            return
        self._large_kl += 1
        if self._large_kl == self._report_at:
            self._report_at *= 2
            self._note(LARGE_KL.format(updates=self._large_kl, value=kl, limit=kl_limit))

    def _note(self, text: str) -> None:
        self.notes.append(text)
        log.warning(text)
