"""`SeedTrainingEnv`: one host, its slots and one decision per epoch. The one-environment reference."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, SupportsFloat

import gymnasium
import numpy as np
import torch
from numpy.typing import NDArray

from actors.config import EnvConfig, require
from actors.env.blueprints.family import blueprint_choices
from actors.env.host_episode import EpochPlan, EpochResult, HostEpisode
from actors.env.layers.batch_norm import CALIBRATION_ROWS
from actors.env.reference_network import OptimizerSettings, ReferenceNetwork, SeedAlphas
from actors.env.rendering.timeline import Timeline
from actors.env.rng import Purpose, stream
from actors.env.slots import observation
from actors.env.slots.growth_state import EvalResult
from actors.env.slots.lifecycle import Lifecycle
from actors.env.slots.stage import BLENDED
from actors.env.tasks import DataFiles, Task, make_task
from actors.env.twin import Trajectory, TwinCache, padded, twin_config
from actors.types.actions import ActionMasks, Op, seed_action_spec
from actors.types.spaces import Spaces

Obs = dict[str, NDArray[Any]]


def seed_spaces(slots: int, profile: str = "tamiyo") -> Spaces:
    layout = observation.obs_spec(slots)
    blueprints = blueprint_choices()
    spec = seed_action_spec(slots, blueprints, profile)
    return Spaces(spec, layout.base_size, layout.slot_size, slots, len(blueprints))


def check_tasks(config: EnvConfig, run_seed: int) -> list[Task]:
    """One draw of each task; raises `ConfigError` for one that cannot be made or run: here, not in mid-run."""
    files = DataFiles(config.data_dir, config.download)
    return [make_task(name, stream(run_seed, 0, Purpose.TASK_DATA), files) for name in config.tasks]


def gymnasium_spaces(spaces: Spaces) -> tuple[gymnasium.spaces.Dict, gymnasium.spaces.MultiDiscrete]:
    """(observation, action) of one environment."""
    low, high = observation.bounds(spaces.slots)
    seen = gymnasium.spaces.Dict(
        obs=gymnasium.spaces.Box(low, high, dtype=np.float32),
        blueprint_indices=gymnasium.spaces.Box(-1, spaces.num_blueprints - 1, (spaces.slots,), dtype=np.int64),
    )
    return seen, gymnasium.spaces.MultiDiscrete(np.array(spaces.action.sizes))


class SeedTrainingEnv(gymnasium.Env[Obs, NDArray[np.int64]]):
    """Observation: {"obs": [D] float32, "blueprint_indices": [S] int64}; action: one choice per head.

    `info` holds `action_mask` (flat), `slot_mask_by_op` [num_ops, S] and `masks` (exact, see `ActionMasks`). An
    illegal action is turned into WAIT, reported as `info["illegal_action"]` and counted; `strict` raises instead.
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
        require(render_mode in (None, "rgb_array"), f"render_mode is {render_mode!r}: only 'rgb_array' is drawn")
        self.render_mode = render_mode
        check_tasks(self.config, run_seed)
        self.spaces = seed_spaces(self.config.slots, self.config.profile)
        self.observation_space, space = gymnasium_spaces(self.spaces)
        self.action_space: gymnasium.Space[Any] = space
        self.illegal_actions = 0
        self._twins = TwinCache(self._play_twins)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Obs, dict[str, Any]]:
        """Start an episode. Everything in it follows from (run_seed, seed); without a seed one is drawn.

        `options` may name the `topology` that the host is built with, and the `rent_share` that rewards have.
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
        optimizer_settings = OptimizerSettings(c.host_lr, c.seed_lr, c.weight_decay, c.clip_norm)
        with self.device:
            self.network = ReferenceNetwork(self.episode.host, self.episode.host_rng(), optimizer_settings, self.dtype)
            for new in self.episode.initial_seeds:
                blueprint = self.episode.host.family.blueprints[new.blueprint]
                self.network.germinate(new.slot, blueprint, new.blend, new.rng)
        twin = self._twins.trajectories([self.seed])[0] if c.reference == "twin" else ()
        self.episode.begin(self.network.validate(self.val_x, self.val_y, {}), twin)
        self.snapshot = self.network.snapshot()
        return self.episode.observation(), self.episode.info()

    def step(self, action: NDArray[np.int64]) -> tuple[Obs, SupportsFloat, bool, bool, dict[str, Any]]:
        orders, illegal = self.episode.plan_epoch(action, self.strict)
        self._prune(orders.pruned)
        if (new := orders.germinated) is not None:
            blueprint = self.episode.host.family.blueprints[new.blueprint]
            with self.device:
                self.network.germinate(new.slot, blueprint, new.blend, new.rng)
        x, y = self.train_x[orders.rows], self.train_y[orders.rows]
        alphas = SeedAlphas(dict(orders.blended), dict(orders.training))
        statistics = self.network.train_epoch(x, y, alphas, self.config.isolation)
        present = self.network.validate(self.val_x, self.val_y, orders.blended)
        measured = {subset: self._ablate(orders, subset) for subset in orders.subsets[1:]}
        if measured:
            measured[orders.subsets[0]] = self._ablate(orders, orders.subsets[0]) if self.network.running else present
        result = EpochResult(statistics.train_loss, statistics.gradient_norms, present, measured)
        outcome = self.episode.complete_epoch(orders, result, self._roll_back)
        self._prune(outcome.pruned)
        self.snapshot = self.network.snapshot()
        info = self.episode.info()
        if illegal:
            self.illegal_actions += 1
            info["illegal_action"] = illegal
        if outcome.ended:
            info["end_reason"], info["telemetry"] = outcome.end_reason, outcome.telemetry
        return self.episode.observation(), outcome.reward, outcome.terminated, outcome.truncated, info

    def _ablate(self, orders: EpochPlan, subset: frozenset[int]) -> EvalResult:
        on = {s: orders.alphas[s] for s in subset}
        return self.network.ablate(self.val_x, self.val_y, on, self.calibration)

    def _prune(self, slots: tuple[int, ...]) -> None:
        for s in slots:
            if s in self.network.seeds:
                self.network.prune(s)

    def _roll_back(self, pruned: tuple[int, ...]) -> EvalResult:
        """The last good snapshot, without the seeds that the panic pruned."""
        self.network.restore(self.snapshot)
        self._prune(pruned)
        return self.network.validate(self.val_x, self.val_y, self._present())

    def _present(self) -> dict[int, float]:
        return {s: slot.alpha for s, slot in enumerate(self.lifecycle.slots) if slot.stage in BLENDED}

    def _play_twins(self, seeds: Sequence[int]) -> list[Trajectory]:
        twin = SeedTrainingEnv(twin_config(self.config), self.run_seed, dtype=self.dtype, device=self.device)
        wait = np.zeros(len(self.spaces.action.heads), dtype=np.int64)
        found = []
        for seed in seeds:
            twin.reset(seed=seed)
            while not twin.step(wait)[2]:
                pass
            found.append(padded(twin.timeline.accuracy, twin.episode.horizon_epochs))
        return found

    def render(self) -> NDArray[np.uint8] | None:  # type: ignore[override]
        """The episode so far as a picture `[height, width, 3]`; None without a render mode."""
        if self.render_mode is None:
            return None
        from actors.env.rendering.timeline_chart import picture

        return picture(self.timeline)

    def masks(self) -> ActionMasks:
        """Exact legal choices now."""
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

    def test_accuracy(self) -> float:
        """Accuracy in points on the test rows, which nothing else reads; ask once, at the end."""
        x, y = self._tensors(self.task.test.x, self.task.test.y)
        return self.network.validate(x, y, self._present())[0]

    def _tensors(self, x: NDArray[np.float32], y: NDArray[np.int64]) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.from_numpy(x).to(self.device, self.dtype), torch.from_numpy(y).to(self.device)
