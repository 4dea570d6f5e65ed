"""Warnings about a run's settings and metrics, each given once."""

from __future__ import annotations

import logging

from learner.config import LearnerConfig

log = logging.getLogger(__name__)

RECURRENT_LR = 2.5e-4
RECURRENT_KL = 0.03
LAG_KL = 0.1
"""KL in nats between the acting and the learning policy at which a typical ratio is off by one half, more than twice
what the clip permits."""


class ConfigWarnings:
    """Appends to `notes`, which other components append to as well."""

    def __init__(self, config: LearnerConfig, recurrent: bool, notes: list[str]) -> None:
        """`config` must contain the defaults of its core (`LearnerConfig.for_core`)."""
        self.config, self.recurrent, self.notes = config, recurrent, notes
        self._given: set[str] = set()

    def before_training(self) -> None:
        c = self.config
        if not self.recurrent:
            return
        if c.lr is not None and c.lr > RECURRENT_LR:
            self._warn(
                "lr",
                f"learner.lr is {c.lr:g}, high for a recurrent policy; if training is unstable, try 2.5e-4, then 1e-4",
            )
        if c.update_epochs is not None and c.update_epochs > 1:
            self._warn(
                "update_epochs",
                f"learner.update_epochs is {c.update_epochs}: a recurrent policy moves further with each pass; if "
                "training is unstable, try 1",
            )

    def after_update(self, metrics: dict[str, float], longest_steps: int) -> None:
        """`longest_steps` is the number of steps of the longest episode in the batch."""
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
        if self.recurrent and metrics["kl"] > RECURRENT_KL:
            self._warn(
                "kl",
                f"an update moved the policy by a KL of {metrics['kl']:.3f}, above {RECURRENT_KL}, the "
                "limit for recurrent policies: lower learner.lr or learner.update_epochs",
            )
        if self.recurrent and c.chunk_length is not None and longest_steps > c.chunk_length:
            self._warn(
                "chunks",
                f"episodes of {longest_steps} steps are cut into chunks of {c.chunk_length} (learner.chunk_length): no "
                "gradient crosses a cut, so that longer dependencies are learned poorly, and chunks start from states "
                f"of older weights, refreshed by {c.burn_in} steps of learner.burn_in",
            )

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
            self.notes.append(text)
            log.warning(text)
