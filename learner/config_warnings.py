"""What a person should know about a run's settings, told once each."""

from __future__ import annotations

import logging

from learner.config import LearnerConfig

log = logging.getLogger(__name__)

RECURRENT_LR = 2.5e-4
RECURRENT_KL = 0.03


class ConfigWarnings:
    """Appends to `notes`, which others may append to as well."""

    def __init__(self, config: LearnerConfig, recurrent: bool, notes: list[str]) -> None:
        """`config` as chosen for the core (`LearnerConfig.for_core`)."""
        self.config, self.recurrent, self.notes = config, recurrent, notes
        self._told: set[str] = set()

    def before_training(self) -> None:
        c = self.config
        if not self.recurrent:
            return
        if c.lr is not None and c.lr > RECURRENT_LR:
            self._tell(
                "lr",
                f"learner.lr is {c.lr:g}, high for a recurrent policy; if training is unsteady try 2.5e-4, then 1e-4",
            )
        if c.update_epochs is not None and c.update_epochs > 1:
            self._tell(
                "update_epochs",
                f"learner.update_epochs is {c.update_epochs}: a recurrent policy moves further with each pass; if "
                "training is unsteady, try 1",
            )

    def after_update(self, metrics: dict[str, float], longest_steps: int) -> None:
        """`longest_steps` of the batch's episodes."""
        c = self.config
        if self.recurrent and metrics["kl"] > RECURRENT_KL:
            self._tell(
                "kl",
                f"an update moved the policy by a KL of {metrics['kl']:.3f}, above {RECURRENT_KL} which recurrent "
                "policies bear well: lower learner.lr or learner.update_epochs",
            )
        if self.recurrent and c.chunk_length is not None and longest_steps > c.chunk_length:
            self._tell(
                "chunks",
                f"episodes of {longest_steps} steps are cut into chunks of {c.chunk_length} (learner.chunk_length): no "
                "gradient crosses a cut, so what must be remembered for longer is learnt badly, and chunks start from "
                f"states of older weights, refreshed by {c.burn_in} steps of learner.burn_in",
            )

    def _tell(self, topic: str, text: str) -> None:
        if topic not in self._told:
            self._told.add(topic)
            self.notes.append(text)
            log.warning(text)
