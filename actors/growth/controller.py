"""`GrowthController`: grows a user's model while the user's own loop trains it, as a policy decides epoch by epoch."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from math import isfinite, log
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from actors.config import require
from actors.env.env import seed_spaces
from actors.env.slots.contributions import EvalResult, Subset, subsets_to_evaluate
from actors.env.slots.growth_state import GrowthRules, GrowthState
from actors.env.slots.lifecycle import GATES, SeedAction
from actors.env.slots.observation import TrainingState
from actors.env.slots.stage import Stage
from actors.growth.decision import Decision, DecisionLog
from actors.growth.isolation import fresh_statistics, without_traces
from actors.growth.policy_advisor import PolicyAdvisor, find_policy
from actors.growth.ranks import Ranks, unwrap
from actors.growth.seed_manager import SeedManager
from actors.growth.slots import SlotSpec
from actors.growth.topology import FORMAT, pack_slots, read_growth
from actors.serving.client.session import Answer, SessionOpener
from actors.types.actions import Op

logger = logging.getLogger(__name__)

LOG_VARIABLE = "TAMIYO_GROWTH_LOG"
BUDGET_RATIO = 4.0  # parameters that may be added, in multiples of the model's own, unless the user says how many


class GrowthController:
    """
    grower = GrowthController(model, {"block1": SlotSpec()}, optimizer, horizon_epochs=20, num_classes=10)
    for epoch in range(20):
        for x, y in batches:
            ...
            loss.backward()
            grower.shadow(lambda: loss_of(model(x), y))  # how a young seed learns without touching the model
            optimizer.step()
        grower.step(loss=..., accuracy=...)              # of validation; one decision

    Hand in the model as it is called in the loop: wrapped in `DistributedDataParallel`, compiled, or plain. Make the
    controller before the first forward pass. The observation alone leaves the process, and only where the policy is a
    server. Whatever the policy does, or fails to do, `step` comes back: without an answer nothing is done that epoch.
    """

    def __init__(
        self,
        model: nn.Module,
        slots: Mapping[str, SlotSpec] | Sequence[str],
        optimizer: Optimizer,
        *,
        horizon_epochs: int,
        policy: SessionOpener | str | Path | None = None,
        num_classes: int | None = None,
        chance_loss: float | None = None,
        evaluate: Callable[[], float] | None = None,
        calibrate: Callable[[], object] | None = None,
        evaluate_every: int = 1,
        max_added_parameters: int | None = None,
        gates: Literal["permissive", "strict"] = "permissive",
        embargo_epochs: int = 2,
        profile: Literal["tamiyo", "classic"] = "tamiyo",
        deterministic: bool = True,
        seed: int = 0,
        dry_run: bool = False,
        veto: Callable[[SeedAction], bool] | None = None,
        on_error: Literal["wait", "raise"] = "wait",
        timeout_s: float = 3.0,
        log_file: str | Path | None = None,
    ) -> None:
        """`slots` maps names of modules to what fits after them. `policy` is a client, a `LocalPolicy`, a checkpoint or
        the address of a server (see `find_policy` for None). `num_classes` is left out where there are none, and
        `chance_loss`, the loss of guessing, follows from it or is the first loss that is reported.

        `evaluate()` gives the validation accuracy, 0 to 1, of the model as it then is; it is called once for each
        combination of seeds, so that the policy knows what each is worth. A model with BatchNorm needs `calibrate()`
        beside it: a few forward passes in training mode. `veto(action)` is True for what shall not be done; in a
        `dry_run` nothing is. Raises `UserError`.
        """
        require(1 <= len(slots) <= 8, f"{len(slots)} slots: a model has 1 to 8")
        require(horizon_epochs >= 1, f"horizon_epochs is {horizon_epochs}: at least one epoch")
        require(evaluate_every >= 1, f"evaluate_every is {evaluate_every}: at least 1")
        require(num_classes is None or num_classes >= 2, f"num_classes is {num_classes}: at least 2, or None")
        require(gates in GATES, f"gates is {gates!r}: permissive or strict")
        self.model, ddp, compiled = unwrap(model)
        self._ranks = Ranks(ddp)
        specs = slots if isinstance(slots, Mapping) else {name: SlotSpec() for name in slots}
        host_params = sum(p.numel() for p in self.model.parameters() if p.requires_grad)
        self.max_added_parameters = (
            int(BUDGET_RATIO * host_params) if max_added_parameters is None else max_added_parameters
        )
        require(self.max_added_parameters >= 1, "max_added_parameters must be at least 1: with none nothing can grow")
        self._garden = SeedManager(self.model, specs, optimizer, self._ranks, seed, compiled)
        spaces = seed_spaces(len(specs), profile)
        own_gates = GATES[gates] if evaluate is not None else GATES[gates].without_contributions()
        rules = GrowthRules(self.max_added_parameters, own_gates, embargo_epochs, profile)
        self._growth = GrowthState(self._garden.places, host_params, rules, spaces.action)
        self._oracle: PolicyAdvisor | None = None
        if self._ranks.first:
            self._oracle = PolicyAdvisor(
                find_policy(policy, timeout_s), spaces, seed, deterministic, on_error == "wait"
            )
        self.horizon_epochs, self.num_classes, self.dry_run = horizon_epochs, num_classes, dry_run
        self._chance_loss = log(num_classes) if chance_loss is None and num_classes else chance_loss
        self._evaluate, self._calibrate, self._evaluate_every = evaluate, calibrate, evaluate_every
        self._veto = veto
        self._log = DecisionLog((log_file or os.environ.get(LOG_VARIABLE)) if self._ranks.first else None)
        self.epoch = 0
        self._losses: list[float] = []
        self._accuracies: list[float | None] = []

    @property
    def log(self) -> list[Decision]:
        """Every decision so far."""
        return self._log.decisions

    @property
    def stages(self) -> dict[str, Stage]:
        """By slot."""
        return {name: slot.stage for name, slot in zip(self._garden.names, self._growth.slots, strict=True)}

    @property
    def added_parameters(self) -> int:
        return self._growth.added_params()

    def shadow(self, loss: Callable[[], Tensor]) -> None:
        """Have seeds in TRAINING learn from this minibatch, apart from the model. Call it right before
        `optimizer.step()`, after any clipping of gradients, with what computes the loss that was just trained on,
        scaled by `GradScaler.scale` where the other one was; it is called only while there is such a seed.

        The model runs once more with these seeds switched on. Gradients are taken for their parameters alone; running
        statistics and random numbers are as if it had not run.
        """
        learners = {} if self.dry_run else self._growth.training()
        if not learners:
            return
        with (
            self._ranks.alone(),
            without_traces(self.model),
            self._garden.showing(self._growth.blended() | learners),
            torch.enable_grad(),
        ):
            self._garden.learn(loss(), list(learners))

    def step(self, loss: float | Tensor, accuracy: float | Tensor | None = None) -> Decision:
        """Once per epoch, with validation's loss and accuracy (0 to 1; None where there is none): takes the policy's
        decision and carries it out. A first call before any training shows the policy the untrained model."""
        value, share = float(loss), None if accuracy is None else float(accuracy)
        require(share is None or not share > 1.0, f"accuracy is {share}: give a share between 0 and 1, not percent")
        points = 100.0 * share if share is not None and isfinite(share) else None
        value, points = self._ranks.agree((value, points))
        if self._losses or self._garden.optimizer_steps:
            self._settle()
        self._losses.append(value)
        self._accuracies.append(points)
        asked, reason, answer = self._ranks.agree(self._ask())
        action = SeedAction(Op.WAIT) if reason else asked
        if asked.op is not Op.WAIT and not reason and (refused := self._ranks.agree(self._refusal(asked))):
            action, reason = SeedAction(Op.WAIT), refused
        self._carry_out(action, asked=action is asked or answer is None)
        decision = self._decision(action, asked, reason, answer)
        self._log.append(decision)
        return decision

    def _settle(self) -> None:
        """What the epoch that was trained came to."""
        blended, training = self._growth.blended(), self._growth.training()
        norms = self._ranks.agree(self._garden.take_norms())
        if missing := training.keys() - norms.keys():
            names = ", ".join(self._garden.names[s] for s in sorted(missing))
            logger.warning("the seed at %s learns nothing: call shadow(...) before optimizer.step()", names)
        self._growth.record_gradients(norms, training)
        due = self._evaluate is not None and (self.epoch + 1) % self._evaluate_every == 0 and (blended or training)
        measured = self._ranks.agree(self._ablate(blended, training)) if due else {}
        where = f"epoch {self.epoch}"
        self._growth.record_contributions(measured, blended, training, due=bool(measured), label=where)
        self.epoch += 1
        before = self._growth.filled()
        self._growth.lifecycle.automatic_transitions()
        self._garden.clear(before - self._growth.filled())

    def _ablate(self, blended: Mapping[int, float], training: Mapping[int, float]) -> dict[Subset, EvalResult]:
        """Accuracy with each set of seeds switched on; empty where it could not be measured."""
        assert self._evaluate is not None
        alphas, measured = {**blended, **training}, {}
        try:
            for subset in subsets_to_evaluate(blended, training):
                on = {s: alphas[s] for s in subset}
                with torch.no_grad(), without_traces(self.model), self._garden.showing(on):
                    if self._calibrate is not None:
                        with fresh_statistics(self.model):
                            self._calibrate()
                    measured[subset] = EvalResult(100.0 * float(self._evaluate()), 0.0)
        except Exception as error:  # a measurement that failed is unknown, and no reason to end a training
            logger.warning("contributions could not be measured: %s", error)
            return {}
        return measured

    def _ask(self) -> tuple[SeedAction, str, Answer | None]:
        """(what the policy wants, why it is not done or "", its answer)."""
        if self._oracle is None:
            return SeedAction(Op.WAIT), "", None  # the first rank asks
        if self.epoch >= self.horizon_epochs:
            return SeedAction(Op.WAIT), "the horizon has passed", None
        seen = self._growth.observation(self._setting())
        answer, reason = self._oracle.ask(seen["obs"], seen["blueprint_indices"], self._growth.masks())
        if answer is None:
            return SeedAction(Op.WAIT), reason, None
        action, illegal = self._growth.read(np.asarray(answer.action))
        return action, illegal, answer

    def _setting(self) -> TrainingState:
        if self._chance_loss is None:
            first = abs(self._losses[0])
            self._chance_loss = first if isfinite(first) and first > 0 else 1.0
        return TrainingState(
            epoch=self.epoch,
            horizon_epochs=self.horizon_epochs,
            chance_loss=self._chance_loss,
            num_classes=self.num_classes,
            val_losses=self._losses,
            accuracies=self._accuracies,
        )

    def _refusal(self, action: SeedAction) -> str:
        if self.dry_run:
            return "dry run"
        try:
            return "veto" if self._veto is not None and self._veto(action) else ""
        except Exception as error:  # who cannot say whether it may be done has not allowed it
            return f"veto failed: {error}"

    def _carry_out(self, action: SeedAction, asked: bool) -> None:
        self._garden.clear(self._growth.apply(action, asked))
        if action.op is Op.GERMINATE:
            self._garden.germinate(action.slot, action.blueprint, action.blend)
        self._garden.show(self._growth.blended())

    def _decision(self, action: SeedAction, asked: SeedAction, reason: str, answer: Answer | None) -> Decision:
        names, slots = self._garden.names, self._growth.slots
        blueprints = [self._garden.blueprint_name(s, slot.blueprint) for s, slot in enumerate(slots)]
        told = "" if answer is None else asked.op.name + ("" if asked.op is Op.WAIT else f" {names[asked.slot]}")
        wait = action.op is Op.WAIT
        return Decision(
            epoch=self.epoch,
            op=action.op.name,
            slot="" if wait else names[action.slot],
            blueprint="" if wait else blueprints[action.slot],
            asked=told,
            reason=reason,
            loss=self._losses[-1],
            accuracy=self._accuracies[-1],
            added_params=self.added_parameters,
            growth_ratio=self.added_parameters / self._growth.host_params,
            stages=[slot.stage.name for slot in slots],
            alphas=[slot.alpha for slot in slots],
            blueprints=blueprints,
            slots=names,
            policy_version=-1 if answer is None else answer.policy_version,
            value=None if answer is None else answer.value,
        )

    def follow(self, model: nn.Module) -> None:
        """Grow another copy of the model alike, such as an `AveragedModel`: its seeds start as copies."""
        self._garden.follow(unwrap(model)[0])
        self._garden.show(self._growth.blended())

    def export(self) -> nn.Module:
        """A copy of the model as it is now, of PyTorch's modules and the user's alone; see `exported_model`."""
        from actors.growth.export import exported_model

        return exported_model(self.model, self._garden.plots)

    def state_dict(self) -> dict[str, Any]:
        """All that `load_state_dict` needs, of plain types. Take it between `step` and the next epoch, together with
        the states of the model and of the optimizer."""
        return {
            "format": FORMAT,
            "slots": pack_slots(self._garden.names, self._growth.slots),
            "order": [self._garden.names[s] for s in self._garden.order],
            "germinations": self._garden.germinations,
            "last_op": int(self._growth.last_op),
            "last_success": self._growth.last_success,
            "epoch": self.epoch,
            "losses": list(self._losses),
            "accuracies": list(self._accuracies),
            "chance_loss": self._chance_loss,
            "session": self._oracle.exported if self._oracle is not None else b"",
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Rebuild what had grown, with parameters that are yet to be loaded: load the model's and the optimizer's
        state afterwards. Raises `UserError`, before anything is changed."""
        saved = read_growth(state, self._garden.names, self._garden.places)
        self._garden.clear(self._growth.filled())
        self._growth.lifecycle.slots[:] = saved.slots
        for s in saved.order:
            self._garden.germinate(s, saved.slots[s].blueprint, saved.slots[s].blend)
        self._garden.germinations = saved.germinations
        self._growth.last_op, self._growth.last_success = saved.last_op, saved.last_success
        self.epoch, self._chance_loss = saved.epoch, saved.chance_loss
        self._losses, self._accuracies = list(saved.losses), list(saved.accuracies)
        self._garden.show(self._growth.blended())
        if self._oracle is not None and saved.session:
            self._oracle.resume(saved.session)

    def close(self) -> None:
        """End the policy's session; what has grown stays."""
        if self._oracle is not None:
            self._oracle.close()
