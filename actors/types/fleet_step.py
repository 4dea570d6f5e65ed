"""`FleetStep`: what a fleet of environments returns from one step."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from actors.types.actions import ActionMasks
from actors.types.episode import EndReason


class FleetStep(NamedTuple):
    """What E environments return from one step. Environments that ended earlier repeat their last observation."""

    obs: NDArray[np.float32]  # [E, D]
    blueprint_indices: NDArray[np.int64]  # [E, S]
    masks: ActionMasks  # [E, ...]
    rewards: NDArray[np.float32]  # [E], 0 after a reset
    terminated: NDArray[np.bool_]  # [E], True in the step that ends an episode
    truncated: NDArray[np.bool_]  # [E], True in the step that cuts an episode off
    end_reasons: tuple[EndReason | None, ...]  # [E]
    telemetry: tuple[dict[str, float], ...]  # [E], empty unless the episode ended with this step

    def observation(self, env: int) -> dict[str, NDArray[Any]]:
        """Return the observation of one environment, as Gymnasium's."""
        return {"obs": self.obs[env], "blueprint_indices": self.blueprint_indices[env]}
