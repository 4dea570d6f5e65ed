"""`StackedEpoch`: one epoch of stacked networks, minibatch by minibatch: main pass, shadow pass, clip, AdamW."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from actors.env.blueprints.vector import Params, Units
from actors.env.hosts.mlp import Resume, SlotFunction
from actors.env.layers.batch_norm import Normalize, batch_statistics
from actors.env.reference_network import OptimizerSettings
from actors.env.stacked.param_bank import RowOptimizer, flat_gradients
from actors.env.stacked.parameters import StackedParameters
from actors.env.stacked.slot_plan import StackedSeed

Key = TypeVar("Key")


@dataclass(frozen=True)
class LeafGroup:
    """Consecutive live seeds that share slot and mode and, for parameters, the bank."""

    learning: bool
    seeds: slice  # among all live seeds
    leaves: dict[str, Tensor]


class StackedEpoch:
    """Gathered rows, leaves, and the plans of both passes. `seeds` are sorted."""

    def __init__(
        self, stack: StackedParameters, seeds: Sequence[StackedSeed], optimizer_settings: OptimizerSettings
    ) -> None:
        self.stack, self.optimizer_settings = stack, optimizer_settings
        o = optimizer_settings
        self.host = RowOptimizer(stack.hosts, None, o.host_lr, o.weight_decay)
        self.host_leaves = stack.hosts.leaves(self.host.params)
        # Seeds of one bank keep their order in its working rows: runs of equal (slot, mode) are slices.
        self.members: dict[int, list[int]] = {}
        for i, seed in enumerate(seeds):
            self.members.setdefault(seed.bank, []).append(i)
        self.work = {
            b: RowOptimizer(stack.banks[b], stack.rows([seeds[i] for i in own]), o.seed_lr, o.weight_decay)
            for b, own in self.members.items()
        }
        self.index = {b: torch.tensor(own, device=stack.device) for b, own in self.members.items()}
        self.gates = RowOptimizer(stack.gates, stack.rows(seeds), o.seed_lr, o.weight_decay)
        self.where = {(seed.env, seed.slot): i for i, seed in enumerate(seeds)}
        self.local = {i: k for own in self.members.values() for k, i in enumerate(own)}
        self.runs = {key: self._run(key, run) for key, run in _runs(seeds, lambda s: (s.slot, s.learning, s.bank))}
        self.gate_runs = {key: self._gate_run(key, run) for key, run in _runs(seeds, lambda s: (s.slot, s.learning))}
        shadowed = sorted({seed.env for seed in seeds if seed.learning})
        rows = shadowed * 2 if len(shadowed) == 1 else shadowed  # never a batch of one, see `BlueprintGroup.grow`
        self.shadowed = torch.tensor(rows, dtype=torch.long, device=stack.device)
        blended = [seed for seed in seeds if not seed.learning]
        beside = [seed for seed in seeds if seed.env in set(shadowed)]
        self.first = min((seed.slot for seed in seeds if seed.learning), default=-1)
        self.main = stack.plans(blended, range(stack.num_envs), self._leaves, self._gate_leaves)
        self.shadow = stack.plans(beside, shadowed, self._beside, self._gate_beside) if shadowed else {}

    def step(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """One minibatch `x`, laid out, `y [E, B]`; returns losses `[E]` and the seeds' gradient norms `[n]`."""
        n = self.stack
        entering: list[Tensor] = []

        def slot(s: int, h: Tensor) -> Tensor:
            if s == self.first:
                entering.append(n.layout.pick(h, self.shadowed).detach())
            return self.main[s](h) if s in self.main else h

        loss = self._loss(self.host_leaves, slot, x, y, n.units, n.no_class, batch_statistics(n.running))
        host_grads, grads, gate_grads = self._gradients(loss, self.host_leaves, learning=False)
        if self.shadowed.numel():
            # The same minibatch with the learners switched on; their hosts and neighbours are constants. Up to the
            # first learner's slot all is as it was in the main pass.
            rows = self.shadowed
            constant = n.hosts.views(self.host.params[rows])
            units = None if n.units is None else n.units.rows(rows)
            resume = Resume(self.first, entering[0])

            def beside(s: int, h: Tensor) -> Tensor:
                return self.shadow[s](h) if s in self.shadow else h

            shadow = self._loss(constant, beside, x, y[rows], units, n.no_class[rows], batch_statistics(), resume)
            _, learned, gate_learned = self._gradients(shadow, {}, learning=True)
            grads, gate_grads = grads | learned, gate_grads | gate_learned
        with torch.no_grad():
            self.host.step(_clipped(flat_gradients(host_grads), self.optimizer_settings.clip_norm))
            return loss.detach(), self._step_seeds(grads, gate_grads)

    def store(self) -> None:
        """Put the gathered rows back into their banks."""
        for work in (*self.work.values(), self.gates):
            work.store()

    def _loss(
        self,
        host: Params,
        slot: SlotFunction,
        x: Tensor,
        y: Tensor,
        units: Units | None,
        no_class: Tensor,
        normalize: Normalize,
        resume: Resume | None = None,
    ) -> Tensor:
        """Mean cross-entropy of each environment of the pass."""
        logits = self.stack.host.forward(host, x, slot, units, normalize, resume)
        logits = logits.masked_fill(no_class, -torch.inf)
        return F.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="none").view(y.shape).mean(1)

    def _gradients(
        self, loss: Tensor, host: Params, learning: bool
    ) -> tuple[list[Tensor], dict[tuple[int, bool, int], Tensor], dict[tuple[int, bool], Tensor]]:
        """Of the host's leaves, and `[n, size]` of each run that learns in this pass."""
        runs = {key: run for key, run in self.runs.items() if run.learning is learning}
        gates = {key: run for key, run in self.gate_runs.items() if run.learning is learning}
        groups = [list(host.values()), *(list(run.leaves.values()) for run in (*runs.values(), *gates.values()))]
        flat = torch.autograd.grad(loss.sum(), [t for group in groups for t in group], allow_unused=True)
        found = iter(flat)
        grads = [[g if g is not None else torch.zeros_like(t) for t, g in zip(group, found)] for group in groups]  # noqa: B905
        flats = [flat_gradients(group) for group in grads[1:]]
        return grads[0], dict(zip(runs, flats, strict=False)), dict(zip(gates, flats[len(runs) :], strict=True))

    def _step_seeds(
        self, grads: dict[tuple[int, bool, int], Tensor], gate_grads: dict[tuple[int, bool], Tensor]
    ) -> Tensor:
        """Clip each seed with its gate, and take their AdamW steps; returns the norms before the clip."""
        if not grads:
            return self.host.params.new_zeros(0)
        gate_grad = torch.cat([gate_grads[key] for key in self.gate_runs])
        squares = gate_grad.square().sum(1)
        by_bank = {b: torch.cat([grads[key] for key in self.runs if key[2] == b]) for b in self.members}
        for b, grad in by_bank.items():
            squares[self.index[b]] += grad.square().sum(1)
        norms = squares.sqrt()
        scale = (self.optimizer_settings.clip_norm / (norms + 1e-6)).clamp(max=1.0)[:, None]
        for b, grad in by_bank.items():
            self.work[b].step(grad * scale[self.index[b]])
        self.gates.step(gate_grad * scale)
        return norms

    def _run(self, key: tuple[int, bool, int], run: slice) -> LeafGroup:
        _, learning, b = key
        start = self.local[run.start]
        rows = self.work[b].params[start : start + run.stop - run.start]
        return LeafGroup(learning, run, self.stack.banks[b].leaves(rows))

    def _gate_run(self, key: tuple[int, bool], run: slice) -> LeafGroup:
        return LeafGroup(key[1], run, self.stack.gates.leaves(self.gates.params[run]))

    def _leaves(self, seeds: Sequence[StackedSeed]) -> Callable[[], Params]:
        leaves = self.runs[seeds[0].slot, seeds[0].learning, seeds[0].bank].leaves
        return lambda: leaves

    def _gate_leaves(self, seeds: Sequence[StackedSeed]) -> Callable[[], Params]:
        leaves = self.gate_runs[seeds[0].slot, seeds[0].learning].leaves
        return lambda: leaves

    def _beside(self, seeds: Sequence[StackedSeed]) -> Callable[[], Params]:
        """In the shadow pass: learners are leaves, blended neighbours constants as they are now."""
        if seeds[0].learning:
            return self._leaves(seeds)
        b = seeds[0].bank
        bank, work = self.stack.banks[b], self.work[b]
        rows = torch.tensor([self.local[self.where[s.env, s.slot]] for s in seeds], device=self.stack.device)
        return lambda: bank.views(work.params[rows])

    def _gate_beside(self, seeds: Sequence[StackedSeed]) -> Callable[[], Params]:
        learners = [seed for seed in seeds if seed.learning]
        blended = [self.where[s.env, s.slot] for s in seeds if not s.learning]
        rows = torch.tensor(blended, dtype=torch.long, device=self.stack.device)

        def constant() -> Params:
            return self.stack.gates.views(self.gates.params[rows])

        if not learners:
            return constant
        leaves = self._gate_leaves(learners)()
        if not blended:
            return lambda: leaves
        return lambda: {name: torch.cat([t, leaves[name]]) for name, t in constant().items()}


def _clipped(grad: Tensor, clip_norm: float) -> Tensor:
    """`grad [n, size]` with each row's norm at most `clip_norm`."""
    scale: Tensor = clip_norm / (grad.square().sum(1, keepdim=True).sqrt() + 1e-6)
    return grad * scale.clamp(max=1.0)


def _runs(seeds: Sequence[StackedSeed], key: Callable[[StackedSeed], Key]) -> list[tuple[Key, slice]]:
    """Consecutive seeds of equal key, as slices."""
    out, start = [], 0
    for value, group in groupby(seeds, key=key):
        stop = start + sum(1 for _ in group)
        out.append((value, slice(start, stop)))
        start = stop
    return out
