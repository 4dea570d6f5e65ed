"""`SeedTrainingEnv`: the environment, one host at a time. Its class docstring is the specification."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from actors.config import EnvConfig, require
from actors.env.episode.host_episode import HostEpisode
from actors.env.seed_fleet import SeedTrainingFleet
from actors.slots import observation
from actors.slots.lifecycle import SeedAction
from actors.types.actions import ActionMasks
from actors.types.spaces import Spaces

Obs = dict[str, NDArray[Any]]


def gymnasium_spaces(spaces: Spaces) -> tuple[gymnasium.spaces.Dict, gymnasium.spaces.MultiDiscrete]:
    """Return Gymnasium's observation and action spaces of one environment."""
    low, high = observation.bounds(spaces.slots)
    observation_space = gymnasium.spaces.Dict(
        obs=gymnasium.spaces.Box(low, high, dtype=np.float32),
        blueprint_indices=gymnasium.spaces.Box(-1, spaces.num_blueprints - 1, (spaces.slots,), dtype=np.int64),
    )
    return observation_space, gymnasium.spaces.MultiDiscrete(np.array(spaces.action.sizes))


class SeedTrainingEnv(gymnasium.Env[Obs, NDArray[np.int64]]):
    """Train one host network epoch by epoch, and let a policy grow it.

    **Episode.** `reset` draws a task, its data, a host and its initial weights; all follow from `run_seed` and the
    episode's `seed`, and so do the host's width, the price of parameters, the number of epochs (`horizon_epochs`) and
    of minibatches in each (`inner_steps`), where the configuration gives a range. The optimizer is AdamW. The host has
    `slots` slots in its stream and `column_slots` slots for columns, all DORMANT at first.

    **Observation.** `{"obs": float32 [D], "blueprint_indices": int64 [S]}`: base features, then the features of each
    slot, as `actors.slots.observation` lists them; and the blueprint in each slot, -1 if it is empty.

    **Action.** int64, one choice per head: op, slot, blueprint, blend, alpha target, alpha speed (the indices of
    `actors.types.actions`). The op decides which heads matter:

    - WAIT does nothing.
    - GERMINATE puts a new seed of this blueprint into a DORMANT slot, within the parameter budget. In the stream, a
      seed is a small module between two layers; in a column slot, a network of the host's architecture at 1/2, 1, 2
      or 4 times its width, which reads the host's input and whose logits are mixed with the host's.
    - ADVANCE moves a seed from GERMINATED to TRAINING (it learns, the host ignores it) or from TRAINING to BLENDING
      (it joins the host, while alpha rises from 0 to its target).
    - SET_ALPHA_TARGET moves a seed in BLENDING or HOLDING (alpha at its target) to another alpha.
    - FOSSILIZE keeps a HOLDING seed for good.
    - PRUNE removes a seed that is not fossilized, once alpha has fallen to 0. Its slot rests for `EMBARGO_EPOCHS`.

    `gates` sets the evidence that ADVANCE and FOSSILIZE need. The `classic` profile has fewer heads and ops and
    advances by itself. `info` holds the legal choices: `action_mask` (flat), `slot_mask_by_op` `[num_ops, S]` and
    `masks` (exact, `ActionMasks`). An illegal action becomes WAIT, is reported as `info["illegal_action"]` and
    counted; with `strict` it raises `IllegalAction`.

    **Step.** (1) The action is applied and alphas move by one epoch. (2) The host trains for one epoch; seeds in
    TRAINING learn without affecting it. (3) The host is validated, and each seed's contribution is measured by
    switching seeds off. (4) The governor ends the episode if the loss is not finite, explodes, or accuracy collapses:
    it restores the last good epoch without the seeds that are not fossilized, and charges a penalty. (5) Slots take
    the transitions that need no decision.

    **Reward.** In points of validation accuracy: the change of accuracy, minus `points_per_doubling` times the change
    of D, minus `points_per_compute_doubling` times the change of C, minus penalties. D is how often the parameters of
    the model doubled by the seeds that are part of it, C how often the FLOPs of the whole training did. The
    undiscounted sum is the objective J (see `actors.slots.objective`, and `actors.env.episode.reward` for the other
    reward modes).
    The accuracy of rewards is measured on validation rows that neither the observation nor contributions depend on.

    **End.** Terminated by the governor (`info["end_reason"]` is `governor`) or at the horizon (`horizon`); with
    `time_limit: truncated` the horizon truncates instead, and is hidden. The last `info` also holds `telemetry`:
    `objective` (J), `final_accuracy`, `doublings`, `compute_doublings` and more.

    `info` also holds, for each slot `[S]`, `contribution` and `interaction` in points (0 if unknown),
    `contribution_known` and `interaction_known`. Test rows affect nothing; `test_accuracy` reads them.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 4}  # noqa: RUF012 (Gymnasium's interface)

    def __init__(
        self, config: EnvConfig | None = None, run_seed: int = 0, strict: bool = False, render_mode: str | None = None
    ) -> None:
        self.config, self.strict, self.render_mode = config or EnvConfig(), strict, render_mode
        require(render_mode in (None, "rgb_array"), f"render_mode is {render_mode!r}: give 'rgb_array' or None")
        self.fleet = SeedTrainingFleet(self.config, 1, run_seed)
        self.spaces = self.fleet.spaces
        self.observation_space, space = gymnasium_spaces(self.spaces)
        self.action_space: gymnasium.Space[Any] = space

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Obs, dict[str, Any]]:
        """Start an episode; without `seed` one is drawn."""
        super().reset(seed=seed)
        seen = self.fleet.reset([int(self.np_random.integers(2**31)) if seed is None else seed])
        return seen.observation(0), self.fleet.info(0)

    def step(self, action: NDArray[np.int64] | SeedAction) -> tuple[Obs, float, bool, bool, dict[str, Any]]:
        """Take one action and train one epoch; see the class for the order of events."""
        choices = action.as_array(self.config.profile) if isinstance(action, SeedAction) else np.asarray(action)
        seen = self.fleet.step(choices[None], self.strict)
        info = self.fleet.info(0, seen)
        return seen.observation(0), float(seen.rewards[0]), bool(seen.terminated[0]), bool(seen.truncated[0]), info

    def render(self) -> NDArray[np.uint8] | None:  # type: ignore[override]
        """Draw the episode so far: RGB `[height, width, 3]`; None without a render mode."""
        if self.render_mode is None:
            return None
        from actors.env.rendering.timeline_chart import picture

        return picture(self.episode.timeline)

    @property
    def episode(self) -> HostEpisode:
        """The current episode: its task, its slots, and the record of its epochs."""
        return self.fleet.episodes[0]

    def masks(self) -> ActionMasks:
        """Return the legal choices of the next action."""
        return self.fleet.masks(0)

    def test_accuracy(self) -> float:
        """Return the accuracy on the test rows, in points. Nothing else reads them."""
        return self.fleet.test_accuracies([0])[0]
