"""`HostEpisode`: the rules of one episode, without tensors."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actors.config.env import FEATURE_GROUPS, EnvConfig
from actors.env.episode import governor
from actors.env.episode.epoch import EpochOutcome, EpochPlan, EpochResult, HostEpoch, NewSeed, TwinEpoch
from actors.env.episode.reward import EpisodeReward, potential
from actors.env.episode.settings import draw_settings, observed_rows
from actors.env.episode.timeline import Timeline
from actors.env.episode.twin import padded, twin_coefficient
from actors.env.hosts.flops import forward_flops
from actors.env.hosts.host import column_host
from actors.env.hosts.make import make_host
from actors.env.tasks import DataFiles, Task, make_task
from actors.rng import Purpose, Streams, stream
from actors.slots.compute import TRAINING_PASSES
from actors.slots.contributions import EvalResult, Validation, subsets_to_evaluate
from actors.slots.growth_state import BUDGET_RATIO, ISOLATED_RATIO, GrowthRules, GrowthState
from actors.slots.lifecycle import GATES, Lifecycle, SeedAction
from actors.slots.model_view import TrainingState
from actors.slots.objective import Standing, objective, objective_reward
from actors.slots.slot_shape import column_slot, stream_slot
from actors.types.actions import ActionMasks, ActionSpec, Op
from actors.types.episode import EndReason

log = logging.getLogger(__name__)


def check_tasks(config: EnvConfig, run_seed: int) -> list[Task]:
    """Draw each task once, so that a task that cannot be made raises its `ConfigError` before a run starts."""
    files = DataFiles(config.data_dir, config.download)
    return [make_task(name, stream(run_seed, 0, Purpose.TASK_DATA), files) for name in config.tasks]


class HostEpisode:
    """One episode: its task, host, slots, horizon and rewards, but no network parameters.

    Call `begin` with the validation result of the untrained host. Then, each epoch, `growth.read` checks an action,
    `plan_epoch` says what to train and evaluate, the caller does it, and `complete_epoch` turns the result into reward
    and slot transitions.
    The episode follows from the configuration, `run_seed`, `seed` and the actions alone.
    """

    def __init__(self, config: EnvConfig, run_seed: int, seed: int, spec: ActionSpec, width_scale: int = 1) -> None:
        """The host is `width_scale` times as wide as drawn."""
        self.config, self.run_seed, self.seed, self.spec = config, run_seed, seed, spec
        choice = int(stream(run_seed, seed, Purpose.TASK_CHOICE).integers(len(config.tasks)))
        files = DataFiles(config.data_dir, config.download)
        self.task = task = make_task(config.tasks[choice], stream(run_seed, seed, Purpose.TASK_DATA), files)
        self.settings = draw_settings(config, config.tasks[choice], run_seed, seed)
        self.horizon_epochs, self.prices = self.settings.horizon_epochs, self.settings.prices
        rng = stream(run_seed, seed, Purpose.VALIDATION_ROWS)
        observed = observed_rows(len(task.val), rng)
        order = rng.permutation(len(task.val))
        self.observed, self.scored = task.val.rows(order[:observed]), task.val.rows(order[observed:])
        """Validation rows on which the policy sees measurements, and those on which J and rewards are measured."""
        self.host = host = make_host(task, width_scale * self.settings.host_width, config.slots)
        self._names = host.family.names
        host_params = host.num_params()
        flops = forward_flops(host, task.shape)
        column = column_slot(host.family, lambda scale: column_host(host, scale).num_params(), flops.columns)
        slot_shapes = [stream_slot(host.family, host.slot_width(s), flops.stream[s]) for s in range(config.slots)]
        slot_shapes += [column] * config.column_slots
        budget = config.budget_ratio * host_params
        isolated = budget * ISOLATED_RATIO / BUDGET_RATIO
        gates = replace(GATES[config.gates], prune=config.prune)
        rules = GrowthRules(budget, isolated, gates, config.profile, self.prices, self.horizon_epochs)
        self.growth = GrowthState(slot_shapes, host_params, rules, spec, flops.host)
        samples = self.settings.inner_steps * config.batch_size
        self._evaluation = observed / (TRAINING_PASSES * samples)  # in epochs of the bare host's training
        self.epoch = 0
        self.germinations = 0
        self.illegal_actions = 0
        dropped = stream(run_seed, seed, Purpose.UNKNOWN_FEATURES).random(len(FEATURE_GROUPS)) < config.drop_features
        names = [name for name, drop in zip(FEATURE_GROUPS, dropped, strict=True) if drop]
        self.hidden_features = frozenset((*names, *config.hidden_features))
        self.accuracies: list[float] = []  # on the rows that J is made of
        self.observed_accuracies: list[float] = []
        self.train_losses: list[float] = []
        self.val_losses: list[float] = []
        self._executed = SeedAction(Op.WAIT)
        self._orders = Streams(run_seed, seed, Purpose.BATCH_ORDER)
        self._passes: dict[int, NDArray[np.int64]] = {}
        masks = self.growth.masks()
        self._flattened = masks, masks.flat()  # of the last state that `info` was asked for

    def host_rng(self) -> np.random.Generator:
        """Return the generator of the host's parameters."""
        return stream(self.run_seed, self.seed, Purpose.HOST_INIT)

    def begin(self, untrained: Validation, twin: Sequence[float] | None = None) -> None:
        """Start with the validation result of the untrained host.

        `twin` holds the accuracies `[horizon + 1]` of the never-grow twin. If rewards use a twin and none is given, the
        episode's own accuracies are the twin's until a seed joins the host, when `set_twin` must be called.
        """
        (observed, loss), accuracy = untrained
        self.accuracies, self.observed_accuracies, self.val_losses = [accuracy], [observed], [loss]
        self.standing = Standing(accuracy)
        self.governor = governor.Governor(self.task.num_classes, loss)
        if twin is None:
            twin = self.accuracies if self.config.reference == "twin" else ()
        self.reward = EpisodeReward(self.config, twin, twin_coefficient(self.task.task_id))
        self.timeline = Timeline(
            self.task.task_id,
            self.seed,
            self.horizon_epochs,
            [shape.kind.name for shape in self.growth.slot_shapes],
            [accuracy],
            self.host.width,
            *self.prices,
        )

    def plan_epoch(self, executed: SeedAction, illegal: str = "") -> EpochPlan:
        """Return the plan of an epoch, from what `growth.read` returned: an action, which is WAIT in the place of an
        illegal one, and why that was illegal.
        """
        self.illegal_actions += bool(illegal)
        pruned = self.growth.apply(executed, requested=not illegal)
        germinated = None
        if executed.op is Op.GERMINATE:
            rng = stream(self.run_seed, self.seed, Purpose.SEED_INIT, self.germinations)
            germinated = NewSeed(executed.slot, executed.blueprint, executed.blend, rng)
            self.germinations += 1
        self._executed = executed
        if self.train_losses:
            self.growth.record_losses(self.train_losses[-1], self.val_losses[-1])
        blended, training, learning = self.growth.blended(), self.growth.training(), self.growth.learning()
        current = frozenset(blended)
        due = (self.epoch + 1) % self.config.contribution_every == 0
        wanted = subsets_to_evaluate(blended, training) if due else []
        subsets = (current, *(subset for subset in wanted if subset != current))
        data = self._data(self.epoch)
        return EpochPlan(pruned, germinated, blended, learning, {**blended, **training}, data, subsets)

    def twin_epochs(self, plan: EpochPlan) -> list[HostEpoch]:
        """Return the epochs that are left, the present one included, if rewards need `set_twin` because seeds join the
        host for the first time; otherwise none."""
        joins = self.reward.twin is self.accuracies and bool(plan.blended)
        return [self._data(epoch) for epoch in range(self.epoch, self.horizon_epochs)] if joins else []

    def set_twin(self, left: Sequence[TwinEpoch]) -> None:
        """Complete the twin by what it measured in the epochs that are left."""
        observed = map(EvalResult, self.observed_accuracies[1:], self.val_losses[1:])
        before = zip(self.train_losses, map(Validation, observed, self.accuracies[1:]), strict=True)
        watch = governor.Governor(self.task.num_classes, self.val_losses[0])
        accuracies = [self.accuracies[0]]
        for train_loss, ((accuracy, loss), scored) in (*before, *left):
            if watch.check(train_loss, loss, accuracy):
                break
            accuracies.append(scored)
        self.reward.twin = padded(accuracies, self.horizon_epochs)

    def complete_epoch(
        self, plan: EpochPlan, result: EpochResult, roll_back: Callable[[tuple[int, ...]], Validation]
    ) -> EpochOutcome:
        """Record what the epoch measured; return its reward and whether the episode ended.

        `roll_back(slots)` is called if the governor finds that training broke down. It must restore the state after
        the previous epoch, without the seeds of `slots`, and return its validation result.
        """
        self.growth.record_gradients(result.gradient_norms, plan.training)
        label = f"seed {self.seed}, epoch {self.epoch}"
        due = len(plan.subsets) > 1
        self.growth.record_contributions(result.ablations, plan.blended, plan.training, due, label)
        self.train_losses.append(result.train_loss)
        spent = self.growth.epoch_cost(plan.blended, plan.training, plan.subsets, self._evaluation)
        self.growth.compute.add(spent)
        (observed, loss), accuracy = result.validation
        self.epoch += 1
        before = self.growth.filled()
        panic = self.governor.check(result.train_loss, loss, observed)
        if panic is not None:
            log.info("governor: seed %d, epoch %d: %s", self.seed, self.epoch, panic)
            self.lifecycle.prune_live()
            (observed, loss), accuracy = roll_back(tuple(sorted(before - self.growth.filled())))
        self.lifecycle.automatic_transitions()
        self.growth.record_scores(result.scores)
        more = 0.0 if panic is None else self._epoch_of_the_model() - 1.0
        standing = Standing(accuracy, self.growth.doublings(), self.growth.compute.doublings(more))
        penalty = 0.0 if panic is None else governor.PENALTY_POINTS
        term = objective_reward(self.standing, standing, self.prices, penalty)
        self.standing = standing
        self.accuracies.append(accuracy)
        self.observed_accuracies.append(observed)
        self.val_losses.append(loss)
        op, slot = self._executed.op, self._executed.slot
        place = slot if op is not Op.WAIT else -1
        self.timeline.record(op.name, place, self.lifecycle.slots, self._names, standing, term)
        pruned = tuple(sorted(before - self.growth.filled()))
        at_horizon = panic is None and self.epoch == self.horizon_epochs
        truncated = at_horizon and self.config.time_limit == "truncated"
        terminated = panic is not None or (at_horizon and not truncated)
        ended = terminated or truncated
        reward = self.reward.step(term, potential(self.lifecycle.slots), ended, terminated)
        if not ended:
            return EpochOutcome(reward, False, False, pruned, None, {})
        telemetry = {
            "final_accuracy": accuracy,
            "doublings": standing.doublings,
            "compute_doublings": standing.compute_doublings,
            "points_per_doubling": self.prices.doubling,
            "points_per_compute_doubling": self.prices.compute_doubling,
            "host_width": float(self.host.width),
            "panic": float(panic is not None),
            "objective": objective(self.accuracies[0], standing, self.prices, penalty),
            **self.timeline.stage_shares(),
        }
        reason = EndReason.GOVERNOR if panic else EndReason.HORIZON
        return EpochOutcome(reward, terminated, truncated, pruned, reason, telemetry)

    def _epoch_of_the_model(self) -> float:
        """Return what an epoch of the model as it is costs, in epochs of the bare host. An early end, which saves no
        compute, is charged the epochs that are left, as if the model had trained on and been measured."""
        kept = self.growth.blended()
        evaluation = self._evaluation / self.config.contribution_every
        return self.growth.epoch_cost(kept, (), subsets_to_evaluate(kept, ()), evaluation)

    def _data(self, epoch: int) -> HostEpoch:
        """Return what is learned from in an epoch: rows that are cut from concatenated permutations of the split."""
        rows = len(self.task.train)
        shape = (self.settings.inner_steps, self.config.batch_size)
        count = shape[0] * shape[1]
        position = epoch * count
        passes = range(position // rows, (position + count - 1) // rows + 1)
        start = position % rows
        order = np.concatenate([self._pass(n) for n in passes])[start : start + count]
        return HostEpoch(order.reshape(shape), self.settings.lr(epoch))

    def _pass(self, n: int) -> NDArray[np.int64]:
        """Return the order of the training rows in the n-th pass over them."""
        order = self._passes.get(n)
        if order is None:
            order = self._passes[n] = self._orders(n).permutation(len(self.task.train))
        return order

    @property
    def lifecycle(self) -> Lifecycle:
        return self.growth.lifecycle

    def info(self, masks: ActionMasks) -> dict[str, Any]:
        """Return Gymnasium's `info` of the current state, whose masks are given; see `SeedTrainingEnv`."""
        values: dict[str, NDArray[Any]] = {}
        for name in ("contribution", "interaction"):
            points = [getattr(slot, name) for slot in self.lifecycle.slots]
            values[name] = np.array([p or 0.0 for p in points])
            values[f"{name}_known"] = np.array([p is not None for p in points])
        if masks is not self._flattened[0]:
            self._flattened = masks, masks.flat()
        return {
            "action_mask": self._flattened[1].copy(),
            "slot_mask_by_op": masks.slot,
            "masks": masks,
            "task_id": self.task.task_id,
            **values,
        }

    def observation(self) -> dict[str, NDArray[Any]]:
        """Return what the policy observes; see `SeedTrainingEnv`."""

        def shown(name: str, values: list[float]) -> Sequence[float | None]:
            return [None] * len(values) if name in self.hidden_features else values

        training = TrainingState(
            epoch=self.epoch,
            horizon_epochs=self.horizon_epochs,
            chance_loss=self.task.chance_loss,
            num_classes=self.task.num_classes,
            val_losses=self.val_losses,
            accuracies=shown("accuracy", self.observed_accuracies),
            train_losses=shown("train_loss", self.train_losses),
            val_rows=None if "val_rows" in self.hidden_features else len(self.observed),
            time_hidden=self.config.time_hidden,
        )
        return self.growth.observation(training, self.hidden_features)
