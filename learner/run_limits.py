"""`RunLimits`: when a run is complete."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from actors.types.episode import EndReason
from learner.config import LearnerConfig

if TYPE_CHECKING:  # it imports PyTorch, which the command line does not need
    from learner.run.checkpoint import LearnerProgress

LAST_EPISODES = 100  # whose mean return is compared with `learner.stop_at_return`


class RunLimits:
    """The limits of a run other than its time. `notes` receives a line when a run ends by its return."""

    def __init__(self, config: LearnerConfig, notes: list[str]) -> None:
        self.config, self.notes = config, notes
        self._returns: deque[float] = deque(maxlen=LAST_EPISODES)
        self._returned = False  # whether the last episodes returned enough

    def after_update(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Note the returns of an update's episodes, as `episode_record` describes them."""
        wanted = self.config.stop_at_return
        self._returns += [record["return"] for record in records if record["end_reason"] != EndReason.CUT]
        if wanted is None or len(self._returns) < LAST_EPISODES:
            return
        mean = sum(self._returns) / LAST_EPISODES
        if mean >= wanted:
            self._returned = True
            self.notes.append(
                f"the last {LAST_EPISODES} episodes returned {mean:.6g} on average, and learner.stop_at_return is "
                f"{wanted:g}: the run is complete"
            )

    def reached(self, progress: LearnerProgress) -> bool:
        """Whether the run is complete."""
        if self._returned:
            return True
        if self.config.total_steps is not None:
            return progress.env_steps >= self.config.total_steps
        return progress.update >= self.config.updates


def described(config: LearnerConfig) -> str:
    """Say what a run with these settings waits for before it ends."""
    most = f"{config.updates} updates" if config.total_steps is None else f"{config.total_steps} steps"
    found = [most]
    if config.max_seconds is not None:
        found.append(f"{config.max_seconds:g} s")
    if config.stop_at_return is not None:
        found.append(f"a mean return of {config.stop_at_return:g} over {LAST_EPISODES} episodes")
    return found[0] if len(found) == 1 else f"{', '.join(found[:-1])} or {found[-1]}, whichever is first"
