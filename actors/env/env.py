"""`SeedTrainingEnv`: one host, its slots and one decision per epoch. The one-environment reference (SPEC 3)."""

from __future__ import annotations

import logging
from math import isfinite
from typing import Any, SupportsFloat

import gymnasium
import numpy as np
import torch
from numpy.typing import NDArray

from actors.actions import ActionMasks, Op, seed_action_spec
from actors.config import EnvConfig
from actors.env import governor, observation
from actors.env.blends import gate_shapes
from actors.env.blueprints import MLP_BLUEPRINTS
from actors.env.contributions import Contributions, Subset, measure
from actors.env.growing import EpochStatistics, GrowingNetwork, Optimisation, Switches
from actors.env.host import MLPHost
from actors.env.lifecycle import GATES, IllegalAction, Lifecycle, SeedAction
from actors.env.reward import objective_reward
from actors.env.rng import Purpose, stream
from actors.env.stage import BLENDED, Stage
from actors.env.tasks import Task, make_task
from actors.env.timeline import Timeline
from actors.episode import EndReason
from actors.spaces import Spaces

log = logging.getLogger(__name__)

Obs = dict[str, NDArray[Any]]
HEALTHY_NORM = (1e-8, 100.0)


def seed_spaces(slots: int) -> Spaces:
    layout = observation.obs_spec(slots)
    names = tuple(b.name for b in MLP_BLUEPRINTS)
    return Spaces(seed_action_spec(slots, names), layout.base_size, layout.slot_size, slots, len(names))


class SeedTrainingEnv(gymnasium.Env[Obs, NDArray[np.int64]]):
    """Observation: {"obs": [D] float32, "blueprint_indices": [S] int64}; action: one choice per head.

    `info` holds `action_mask` (flat), `slot_mask_by_op` [num_ops, S] and `masks` (exact, see `ActionMasks`). An
    illegal action is turned into WAIT, reported as `info["illegal_action"]` and counted; `strict` raises instead.
    """

    metadata = {"render_modes": []}  # noqa: RUF012 (Gymnasium's interface)

    def __init__(
        self,
        config: EnvConfig | None = None,
        run_seed: int = 0,
        strict: bool = False,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.config = config or EnvConfig()
        self.run_seed = run_seed
        self.strict = strict
        self.dtype = dtype
        self.spaces = seed_spaces(self.config.slots)
        low, high = observation.bounds(self.config.slots)
        self.observation_space = gymnasium.spaces.Dict(
            obs=gymnasium.spaces.Box(low, high, dtype=np.float32),
            blueprint_indices=gymnasium.spaces.Box(
                -1, self.spaces.num_blueprints - 1, (self.config.slots,), dtype=np.int64
            ),
        )
        self.action_space: gymnasium.Space[Any] = gymnasium.spaces.MultiDiscrete(np.array(self.spaces.action.sizes))
        self.illegal_actions = 0
        for name in self.config.tasks:
            make_task(name, stream(run_seed, 0, Purpose.TASK_DATA))  # a bad name is refused here, not in mid-run

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Obs, dict[str, Any]]:
        """Start an episode. Everything in it follows from (run_seed, seed); without a seed one is drawn."""
        super().reset(seed=seed)
        self.seed = int(self.np_random.integers(2**31)) if seed is None else seed
        c = self.config
        choice = int(stream(self.run_seed, self.seed, Purpose.TASK_CHOICE).integers(len(c.tasks)))
        self.task: Task = make_task(c.tasks[choice], stream(self.run_seed, self.seed, Purpose.TASK_DATA))
        self.train_x, self.train_y = self._tensors(self.task.train.x, self.task.train.y)
        self.val_x, self.val_y = self._tensors(self.task.val.x, self.task.val.y)
        host = MLPHost(self.task.num_features, self.task.host_width, self.task.num_classes, c.slots)
        optimisation = Optimisation(c.host_lr, c.seed_lr, c.weight_decay, c.clip_norm)
        self.network = GrowingNetwork(
            host, stream(self.run_seed, self.seed, Purpose.HOST_INIT), optimisation, self.dtype
        )
        self.host_params = host.num_params()
        self.budget_params = c.budget_ratio * self.host_params
        self.lifecycle = Lifecycle(c.slots, GATES[c.gates], c.embargo_epochs)
        self.governor = governor.Governor(self.task.num_classes, self.task.chance_loss)
        self.epoch = 0
        self.germinations = 0
        self.last_op, self.last_success = Op.WAIT, True
        accuracy, loss = self.network.validate(self.val_x, self.val_y, {})
        self.accuracies, self.val_losses = [accuracy], [loss]
        self.snapshot = self.network.snapshot()
        self.timeline = Timeline(self.task.task_id, self.seed, c.horizon_epochs, c.slots, [accuracy])
        return self._observation(), self._info()

    def step(self, action: NDArray[np.int64]) -> tuple[Obs, SupportsFloat, bool, bool, dict[str, Any]]:
        executed, illegal = self._legal(action)
        self._apply(executed)
        self.lifecycle.tick_alpha()
        switches = self._switches()
        statistics = self.network.train_epoch(*self._minibatches(), switches, self.config.isolation)
        self._record_gradients(statistics, switches)
        accuracy, loss = self._validate(switches)
        self.epoch += 1
        rent = self.network.added_params() / self.host_params
        penalty = 0.0
        panic = self.governor.check(statistics.train_loss, loss, accuracy)
        if panic is None:
            self.snapshot = self.network.snapshot()
        else:
            log.info("governor: seed %d, epoch %d: %s", self.seed, self.epoch, panic)
            accuracy, loss = self._roll_back()
            left = self.config.horizon_epochs - self.epoch
            penalty = governor.penalty(self.config.rent_weight, rent, left, self.config.horizon_epochs)
        self.lifecycle.automatic_edges()
        self._drop_pruned()
        reward = objective_reward(
            accuracy, self.accuracies[-1], rent, self.config.rent_weight, self.config.horizon_epochs, penalty
        )
        self.accuracies.append(accuracy)
        self.val_losses.append(loss)
        growth = self.network.added_params() / self.host_params
        target = executed.slot if executed.op is not Op.WAIT else -1
        names = [b.name for b in MLP_BLUEPRINTS]
        self.timeline.record(executed.op.name, target, self.lifecycle.slots, names, growth, accuracy, reward)
        terminated = panic is not None or self.epoch >= self.config.horizon_epochs
        info = self._info()
        if illegal:
            info["illegal_action"] = illegal
        if terminated:
            info["end_reason"] = EndReason.HORIZON if panic is None else EndReason.GOVERNOR
            info["telemetry"] = {"final_accuracy": accuracy, "growth_ratio": growth, "panic": float(panic is not None)}
        return self._observation(), reward, terminated, False, info

    def _legal(self, action: NDArray[np.int64]) -> tuple[SeedAction, str]:
        """The action to execute, and what was wrong with the one asked for ("" if nothing)."""
        choices = np.asarray(action, dtype=np.int64)
        sizes = np.array(self.spaces.action.sizes)
        reason = ""
        if choices.shape != sizes.shape or (choices < 0).any() or (choices >= sizes).any():
            reason = f"action {choices.tolist()} does not fit the heads {sizes.tolist()}"
        else:
            in_force = self.masks().in_force(self.spaces.action, choices)
            relevant = self.spaces.action.relevance_table[choices[0]]
            offsets = np.array(self.spaces.action.offsets)
            wrong = relevant & ~in_force[offsets + choices]
            if wrong.any():
                head = self.spaces.action.names[int(wrong.argmax())]
                reason = f"{Op(choices[0]).name} with {head} {choices[int(wrong.argmax())]} is not legal now"
        if not reason:
            return SeedAction.of(choices.tolist()), ""
        if self.strict:
            raise IllegalAction(reason)
        self.illegal_actions += 1
        return SeedAction(Op.WAIT), reason

    def _apply(self, action: SeedAction) -> None:
        success = self.lifecycle.apply(action)
        if action.op is Op.GERMINATE:
            rng = stream(self.run_seed, self.seed, Purpose.SEED_INIT, self.germinations)
            self.network.germinate(action.slot, MLP_BLUEPRINTS[action.blueprint], action.blend, rng)
            self.germinations += 1
            success = action.slot in self.network.seeds
        self._drop_pruned()
        self.last_op, self.last_success = action.op, success

    def _drop_pruned(self) -> None:
        for s, slot in enumerate(self.lifecycle.slots):
            if s in self.network.seeds and not slot.active:
                self.network.prune(s)

    def _switches(self) -> Switches:
        slots = list(enumerate(self.lifecycle.slots))
        return Switches(
            {s: slot.alpha for s, slot in slots if slot.stage in BLENDED},
            {s: slot.alpha_target for s, slot in slots if slot.stage is Stage.TRAINING},
        )

    def _minibatches(self) -> tuple[torch.Tensor, torch.Tensor]:
        """This epoch's minibatches, from permutations of the training rows laid end to end."""
        rows = len(self.train_y)
        wanted = self.config.inner_steps * self.config.batch_size
        position = self.epoch * wanted
        passes = range(position // rows, (position + wanted - 1) // rows + 1)
        order = [stream(self.run_seed, self.seed, Purpose.BATCH_ORDER, n).permutation(rows) for n in passes]
        start = position % rows
        index = torch.from_numpy(np.concatenate(order)[start : start + wanted])
        shape = (self.config.inner_steps, self.config.batch_size)
        return self.train_x[index].reshape(*shape, -1), self.train_y[index].reshape(shape)

    def _record_gradients(self, statistics: EpochStatistics, switches: Switches) -> None:
        low, high = HEALTHY_NORM
        for s, norms in statistics.gradient_norms.items():
            slot = self.lifecycle.slots[s]
            slot.gradient_health_prev = slot.gradient_health
            slot.gradient_health = sum(low < n < high for n in norms) / len(norms)
            mean = sum(norms) / len(norms)
            slot.gradient_norm = mean if isfinite(mean) else None
            slot.trained_epochs += s in switches.training

    def _validate(self, switches: Switches) -> tuple[float, float]:
        """(accuracy, loss) of the present configuration; measures contributions when they are due."""
        measured: dict[Subset, tuple[float, float]] = {}
        alphas = switches.blended | switches.training

        def value(subset: Subset) -> float:
            if subset not in measured:
                on = {s: alphas[s] for s in subset}
                measured[subset] = self.network.validate(self.val_x, self.val_y, on)
            accuracy, loss = measured[subset]
            return accuracy if isfinite(loss) else float("nan")

        present = frozenset(switches.blended)
        value(present)
        contributions = Contributions({}, {}, {})
        if alphas and (self.epoch + 1) % self.config.contribution_every == 0:
            contributions = measure(value, switches.blended, switches.training)
        self._record_contributions(contributions)
        return measured[present]

    def _record_contributions(self, contributions: Contributions) -> None:
        """Take over what could be measured; a slot that was not measured ages its last value."""
        for s, slot in enumerate(self.lifecycle.slots):
            slot.epochs_since_contribution += slot.active
            points = contributions.leave_one_out.get(s)
            if points is None:
                continue
            if not isfinite(points):
                log.warning(
                    "seed %d, epoch %d: the contribution of slot %d could not be measured", self.seed, self.epoch, s
                )
                continue
            slot.contribution_velocity = None if slot.contribution is None else points - slot.contribution
            slot.contribution = points
            slot.epochs_since_contribution = 0
            interaction = contributions.interaction.get(s)
            slot.interaction = interaction if interaction is not None and isfinite(interaction) else None

    def _roll_back(self) -> tuple[float, float]:
        """The last good snapshot without its live seeds; returns its (accuracy, loss)."""
        self.network.restore(self.snapshot)
        self.lifecycle.prune_live()
        self._drop_pruned()
        return self.network.validate(self.val_x, self.val_y, self._switches().blended)

    def masks(self) -> ActionMasks:
        """Exact legal choices now."""
        left = self.budget_params - self.network.added_params()
        width = self.network.host.width
        dearest_gate = max(sum(p.size for p in gate_shapes(b, width).values()) for b in range(3))
        affordable = np.array([b.cost(width) + dearest_gate <= left for b in MLP_BLUEPRINTS])
        return self.lifecycle.masks(np.repeat(affordable[:, None], self.config.slots, axis=1))

    def _observation(self) -> Obs:
        params = [0] * self.config.slots
        for s, seed in self.network.seeds.items():
            params[s] = sum(t.numel() for t in seed.trained.tensors)
        view = observation.EnvView(
            epoch=self.epoch,
            horizon_epochs=self.config.horizon_epochs,
            chance_loss=self.task.chance_loss,
            num_classes=self.task.num_classes,
            val_losses=self.val_losses,
            accuracies=self.accuracies,
            last_op=self.last_op,
            last_success=self.last_success,
            host_params=self.host_params,
            budget_params=self.budget_params,
            slot_params=params,
            slots=self.lifecycle.slots,
        )
        blueprints = np.array([s.blueprint for s in self.lifecycle.slots], dtype=np.int64)
        return {"obs": observation.observe(view), "blueprint_indices": blueprints}

    def _info(self) -> dict[str, Any]:
        masks = self.masks()
        return {
            "action_mask": masks.flat(),
            "slot_mask_by_op": masks.slot,
            "masks": masks,
            "task_id": self.task.task_id,
        }

    def test_accuracy(self) -> float:
        """Accuracy in points on the test rows, which nothing else reads; ask once, at the end."""
        x, y = self._tensors(self.task.test.x, self.task.test.y)
        return self.network.validate(x, y, self._switches().blended)[0]

    def _tensors(self, x: NDArray[np.float32], y: NDArray[np.int64]) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.from_numpy(x).to(self.dtype), torch.from_numpy(y)
