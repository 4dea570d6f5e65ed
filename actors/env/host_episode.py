"""`HostEpisode`: one episode of one host but for its tensors. What is legal, what an epoch has to do, what it meant.

Both the one-environment reference and the fleet run on it: they differ in how they train, not in what it means.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actors.config import EnvConfig
from actors.env import governor
from actors.env.hosts.make import make_host
from actors.env.rendering.timeline import Timeline
from actors.env.reward import EpisodeReward, objective, objective_reward, potential
from actors.env.rng import Purpose, stream
from actors.env.slots.contributions import Subset, subsets_to_evaluate
from actors.env.slots.growth_state import EvalResult, GrowthState, SlotShape, TrainingState
from actors.env.slots.lifecycle import GATES, IllegalAction, Lifecycle, SeedAction
from actors.env.slots.topology import Topology, fossilized_slot, topology_of
from actors.env.tasks import DataFiles, Task, make_task
from actors.env.twin import twin_coefficient
from actors.types.actions import ActionMasks, ActionSpec, Op
from actors.types.episode import EndReason

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class NewSeed:
    slot: int
    blueprint: int
    blend: int
    rng: np.random.Generator  # draws the seed's parameters


@dataclass(frozen=True)
class EpochPlan:
    """What one epoch has to do, in this order: prune, germinate, train, measure."""

    pruned: tuple[int, ...]
    germinated: NewSeed | None
    blended: Mapping[int, float]  # slot -> alpha: part of the host's function
    training: Mapping[int, float]  # slot -> alpha target: learns apart from the host
    rows: NDArray[np.int64]  # [inner_steps, batch_size] of the training split
    subsets: tuple[Subset, ...]  # configurations to measure, the present one first

    @property
    def alphas(self) -> dict[int, float]:
        return {**self.blended, **self.training}


@dataclass(frozen=True)
class EpochResult:
    train_loss: float  # mean over minibatches, nats
    gradient_norms: Mapping[int, list[float]]  # slot -> norm at each minibatch, before the clip
    present: EvalResult
    measured: Mapping[Subset, EvalResult]  # of the orders' subsets, comparable to one another: see `ablate`


@dataclass(frozen=True)
class EpochOutcome:
    reward: float
    terminated: bool
    truncated: bool
    pruned: tuple[int, ...]  # slots whose seeds are gone with this epoch's end
    end_reason: EndReason | None
    telemetry: dict[str, float]  # filled at the end; `objective` is J, however it was paid

    @property
    def ended(self) -> bool:
        return self.terminated or self.truncated


class HostEpisode:
    def __init__(
        self,
        config: EnvConfig,
        run_seed: int,
        seed: int,
        spec: ActionSpec,
        topology: Topology = (),
        rent_share: float = 1.0,
    ) -> None:
        """Everything in the episode follows from (config, run_seed, seed), the actions, and the `topology` that the
        host is built with: fossilized from the start, with parameters of its own and rent from the first epoch.
        Rewards have `rent_share` of the rent that J has."""
        self.config, self.run_seed, self.seed, self.spec, self.rent_share = config, run_seed, seed, spec, rent_share
        choice = int(stream(run_seed, seed, Purpose.TASK_CHOICE).integers(len(config.tasks)))
        files = DataFiles(config.data_dir, config.download)
        self.task: Task = make_task(config.tasks[choice], stream(run_seed, seed, Purpose.TASK_DATA), files)
        task = self.task
        self.host = make_host(task, config.slots)
        self._names = tuple(b.name for b in self.host.family.blueprints)
        host_params = self.host.num_params()
        places = [SlotShape(self.host.family, self.host.slot_width(s)) for s in range(config.slots)]
        self.growth = GrowthState(
            places, host_params, config.budget_ratio * host_params, GATES[config.gates], config.embargo_epochs,
            config.profile, spec,
        )  # fmt: skip
        self.horizon_epochs = self._draw_horizon()
        self.governor = governor.Governor(task.num_classes, task.chance_loss)
        self.epoch = 0
        self.germinations = len(topology)
        for grown in topology:
            self.lifecycle.slots[grown.slot] = fossilized_slot(grown)
        added, budget = self.added_params(), self.growth.budget_params
        if added > budget:
            raise ValueError(f"{added} parameters are built in, the budget is {budget:.0f}")
        self.initial_seeds = tuple(self._germination(i, g.slot, g.blueprint, g.blend) for i, g in enumerate(topology))
        self.illegal_actions = 0
        hidden = stream(run_seed, seed, Purpose.UNKNOWN_FEATURES).random(2) < config.drop_features
        self._contributions_hidden, self._accuracy_hidden = map(bool, hidden)
        self.accuracies: list[float] = []
        self.val_losses: list[float] = []
        self.rents: list[float] = []
        self._executed = SeedAction(Op.WAIT)

    def host_rng(self) -> np.random.Generator:
        """Draws the host's parameters."""
        return stream(self.run_seed, self.seed, Purpose.HOST_INIT)

    def _germination(self, number: int, slot: int, blueprint: int, blend: int) -> NewSeed:
        return NewSeed(slot, blueprint, blend, stream(self.run_seed, self.seed, Purpose.SEED_INIT, number))

    def _draw_horizon(self) -> int:
        longest = self.config.horizon_epochs
        if not self.config.random_horizon:
            return longest
        return int(stream(self.run_seed, self.seed, Purpose.HORIZON).integers(-(-longest // 2), longest + 1))

    def begin(self, untrained: EvalResult, twin: Sequence[float] = ()) -> None:
        """Take note of the untrained host, and of the accuracies `[horizon + 1]` of its twin where there is one."""
        accuracy, loss = untrained
        self.accuracies, self.val_losses = [accuracy], [loss]
        self.governor.begin(loss)
        self.reward = EpisodeReward(self.config, twin, twin_coefficient(self.config, self.task.task_id))
        self.timeline = Timeline(self.task.task_id, self.seed, self.horizon_epochs, self.config.slots, [accuracy])

    def plan_epoch(self, action: NDArray[np.int64], strict: bool = False) -> tuple[EpochPlan, str]:
        """Take the action; returns the epoch's orders and what was wrong with the action ("" if nothing).

        An illegal action is turned into WAIT and counted, or raises `IllegalAction` where `strict`.
        """
        executed, reason = self.growth.read(np.asarray(action, dtype=np.int64))
        if reason:
            if strict:
                raise IllegalAction(reason)
            self.illegal_actions += 1
        pruned = self.growth.apply(executed, asked=not reason)
        germinated = None
        if executed.op is Op.GERMINATE:
            germinated = self._germination(self.germinations, executed.slot, executed.blueprint, executed.blend)
            self.germinations += 1
        self._executed = executed
        blended, training = self.growth.blended(), self.growth.training()
        present = frozenset(blended)
        due = (self.epoch + 1) % self.config.contribution_every == 0
        wanted = subsets_to_evaluate(blended, training) if due else []
        subsets = (present, *(subset for subset in wanted if subset != present))
        return EpochPlan(pruned, germinated, blended, training, self._minibatches(), subsets), reason

    def complete_epoch(
        self, orders: EpochPlan, result: EpochResult, roll_back: Callable[[tuple[int, ...]], EvalResult]
    ) -> EpochOutcome:
        """What the epoch came to. `roll_back(pruned)` restores the last good snapshot without these slots' seeds."""
        horizon = self.horizon_epochs
        weight = self.config.rent_weight
        paid_weight = weight * self.rent_share
        self.growth.record_gradients(result.gradient_norms, orders.training)
        self.growth.record_contributions(
            result.measured, orders.blended, orders.training, len(orders.subsets) > 1,
            f"seed {self.seed}, epoch {self.epoch}",
        )  # fmt: skip
        accuracy, loss = result.present
        self.epoch += 1
        rent = self.added_params() / self.growth.host_params
        charge, charged = 0.0, 0.0  # as J has it, and as it is paid
        before = self.growth.filled()
        panic = self.governor.check(result.train_loss, loss, accuracy)
        if panic is not None:
            log.info("governor: seed %d, epoch %d: %s", self.seed, self.epoch, panic)
            self.lifecycle.prune_live()
            accuracy, loss = roll_back(tuple(sorted(before - self.growth.filled())))
            left = horizon - self.epoch
            charge, charged = (governor.penalty(w, rent, left, horizon) for w in (weight, paid_weight))
        self.lifecycle.automatic_edges()
        share = objective_reward(accuracy, self.accuracies[-1], rent, weight, horizon, charge)
        paid = objective_reward(accuracy, self.accuracies[-1], rent, paid_weight, horizon, charged)
        self.accuracies.append(accuracy)
        self.val_losses.append(loss)
        self.rents.append(rent)
        growth = self.added_params() / self.growth.host_params
        self._note(growth, accuracy, share)
        pruned = tuple(sorted(before - self.growth.filled()))
        at_horizon = panic is None and self.epoch == horizon
        truncated = at_horizon and self.config.time_limit == "truncated"
        terminated = panic is not None or (at_horizon and not truncated)
        ended = terminated or truncated
        reward = self.reward.step(paid, potential(self.lifecycle.slots), ended, terminated)
        if not ended:
            return EpochOutcome(reward, False, False, pruned, None, {})
        telemetry = {
            "final_accuracy": accuracy,
            "growth_ratio": growth,
            "panic": float(panic is not None),
            "objective": objective(accuracy, self.accuracies[0], self.rents, weight, horizon, charge),
            **self.timeline.stage_shares(),
        }
        reason = EndReason.GOVERNOR if panic else EndReason.HORIZON
        return EpochOutcome(reward, terminated, truncated, pruned, reason, telemetry)

    def _note(self, growth: float, accuracy: float, share: float) -> None:
        op = self._executed.op
        where = self._executed.slot if op is not Op.WAIT else -1
        self.timeline.record(op.name, where, self.lifecycle.slots, self._names, growth, accuracy, share)

    def _minibatches(self) -> NDArray[np.int64]:
        """This epoch's rows `[inner_steps, batch_size]`, from permutations of the training rows laid end to end."""
        rows = len(self.task.train)
        shape = (self.config.inner_steps, self.config.batch_size)
        wanted = shape[0] * shape[1]
        position = self.epoch * wanted
        passes = range(position // rows, (position + wanted - 1) // rows + 1)
        order = [stream(self.run_seed, self.seed, Purpose.BATCH_ORDER, n).permutation(rows) for n in passes]
        start = position % rows
        return np.concatenate(order)[start : start + wanted].reshape(shape)

    def slot_params(self) -> list[int]:
        """Parameters grown at each slot, its blend's gate included."""
        return self.growth.slot_params()

    def added_params(self) -> int:
        return self.growth.added_params()

    def topology(self) -> Topology:
        """What belongs to the host's function now."""
        return topology_of(self.lifecycle.slots)

    def masks(self) -> ActionMasks:
        """Exact legal choices now."""
        return self.growth.masks()

    @property
    def lifecycle(self) -> Lifecycle:
        return self.growth.lifecycle

    @property
    def last_op(self) -> Op:
        return self.growth.last_op

    @property
    def last_success(self) -> bool:
        return self.growth.last_success

    def info(self) -> dict[str, Any]:
        """Gymnasium's `info` of the present state; what each seed is worth is `[S]` points, 0 where it is not known."""
        masks = self.masks()
        worth: dict[str, NDArray[Any]] = {}
        for name in ("contribution", "interaction", "shapley"):
            points = [getattr(slot, name) for slot in self.lifecycle.slots]
            worth[name] = np.array([p or 0.0 for p in points])
            worth[f"{name}_known"] = np.array([p is not None for p in points])
        return {
            "action_mask": masks.flat(),
            "slot_mask_by_op": masks.slot,
            "masks": masks,
            "task_id": self.task.task_id,
            **worth,
        }

    def observation(self) -> dict[str, NDArray[Any]]:
        accuracies: Sequence[float | None] = self.accuracies
        if self._accuracy_hidden:
            accuracies = [None] * len(accuracies)
        setting = TrainingState(
            epoch=self.epoch,
            horizon_epochs=self.config.horizon_epochs,
            chance_loss=self.task.chance_loss,
            num_classes=self.task.num_classes,
            val_losses=self.val_losses,
            accuracies=accuracies,
            time_hidden=self.config.random_horizon or not self.config.observe_time,
        )
        return self.growth.observation(setting, self._contributions_hidden)
