"""`SeedTrainingEnv`: the environment, one host at a time. Its class docstring is the specification."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, SupportsFloat

import gymnasium
import numpy as np
import torch
from numpy.typing import NDArray

from actors.config import EnvConfig, require
from actors.env.episode.epoch import EpochPlan, EpochResult
from actors.env.episode.twin import Trajectory, TwinCache, padded, twin_config
from actors.env.host_episode import HostEpisode
from actors.env.reference_network import OptimizerSettings, ReferenceNetwork, SeedAlphas
from actors.env.rendering.timeline import Timeline
from actors.env.tasks import DataFiles, Task, make_task
from actors.layers.batch_norm import CALIBRATION_ROWS
from actors.precision import tf32
from actors.rng import Purpose, stream
from actors.slots import observation
from actors.slots.contributions import EvalResult
from actors.slots.lifecycle import Lifecycle, SeedAction
from actors.slots.spaces import seed_spaces
from actors.types.actions import ActionMasks, Op
from actors.types.spaces import Spaces

Obs = dict[str, NDArray[Any]]


def check_tasks(config: EnvConfig, run_seed: int) -> list[Task]:
    """Draw each task once, so that a task that cannot be made raises its `ConfigError` before a run starts."""
    files = DataFiles(config.data_dir, config.download)
    return [make_task(name, stream(run_seed, 0, Purpose.TASK_DATA), files) for name in config.tasks]


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
      or 4 times its width, which reads the host's input and whose logits are added to the host's.
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

    **Reward.** In points of validation accuracy: the change of accuracy, minus `rent_weight` * rent / horizon, minus
    penalties. The rent is log2((host + seeds) / host), counted in parameters: how often the model's size doubled. The
    undiscounted sum is the objective J (see
    `actors.env.episode.reward`, also for the other reward modes).

    **End.** Terminated by the governor (`info["end_reason"]` is `governor`) or at the horizon (`horizon`); with
    `time_limit: truncated` the horizon truncates instead. The last `info` also holds `telemetry`: `objective` (J),
    `final_accuracy`, `growth_ratio` and more.

    `info` also holds, for each slot `[S]`, `contribution`, `interaction` and `shapley` in points (0 if unknown) and
    `contribution_known` etc. Test rows affect nothing; `test_accuracy` reads them.
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 4}  # noqa: RUF012 (Gymnasium's interface)

    def __init__(
        self,
        config: EnvConfig | None = None,
        run_seed: int = 0,
        strict: bool = False,
        dtype: torch.dtype = torch.float32,
        render_mode: str | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        self.config = config or EnvConfig()
        self.run_seed, self.strict, self.dtype, self.device = run_seed, strict, dtype, torch.device(device)
        require(render_mode in (None, "rgb_array"), f"render_mode is {render_mode!r}: give 'rgb_array' or None")
        self.render_mode = render_mode
        check_tasks(self.config, run_seed)
        self.spaces = seed_spaces(self.config.total_slots, self.config.profile)
        self.observation_space, space = gymnasium_spaces(self.spaces)
        self.action_space: gymnasium.Space[Any] = space
        self.illegal_actions = 0
        self._twins = TwinCache(self._play_twins)

    @tf32(False)
    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Obs, dict[str, Any]]:
        """Start an episode; without `seed` one is drawn.

        `options` may hold `topology`, seeds that the host starts with (`actors.slots.topology`), and
        `rent_share`, the fraction of the rent that rewards charge.
        """
        super().reset(seed=seed)
        self.seed = int(self.np_random.integers(2**31)) if seed is None else seed
        c = self.config
        options = options or {}
        topology, rent_share = options.get("topology", ()), options.get("rent_share", 1.0)
        self.episode = HostEpisode(c, self.run_seed, self.seed, self.spaces.action, topology, rent_share)
        self.train_x, self.train_y = self._tensors(self.task.train.x, self.task.train.y)
        self.val_x, self.val_y = self._tensors(self.task.val.x, self.task.val.y)
        self.calibration = self.train_x[np.arange(CALIBRATION_ROWS) % len(self.train_x)]
        optimizer_settings = OptimizerSettings(c.host_lr, c.host_lr)
        with self.device:
            self.network = ReferenceNetwork(
                self.episode.host, self.episode.host_rng(), optimizer_settings, self.dtype, c.column_slots
            )
            for new in self.episode.initial_seeds:
                self.network.germinate(new.slot, new.blueprint, new.blend, new.rng)
        twin = self._twins.trajectories([self.seed])[0] if c.reference == "twin" else ()
        self.episode.begin(self.network.evaluate(self.val_x, self.val_y, {}), twin)
        self.snapshot = self.network.snapshot()
        return self.episode.observation(), self.episode.info()

    @tf32(False)
    def step(self, action: NDArray[np.int64] | SeedAction) -> tuple[Obs, SupportsFloat, bool, bool, dict[str, Any]]:
        """Take one action and train one epoch; see the class for the order of events."""
        choices = action.as_array(self.config.profile) if isinstance(action, SeedAction) else action
        plan, illegal = self.episode.plan_epoch(choices, self.strict)
        self._prune(plan.pruned)
        if (new := plan.germinated) is not None:
            with self.device:
                self.network.germinate(new.slot, new.blueprint, new.blend, new.rng)
        x, y = self.train_x[plan.rows], self.train_y[plan.rows]
        alphas = SeedAlphas(dict(plan.blended), dict(plan.training))
        statistics = self.network.train_epoch(x, y, alphas, self.config.isolation)
        validation = self.network.evaluate(self.val_x, self.val_y, plan.blended)
        ablations = {subset: self._ablate(plan, subset) for subset in plan.subsets[1:]}
        if ablations:
            current = plan.subsets[0]
            ablations[current] = self._ablate(plan, current) if self.network.running else validation
        scores = {s: x for s, x in statistics.scores.items() if s not in plan.alphas}
        result = EpochResult(statistics.train_loss, statistics.gradient_norms, scores, validation, ablations)
        outcome = self.episode.complete_epoch(plan, result, self._roll_back)
        self._prune(outcome.pruned)
        self.snapshot = self.network.snapshot()
        info = self.episode.info()
        if illegal:
            self.illegal_actions += 1
            info["illegal_action"] = illegal
        if outcome.ended:
            info["end_reason"], info["telemetry"] = outcome.end_reason, outcome.telemetry
        return self.episode.observation(), outcome.reward, outcome.terminated, outcome.truncated, info

    def _ablate(self, plan: EpochPlan, subset: frozenset[int]) -> EvalResult:
        alphas = {s: plan.alphas[s] for s in subset}
        return self.network.ablate(self.val_x, self.val_y, alphas, self.calibration)

    def _prune(self, slots: tuple[int, ...]) -> None:
        for s in slots:
            if s in self.network.seeds:
                self.network.prune(s)

    def _roll_back(self, pruned: tuple[int, ...]) -> EvalResult:
        """Restore the last snapshot, without the seeds of the slots `pruned`."""
        self.network.restore(self.snapshot)
        self._prune(pruned)
        return self.network.evaluate(self.val_x, self.val_y, self.episode.growth.blended())

    def _play_twins(self, seeds: Sequence[int]) -> list[Trajectory]:
        twin = SeedTrainingEnv(twin_config(self.config), self.run_seed, dtype=self.dtype, device=self.device)
        wait = np.zeros(len(self.spaces.action.heads), dtype=np.int64)
        trajectories = []
        for seed in seeds:
            twin.reset(seed=seed)
            while not twin.step(wait)[2]:
                pass
            trajectories.append(padded(twin.timeline.accuracy, twin.episode.horizon_epochs))
        return trajectories

    def render(self) -> NDArray[np.uint8] | None:  # type: ignore[override]
        """Draw the episode so far: RGB `[height, width, 3]`; None without a render mode."""
        if self.render_mode is None:
            return None
        from actors.env.rendering.timeline_chart import picture

        return picture(self.timeline)

    def masks(self) -> ActionMasks:
        """Return the legal choices of the next action."""
        return self.episode.masks()

    @property
    def task(self) -> Task:
        return self.episode.task

    @property
    def lifecycle(self) -> Lifecycle:
        return self.episode.lifecycle

    @property
    def timeline(self) -> Timeline:
        return self.episode.timeline

    @property
    def last_op(self) -> Op:
        return self.episode.last_op

    @property
    def last_success(self) -> bool:
        return self.episode.last_success

    @tf32(False)
    def test_accuracy(self) -> float:
        """Return the accuracy on the test rows, in points. Nothing else reads them."""
        x, y = self._tensors(self.task.test.x, self.task.test.y)
        return self.network.evaluate(x, y, self.episode.growth.blended()).accuracy

    def _tensors(self, x: NDArray[np.float32], y: NDArray[np.int64]) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.from_numpy(x).to(self.device, self.dtype), torch.from_numpy(y).to(self.device)
