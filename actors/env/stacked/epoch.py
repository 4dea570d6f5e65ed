"""`StackedEpoch`: one epoch of training stacked networks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from actors.env.blueprints.blueprint import Params
from actors.env.hosts.host import Resume, SlotFunction
from actors.env.layers.batch_norm import Normalize, batch_statistics
from actors.env.layers.layer_norm import Units
from actors.env.reference_network import OptimizerSettings
from actors.env.stacked.param_bank import RowOptimizer, flat_gradients
from actors.env.stacked.parameters import StackedParameters
from actors.env.stacked.slot_plan import StackedSeed

Key = TypeVar("Key")


@dataclass(frozen=True)
class LeafGroup:
    """Consecutive seeds of one slot and mode (and bank) whose parameters, or gates, are autograd leaves together."""

    training: bool
    seeds: slice  # among the seeds of the epoch
    leaves: dict[str, Tensor]


class StackedEpoch:
    """The training of one epoch, a minibatch per `step`; `store` writes the trained seeds back.

    A step is a main pass over all environments, which trains hosts and blended seeds; a shadow pass over those with
    seeds in TRAINING, which trains only these; clipping per host and per seed; and AdamW (see `ReferenceNetwork`).
    `seeds` are the seeds that take part, sorted.
    """

    def __init__(
        self, stack: StackedParameters, seeds: Sequence[StackedSeed], optimizer_settings: OptimizerSettings
    ) -> None:
        self.stack, self.optimizer_settings = stack, optimizer_settings
        o = optimizer_settings
        self.host_optimizer = RowOptimizer(stack.hosts, None, o.host_lr, o.weight_decay)
        self.host_leaves = stack.hosts.leaves(self.host_optimizer.params)
        # Seeds of one bank keep their order, so that those of one slot and mode are consecutive rows.
        self.by_bank: dict[int, list[int]] = {}
        for i, seed in enumerate(seeds):
            self.by_bank.setdefault(seed.bank, []).append(i)
        self.optimizers = {
            b: RowOptimizer(stack.banks[b], stack.rows([seeds[i] for i in indices]), o.seed_lr, o.weight_decay)
            for b, indices in self.by_bank.items()
        }
        self.bank_index = {b: torch.tensor(indices, device=stack.device) for b, indices in self.by_bank.items()}
        self.gate_optimizer = RowOptimizer(stack.gates, stack.rows(seeds), o.seed_lr, o.weight_decay)
        self.seed_index = {(seed.env, seed.slot): i for i, seed in enumerate(seeds)}
        self.bank_row = {i: k for indices in self.by_bank.values() for k, i in enumerate(indices)}
        self.runs = {key: self._run(key, run) for key, run in _runs(seeds, lambda s: (s.slot, s.training, s.bank))}
        self.gate_runs = {key: self._gate_run(key, run) for key, run in _runs(seeds, lambda s: (s.slot, s.training))}
        shadowed = sorted({seed.env for seed in seeds if seed.training})
        rows = shadowed * 2 if len(shadowed) == 1 else shadowed  # never a batch of one, see `BlueprintGroup.grow`
        self.shadowed = torch.tensor(rows, dtype=torch.long, device=stack.device)
        blended = [seed for seed in seeds if not seed.training]
        in_shadow = [seed for seed in seeds if seed.env in set(shadowed)]
        self.first_slot = min((seed.slot for seed in seeds if seed.training), default=-1)
        self.main_plans = stack.plans(blended, range(stack.num_envs), self._leaves, self._gate_leaves)
        self.shadow_plans = (
            stack.plans(in_shadow, shadowed, self._shadow_params, self._shadow_gates) if shadowed else {}
        )

    def step(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Train on a minibatch: `x` in the stack's layout, `y [E, B]`.

        Return the loss of each host `[E]` and the gradient norm of each seed `[n]`, before clipping.
        """
        n = self.stack
        entering: list[Tensor] = []

        def slot(s: int, h: Tensor) -> Tensor:
            if s == self.first_slot:
                entering.append(n.layout.select(h, self.shadowed).detach())
            return self.main_plans[s](h) if s in self.main_plans else h

        loss = self._loss(self.host_leaves, slot, x, y, n.units, n.no_class, batch_statistics(n.running))
        host_grads, grads, gate_grads = self._gradients(loss, self.host_leaves, training=False)
        if self.shadowed.numel():
            # The shadow pass: the same minibatch with the training seeds on, everything else constant. It resumes at
            # their first slot, before which it equals the main pass.
            rows = self.shadowed
            constant = n.hosts.views(self.host_optimizer.params[rows])
            units = None if n.units is None else n.units.rows(rows)
            resume = Resume(self.first_slot, entering[0])

            def shadow_slot(s: int, h: Tensor) -> Tensor:
                return self.shadow_plans[s](h) if s in self.shadow_plans else h

            shadow = self._loss(constant, shadow_slot, x, y[rows], units, n.no_class[rows], batch_statistics(), resume)
            _, learned, gate_learned = self._gradients(shadow, {}, training=True)
            grads, gate_grads = grads | learned, gate_grads | gate_learned
        with torch.no_grad():
            self.host_optimizer.step(_clipped(flat_gradients(host_grads), self.optimizer_settings.clip_norm))
            return loss.detach(), self._step_seeds(grads, gate_grads)

    def store(self) -> None:
        """Write the trained seeds back to their banks."""
        for optimizer in (*self.optimizers.values(), self.gate_optimizer):
            optimizer.store()

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
        """Return the mean cross-entropy of each environment of the pass."""
        logits = self.stack.host.forward(host, x, slot, units, normalize, resume)
        logits = logits.masked_fill(no_class, -torch.inf)
        return F.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="none").view(y.shape).mean(1)

    def _gradients(
        self, loss: Tensor, host: Params, training: bool
    ) -> tuple[list[Tensor], dict[tuple[int, bool, int], Tensor], dict[tuple[int, bool], Tensor]]:
        """Return the gradients of the host's leaves, and `[n, size]` of the seeds and gates that this pass trains."""
        runs = {key: run for key, run in self.runs.items() if run.training is training}
        gates = {key: run for key, run in self.gate_runs.items() if run.training is training}
        groups = [list(host.values()), *(list(run.leaves.values()) for run in (*runs.values(), *gates.values()))]
        flat = torch.autograd.grad(loss.sum(), [t for group in groups for t in group], allow_unused=True)
        remaining = iter(flat)
        grads = [[g if g is not None else torch.zeros_like(t) for t, g in zip(group, remaining)] for group in groups]  # noqa: B905
        flats = [flat_gradients(group) for group in grads[1:]]
        return grads[0], dict(zip(runs, flats, strict=False)), dict(zip(gates, flats[len(runs) :], strict=True))

    def _step_seeds(
        self, grads: dict[tuple[int, bool, int], Tensor], gate_grads: dict[tuple[int, bool], Tensor]
    ) -> Tensor:
        """Clip the gradient of each seed with its gate, take AdamW steps, and return the norms before clipping."""
        if not grads:
            return self.host_optimizer.params.new_zeros(0)
        gate_grad = torch.cat([gate_grads[key] for key in self.gate_runs])
        squares = gate_grad.square().sum(1)
        flat_grads = {b: torch.cat([grads[key] for key in self.runs if key[2] == b]) for b in self.by_bank}
        for b, grad in flat_grads.items():
            squares[self.bank_index[b]] += grad.square().sum(1)
        norms = squares.sqrt()
        scale = (self.optimizer_settings.clip_norm / (norms + 1e-6)).clamp(max=1.0)[:, None]
        for b, grad in flat_grads.items():
            self.optimizers[b].step(grad * scale[self.bank_index[b]])
        self.gate_optimizer.step(gate_grad * scale)
        return norms

    def _run(self, key: tuple[int, bool, int], run: slice) -> LeafGroup:
        _, training, b = key
        start = self.bank_row[run.start]
        rows = self.optimizers[b].params[start : start + run.stop - run.start]
        return LeafGroup(training, run, self.stack.banks[b].leaves(rows))

    def _gate_run(self, key: tuple[int, bool], run: slice) -> LeafGroup:
        return LeafGroup(key[1], run, self.stack.gates.leaves(self.gate_optimizer.params[run]))

    def _leaves(self, seeds: Sequence[StackedSeed]) -> Callable[[], Params]:
        leaves = self.runs[seeds[0].slot, seeds[0].training, seeds[0].bank].leaves
        return lambda: leaves

    def _gate_leaves(self, seeds: Sequence[StackedSeed]) -> Callable[[], Params]:
        leaves = self.gate_runs[seeds[0].slot, seeds[0].training].leaves
        return lambda: leaves

    def _shadow_params(self, seeds: Sequence[StackedSeed]) -> Callable[[], Params]:
        """Return the parameters of seeds in the shadow pass: leaves if they are training, constants otherwise."""
        if seeds[0].training:
            return self._leaves(seeds)
        b = seeds[0].bank
        bank, optimizer = self.stack.banks[b], self.optimizers[b]
        rows = torch.tensor([self.bank_row[self.seed_index[s.env, s.slot]] for s in seeds], device=self.stack.device)
        return lambda: bank.views(optimizer.params[rows])

    def _shadow_gates(self, seeds: Sequence[StackedSeed]) -> Callable[[], Params]:
        learners = [seed for seed in seeds if seed.training]
        blended = [self.seed_index[s.env, s.slot] for s in seeds if not s.training]
        rows = torch.tensor(blended, dtype=torch.long, device=self.stack.device)

        def constant() -> Params:
            return self.stack.gates.views(self.gate_optimizer.params[rows])

        if not learners:
            return constant
        leaves = self._gate_leaves(learners)()
        if not blended:
            return lambda: leaves
        return lambda: {name: torch.cat([t, leaves[name]]) for name, t in constant().items()}


def _clipped(grad: Tensor, clip_norm: float) -> Tensor:
    """Return `grad [n, size]` with the norm of each row limited to `clip_norm`."""
    scale: Tensor = clip_norm / (grad.square().sum(1, keepdim=True).sqrt() + 1e-6)
    return grad * scale.clamp(max=1.0)


def _runs(seeds: Sequence[StackedSeed], key: Callable[[StackedSeed], Key]) -> list[tuple[Key, slice]]:
    """Return slices of consecutive seeds with equal keys."""
    out, start = [], 0
    for value, group in groupby(seeds, key=key):
        stop = start + sum(1 for _ in group)
        out.append((value, slice(start, stop)))
        start = stop
    return out
