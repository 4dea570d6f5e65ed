"""`GrowthController`: grows a user's model inside the user's own training loop, one policy decision per epoch."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from math import isfinite, log
from typing import Any

from torch import Tensor, nn
from torch.amp import GradScaler
from torch.optim import Optimizer

from actors.config import require
from actors.growth.ablations import Ablations
from actors.growth.config import GrowthConfig
from actors.growth.decision import Decision, append_to_log
from actors.growth.flop_count import FlopCount
from actors.growth.policy_advisor import PolicyAdvisor, find_policy
from actors.growth.seed_manager import SeedManager
from actors.growth.slots import SlotSpec
from actors.growth.topology import FORMAT, SavedGrowth, read_growth
from actors.growth.training.column_loss import ColumnLossChoice
from actors.growth.training.metric import MetricPoints
from actors.growth.training.ranks import Ranks, unwrap
from actors.growth.training.requirements import check_model, optimizers_of
from actors.rules.names import DEFAULT_COLUMN, DEFAULT_STREAM_RULE, DEFAULT_TRIAL
from actors.sessions.session import Answer
from actors.slots.compute import TRAINING_PASSES
from actors.slots.contributions import Subset
from actors.slots.growth_state import BUDGET_RATIO, ISOLATED_RATIO, GrowthRules, GrowthState
from actors.slots.lifecycle import GATES, SeedAction
from actors.slots.model_view import TrainingState
from actors.slots.objective import Prices
from actors.slots.spaces import seed_spaces
from actors.slots.stage import Slot, Stage
from actors.types.actions import Op

logger = logging.getLogger(__name__)

LOG_VARIABLE = "TAMIYO_GROWTH_LOG"


class GrowthController:
    """Grow a model while it trains.

        grower = GrowthController(
            model, ["block1"], optimizer, columns=Column(lambda scale: Net(int(16 * scale))), horizon_epochs=20
        )
        for epoch in range(20):
            for x, y in batches:
                ...
                loss.backward()
                grower.shadow(lambda: loss_of(model(x), y))  # trains young seeds without touching the model
                optimizer.step()
            grower.step(loss=..., accuracy=...)              # validation metrics; one decision

    Pass the model as the loop calls it: wrapped in `DistributedDataParallel`, compiled, or plain. Create the controller
    before the first forward pass. Only the observation leaves the process, and only where the policy is served. `step`
    always returns: if the policy is unreachable, that epoch is a no-op.
    """

    def __init__(
        self,
        model: nn.Module,
        slots: Mapping[str, SlotSpec] | Sequence[str] = (),
        optimizer: Optimizer | Sequence[Optimizer] | None = None,
        config: GrowthConfig | None = None,
        **settings: Any,
    ) -> None:
        """`slots` names the modules after which seeds can grow. Together with columns there can be 1 to 8 slots.
        `optimizer` is what trains the model, or all optimizers that do, as a list.
        Settings are those of `GrowthConfig`, given as an object, as keywords, or as keywords that override an object.
        Raises `UserError`."""
        self.config = c = GrowthConfig(**settings) if config is None else replace(config, **settings)
        total = len(slots) + (0 if c.columns is None else c.columns.count)
        require(1 <= total <= 8, f"{total} slots were given, columns included: a model has 1 to 8")
        require(not isinstance(slots, str), f"slots is {slots!r}: give a list of names of modules")
        self.model, ddp, compiled = unwrap(model)
        check_model(self.model, averaged=ddp is not None)
        optimizers = optimizers_of(optimizer, self.model)
        self._ranks = Ranks(ddp)
        specs = slots if isinstance(slots, Mapping) else {name: SlotSpec() for name in slots}
        host_params = sum(p.numel() for p in self.model.parameters())
        require(host_params > 0, "the model has no parameters: there is nothing to grow")
        self.max_added_parameters = c.max_added_parameters or int(BUDGET_RATIO * host_params)
        isolated = c.max_isolated_parameters or int(ISOLATED_RATIO / BUDGET_RATIO * self.max_added_parameters)
        self._seeds = SeedManager(self.model, specs, c.columns, optimizers, self._ranks, c.seed, compiled)
        spaces, gates = seed_spaces(total), GATES["permissive"]
        gates = gates if c.evaluate is not None else gates.without_contributions()
        prices = Prices(c.points_per_doubling, c.points_per_compute_doubling)
        column_loss, added = "auto" if c.columns is None else c.columns.loss, self.max_added_parameters
        rules = GrowthRules(added, isolated, gates, "tamiyo", prices, c.horizon_epochs, column_loss)
        self._growth = GrowthState(self._seeds.slot_shapes, host_params, rules, spaces.action)
        self._seeds.report_forbidden_columns(min(self.max_added_parameters, isolated))
        self._column_loss = ColumnLossChoice(self._growth, self._seeds.names)
        self._flops = FlopCount(self._growth, self._seeds)
        self._advisor: PolicyAdvisor | None = None
        if self._ranks.first:
            default = DEFAULT_STREAM_RULE
            if c.columns is not None:  # a trial needs contributions
                default = DEFAULT_COLUMN if c.evaluate is None else DEFAULT_TRIAL
            self._advisor = PolicyAdvisor(find_policy(c.policy, default), spaces, c.seed, c.deterministic)
        self._chance_loss = log(c.num_classes) if c.num_classes else None
        self.log: list[Decision] = []
        """Every decision so far, oldest first."""
        self._log_file = (c.log_file or os.environ.get(LOG_VARIABLE)) if self._ranks.first else None
        best = c.best_metric if c.best_metric is not None else float(bool(c.higher_is_better))
        self._metric = MetricPoints(c.higher_is_better, best)
        self._ablations = Ablations(self.model, self._seeds, c, self._metric)
        self.epoch = 0
        self._losses: list[float] = []
        self._accuracies: list[float | None] = []
        self._train_losses: list[float | None] = []

    @property
    def stages(self) -> dict[str, Stage]:
        """Return the stage of each slot, by the slot's name."""
        return {name: slot.stage for name, slot in zip(self._seeds.names, self._growth.slots, strict=True)}

    @property
    def added_parameters(self) -> int:
        """Return the number of parameters that have been added and are still there."""
        return self._growth.added_params()

    def shadow(self, loss: Callable[[], Tensor], scaler: GradScaler | None = None) -> None:
        """Train the seeds in TRAINING on the current minibatch, without touching the model.

        Call it after the backward pass and before `optimizer.step()`. `loss` computes the loss of the current
        minibatch. It is called only while a seed is in TRAINING. Gradient clipping and `GradScaler`, before or after
        this call, do not see the gradients: they appear within the step. `scaler` is found where it is not given, and
        the loss may carry its scale or not.

        A column's own output, or its mix with the model's, takes the place of the model's output there; seeds in the
        stream are switched on. Only their parameters receive gradients; whatever the model keeps and all random number
        generators are restored afterwards.
        """
        learners = {} if self.config.dry_run else self._growth.learning()
        if learners:
            self._seeds.train_young(loss, self._growth.blended(), learners, scaler)
            self._column_loss.measure(lambda: self._seeds.host_loss(loss), self._seeds.recorder.steps_per_epoch)
        self._flops.minibatch(loss, learners)

    def step(
        self,
        loss: float | Tensor,
        accuracy: float | Tensor | None = None,
        train_loss: float | Tensor | None = None,
        metric: float | Tensor | None = None,
    ) -> Decision:
        """Ask the policy for a decision and apply it. Call it once per epoch.

        `loss` and `accuracy` (0 to 1, None where there is none) are those of validation, `train_loss` is the mean
        loss of the minibatches since the last call; without it, `shadow` measures a few while a column needs it. A call
        before any training shows the policy the untrained model. With `higher_is_better`, `metric` takes the place of
        accuracy; without it, where lower is better, the loss does.
        """
        value, scored = _number(loss), self._metric.higher_is_better is not None
        require(not scored or accuracy is None, "accuracy was given beside higher_is_better: give metric=... instead")
        require(scored or metric is None, "metric was given: set higher_is_better when you create the controller")
        given = metric if scored else accuracy
        if scored and given is None and not self._metric.higher_is_better:
            given = loss
        points = self._metric.points(None if given is None else _number(given))
        trained = self._column_loss.meter.take() if train_loss is None else _number(train_loss)
        trained = trained if trained is not None and isfinite(trained) else None
        value, points, trained = self._ranks.broadcast((value, points, trained))
        if self._losses or self._seeds.groups.steps:
            self._finish_epoch()
        self._losses.append(value)
        self._accuracies.append(points)
        self._train_losses.append(trained)
        asked, reason, answer = self._ranks.broadcast(self._ask())
        action = SeedAction(Op.WAIT) if reason else asked
        if asked.op is not Op.WAIT and not reason and (refused := self._ranks.broadcast(self._refusal(asked))):
            action, reason = SeedAction(Op.WAIT), refused
        before = [replace(slot) for slot in self._growth.slots]  # of which the action may clear one
        self._apply(action, asked=action is asked or answer is None)
        self._column_loss.choose(self.epoch, trained, value)
        decision = self._decision(action, asked, reason, answer, before)
        self.log.append(decision)
        if self._log_file:
            append_to_log(self._log_file, decision)
        return decision

    def _finish_epoch(self) -> None:
        """Record gradients and contributions of the epoch that was just trained, and run the automatic stage edges."""
        joined, training = self._growth.blended(), self._growth.training()
        always = frozenset(s for s in joined if s == self._seeds.adopted)  # without it there is no model
        blended = {s: alpha for s, alpha in joined.items() if s not in always}
        waiting = self._seeds.groups.waiting
        norms = self._ranks.broadcast(self._seeds.groups.take_norms())
        if missing := training.keys() - norms.keys():
            names = ", ".join(self._seeds.names[s] for s in sorted(missing))
            what = "the optimizer that the controller was given takes no steps: make no other one"
            what = what if waiting else "call shadow(...) before optimizer.step()"
            logger.warning("the seed at %s learns nothing: %s", names, what)
        self._growth.record_gradients(norms, training)
        self._growth.record_scores(self._seeds.recorder.take())
        due = (blended or training) and self.config.evaluate and self._ranks.broadcast(self._reads_contributions())
        measured = self._ranks.broadcast(self._ablations.measure(blended, training)) if due else {}
        self._growth.record_contributions(measured, blended, training, bool(measured), f"epoch {self.epoch}")
        self._count_epoch(joined, training, {subset | always for subset in measured})
        self.epoch += 1
        before = self._growth.filled()
        self._growth.lifecycle.automatic_transitions()
        self._seeds.clear(before - self._growth.filled())

    def _reads_contributions(self) -> bool:
        """Return whether the policy is to see contributions of the epoch that was just trained."""
        after, every = self.epoch + 1, self.config.evaluate_every
        if every is not None:
            return after % every == 0
        return self._advisor is None or self._advisor.reads_contributions(after, self.config.horizon_epochs)

    def _count_epoch(
        self, joined: Mapping[int, float], training: Mapping[int, float], measured: Collection[Subset]
    ) -> None:
        passes, evaluation = self._flops.take(self._ablations.inputs)
        if self.config.val_rows and self.config.train_rows:
            evaluation = self.config.val_rows / (TRAINING_PASSES * self.config.train_rows)
        more = passes / TRAINING_PASSES * self._growth.epoch_cost(joined)
        more += evaluation * sum(map(self._growth.epoch_cost, measured))
        counted, more = self._ranks.broadcast((self._flops.counted, more))
        self._flops.use(counted)
        self._growth.compute.add(self._growth.epoch_cost(joined, training) + more)

    def _ask(self) -> tuple[SeedAction, str, Answer | None]:
        """Return (the policy's action, why it cannot be applied or "", the policy's answer)."""
        if self._advisor is None:
            return SeedAction(Op.WAIT), "", None  # the first rank asks
        if self.epoch >= self.config.horizon_epochs:
            return SeedAction(Op.WAIT), "the horizon has passed", None
        seen = self._growth.observation(self._training_state())
        answer, reason = self._advisor.ask(seen["obs"], seen["blueprint_indices"], self._growth.masks())
        if answer is None:
            return SeedAction(Op.WAIT), reason, None
        action, illegal = self._growth.read(answer.action)
        return action, illegal, answer

    def _training_state(self) -> TrainingState:
        if self._chance_loss is None:
            self._chance_loss = abs(self._losses[0]) if isfinite(self._losses[0]) and self._losses[0] else 1.0
        return TrainingState(
            epoch=self.epoch,
            horizon_epochs=self.config.horizon_epochs,
            chance_loss=self._chance_loss,
            num_classes=self.config.num_classes,
            val_losses=self._losses,
            accuracies=self._accuracies,
            train_losses=self._train_losses,
            val_rows=self.config.val_rows,
        )

    def _refusal(self, action: SeedAction) -> str:
        """Return why a legal action is not applied, or ""."""
        if self.config.dry_run:
            return "dry run"
        try:
            return "veto" if self.config.veto is not None and self.config.veto(action) else ""
        except Exception as error:  # a veto that fails has not allowed the action
            return f"veto failed: {error}"

    def _apply(self, action: SeedAction, asked: bool) -> None:
        self._seeds.clear(self._growth.apply(action, asked))
        if action.op is Op.GERMINATE:
            self._seeds.germinate(action.slot, action.blueprint, action.blend)
        if action.op is Op.FOSSILIZE and self._growth.lifecycle.replaces(action.slot):
            self._seeds.adopt(action.slot)
        self._seeds.activate(self._growth.blended())

    def _decision(
        self, action: SeedAction, asked: SeedAction, reason: str, answer: Answer | None, before: Sequence[Slot]
    ) -> Decision:
        names, slots = self._seeds.names, self._growth.slots
        pairs = zip(self._seeds.slot_shapes, slots, strict=True)
        blueprints = [shape.family.names[slot.blueprint] if slot.blueprint >= 0 else "" for shape, slot in pairs]
        wanted = "" if answer is None else asked.op.name + ("" if asked.op is Op.WAIT else f" {names[asked.slot]}")
        wait = action.op is Op.WAIT
        return Decision(
            epoch=self.epoch,
            op=action.op.name,
            slot="" if wait else names[action.slot],
            blueprint="" if wait else blueprints[action.slot],
            asked=wanted,
            reason=reason,
            loss=self._losses[-1],
            accuracy=self._accuracies[-1],
            added_params=self.added_parameters,
            doublings=self._growth.doublings(),
            compute_doublings=self._growth.compute.doublings(),
            stages=[slot.stage.name for slot in slots],
            alphas=[slot.alpha for slot in slots],
            blueprints=blueprints,
            slots=names,
            policy_version=-1 if answer is None else answer.policy_version,
            value=None if answer is None else answer.value,
            contributions=[slot.contribution for slot in before],
            gradient_health=[slot.gradient_health for slot in before],
        )

    def follow(self, model: nn.Module) -> None:
        """Grow another copy of the model in the same way, such as an `AveragedModel`. New seeds start as copies."""
        self._seeds.follow(unwrap(model)[0])
        self._seeds.activate(self._growth.blended())

    def export(self) -> nn.Module:
        """Return a copy of the grown model that needs PyTorch and the model's own classes; see `exported_model`."""
        from actors.growth.export import exported_model

        return exported_model(self.model, self._seeds.slot_modules, self.config.columns, self._seeds.scales())

    def state_dict(self) -> dict[str, Any]:
        """Return everything that `load_state_dict` needs, as plain types.

        Take it between `step` and the next epoch, together with the states of the model and the optimizer.
        """
        return self._saved().packed()

    def bare_state_dict(self) -> dict[str, Any]:
        """Return `state_dict()` as if nothing had been grown yet."""
        bare = {name: Slot() for name in self._seeds.names}
        return replace(self._saved(), slots=bare, order=[], session=b"").packed()

    def _saved(self) -> SavedGrowth:
        names, growth = self._seeds.names, self._growth
        return SavedGrowth(
            format=FORMAT,
            slots=dict(zip(names, growth.slots, strict=True)),
            order=[names[s] for s in self._seeds.groups.order],
            germinations=self._seeds.germinations,
            last_op=growth.last_op,
            last_success=growth.last_success,
            epoch=self.epoch,
            losses=self._losses,
            accuracies=self._accuracies,
            train_losses=self._train_losses,
            adopted="" if self._seeds.adopted is None else names[self._seeds.adopted],
            partial=[names[s] for s in sorted(self._seeds.partial)],
            steps_per_epoch=self._seeds.recorder.steps_per_epoch,
            compute_spent=growth.compute.spent,
            flops=self._flops.counted,
            chance_loss=self._chance_loss,
            session=self._advisor.exported if self._advisor is not None else b"",
            first_metric=self._metric.first,
        )

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Rebuild the grown topology. Load the states of the model and the optimizer afterwards: they hold the values
        of the parameters. Raises `UserError` before anything is changed."""
        require(
            self._seeds.adopted is None,
            f"{self._seeds.names[self._seeds.adopted or 0]} has replaced the model: load states into a new one",
        )
        saved, index = read_growth(state, self._seeds.names, self._seeds.slot_shapes), self._seeds.names.index
        self._seeds.clear(self._growth.filled())
        self._seeds.recorder.steps_per_epoch = saved.steps_per_epoch
        self._growth.lifecycle.slots[:] = saved.slots.values()
        for name in saved.order:
            self._seeds.germinate(index(name), saved.slots[name].blueprint, saved.slots[name].blend)
        self._seeds.germinations, self._seeds.partial = saved.germinations, set(map(index, saved.partial))
        if saved.adopted:
            self._seeds.adopt(index(saved.adopted))
        self._growth.last_op, self._growth.last_success = saved.last_op, saved.last_success
        self.epoch, self._chance_loss = saved.epoch, saved.chance_loss
        self._growth.compute.epochs, self._growth.compute.spent = saved.epoch, saved.compute_spent
        self._flops.use(saved.flops)
        self._losses, self._accuracies, self._train_losses = saved.losses, saved.accuracies, saved.train_losses
        self._metric.first = saved.first_metric
        self._seeds.activate(self._growth.blended())
        if self._advisor is not None and saved.session:
            self._advisor.resume(saved.session)

    def close(self) -> None:
        """Close the policy's session. Grown modules stay."""
        if self._advisor is not None:
            self._advisor.close()


def _number(value: float | Tensor) -> float:
    return float(value.detach() if isinstance(value, Tensor) else value)
