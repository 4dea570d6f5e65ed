"""`StackedEpoch`: one epoch of training stacked networks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from actors.blueprints.blueprint import Params
from actors.env.fleet_networks import CLIP_NORM
from actors.env.hosts.host import Resume
from actors.env.stacked.column_group import ColumnGroup, Outputs, mixed_logits
from actors.env.stacked.cuda_graph import StepResult
from actors.env.stacked.param_bank import ParamBank, RowOptimizer, flat_gradients
from actors.env.stacked.parameters import StackedParameters
from actors.env.stacked.slot_plan import RunKey, StackedSeed, runs_of
from actors.kernels.cnn.functions import CrossEntropy
from actors.kernels.cnn.layout import suits
from actors.layers.batch_norm import batch_statistics, row_statistics


class StackedEpoch:
    """The training of one epoch, a minibatch per `step`; `store` writes the trained seeds back.

    A step is a main pass over all environments, which trains hosts and blended seeds; a shadow pass over those with
    seeds in TRAINING, which trains only these; clipping per host and per seed; and AdamW (see `ReferenceNetwork`).
    `seeds` are the seeds that take part, sorted, and `lr [E]` the learning rates of the environments.
    """

    def __init__(self, stack: StackedParameters, seeds: Sequence[StackedSeed], lr: Tensor) -> None:
        self.stack, self.seeds = stack, seeds
        self.host_optimizer = RowOptimizer(stack.hosts, None, lr)
        self.host_leaves = stack.hosts.leaves(self.host_optimizer.params)
        # Seeds of one bank keep their order, so that those of one slot and mode are consecutive rows.
        banks = dict.fromkeys(seed.bank for seed in seeds)
        self.by_bank = {b: [i for i, seed in enumerate(seeds) if seed.bank == b] for b in banks}
        self.optimizers = {b: self._optimizer(stack.banks[b], [s for s in seeds if s.bank == b], lr) for b in banks}
        self.bank_index = {b: stack.index(indices) for b, indices in self.by_bank.items()}
        # Seeds in the stream come first; only they have gates.
        in_stream = [seed for seed in seeds if seed.slot < stack.host.slots]
        self.gate_optimizer = self._optimizer(stack.gates, in_stream, lr)
        self.seed_index = {(seed.env, seed.slot): i for i, seed in enumerate(seeds)}
        self.bank_row = {i: k for indices in self.by_bank.values() for k, i in enumerate(indices)}
        # Parameters, or gates, of consecutive seeds of one slot and mode (and bank and turn) are leaves together.
        self.runs = {key: self._run_leaves(key[2], run) for key, run in runs_of(seeds, lambda s: s.run)}
        self.gate_runs = {
            key: stack.gates.leaves(self.gate_optimizer.params[run])
            for key, run in runs_of(in_stream, lambda s: (s.slot, s.training))
        }
        # A column that learns needs no other pass through its host: the logits of the main pass are constant.
        self.shadowed = sorted({seed.env for seed in in_stream if seed.training})
        rows = self.shadowed * 2 if len(self.shadowed) == 1 else self.shadowed  # never one, see `BlueprintGroup.grow`
        self.shadow_rows = stack.index(rows)
        blended, training = ([seed for seed in seeds if seed.training is mode] for mode in (False, True))
        in_shadow = [seed for seed in in_stream if seed.env in set(self.shadowed)]
        self.first_slot = min((seed.slot for seed in in_stream if seed.training), default=-1)
        self.main_plans = stack.plans(blended, range(stack.num_envs), self._leaves, self._gate_leaves)
        self.main_columns = stack.columns(blended, self._leaves)
        self.shadow_plans = (
            stack.plans(in_shadow, self.shadowed, self._shadow_params, self._shadow_gates) if self.shadowed else {}
        )
        learning = stack.columns(training, self._leaves)
        self.learning_columns = [[g for g in learning if g.turn == turn] for turn in {g.turn for g in learning}]
        self._kept: list[tuple[Tensor, Tensor, Tensor]] = []

    def step(self, x: Tensor, y: Tensor, measure_outputs: bool) -> StepResult:
        """Train on a minibatch: `x` in the stack's layout, `y [E, B]`."""
        n = self.stack
        x = n.layout.arranged(x)
        entering: list[Tensor] = []
        outputs: list[Tensor] = []

        def slot(s: int, h: Tensor) -> Tensor:
            if s == self.first_slot:
                entering.append(n.layout.select(h, self.shadow_rows).detach())
            outputs.append(self.main_plans[s](h) if s in self.main_plans else h)
            return outputs[-1]

        logits = n.host.forward(self.host_leaves, x, slot, n.units, batch_statistics(n.running))
        columns = _logits_of(self.main_columns, x)
        mixed = mixed_logits(logits, columns)
        outputs = [*outputs, mixed] if measure_outputs else []
        loss = self._loss(mixed, y)
        main_grads, grads, gate_grads = self._gradients(loss, [*self.host_leaves.values(), *outputs], training=False)
        # Columns of one environment learn apart from each other, each mixed with the model alone.
        alone = [mixed_logits(mixed.detach(), _logits_of(groups, x)) for groups in self.learning_columns]
        if self.shadowed:
            alone.append(self._shadow_logits(x, logits.detach(), columns, entering))
        if alone:
            losses = torch.stack([self._loss(t, y) for t in alone])
            _, learned, gate_learned = self._gradients(losses, [], training=True)
            grads, gate_grads = grads | learned, gate_grads | gate_learned
        with torch.no_grad():
            host_grad = flat_gradients(main_grads[: len(self.host_leaves)])
            host_norms = host_grad.square().sum(1).sqrt()
            self.host_optimizer.step(host_grad * self._scale(host_norms))
            output_norms = self._output_norms(main_grads[len(self.host_leaves) :])
            return StepResult(loss.detach(), host_norms, self._step_seeds(grads, gate_grads), output_norms)

    def keep(self, envs: Collection[int]) -> None:
        """Fix the state of environments that have had all their minibatches: what further steps do to them is undone
        by `store`.
        """
        chosen = [i for i, seed in enumerate(self.seeds) if seed.env in envs]
        gated = [i for i in chosen if self.seeds[i].slot < self.stack.host.slots]
        parts = [(self.host_optimizer, sorted(envs)), (self.gate_optimizer, gated)]
        for b, optimizer in self.optimizers.items():
            parts.append((optimizer, [self.bank_row[i] for i in chosen if self.seeds[i].bank == b]))
        self._kept += [saved for optimizer, rows in parts if rows for saved in optimizer.saved(self.stack.index(rows))]

    def store(self) -> None:
        """Write the trained seeds back to their banks."""
        for t, rows, values in self._kept:
            t[rows] = values
        for optimizer in (*self.optimizers.values(), self.gate_optimizer):
            optimizer.store()

    def _loss(self, logits: Tensor, y: Tensor) -> Tensor:
        """Return the mean cross-entropy of each environment `[E]`."""
        if self.stack.layout.dims and suits(logits.movedim(1, 0)):
            loss: Tensor = CrossEntropy.apply(logits, y, self.stack.class_counts)  # type: ignore[no-untyped-call]
            return loss
        logits = logits.masked_fill(self.stack.no_class, -torch.inf)
        return F.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="none").view(y.shape).mean(1)

    def _shadow_logits(self, x: Tensor, logits: Tensor, columns: Outputs, entering: list[Tensor]) -> Tensor:
        """Return logits of the same minibatch with the training seeds of the stream on, everything else constant.

        `logits` of hosts and those of `columns` are of the main pass. Hosts with training seeds in the stream are
        computed again from the first such slot, before which they equal the main pass.
        """
        n, rows, count = self.stack, self.shadow_rows, len(self.shadowed)

        def slot(s: int, h: Tensor) -> Tensor:
            return self.shadow_plans[s](h) if s in self.shadow_plans else h

        constant = n.hosts.views(self.host_optimizer.params[rows])
        units = None if n.units is None else n.units.rows(rows)
        again = n.host.forward(constant, x, slot, units, batch_statistics(), Resume(self.first_slot, entering[0]))
        again = logits.index_copy(0, rows[:count], again[:count])
        return mixed_logits(again, [(group, t.detach()) for group, t in columns])

    def _gradients(
        self, loss: Tensor, others: list[Tensor], training: bool
    ) -> tuple[list[Tensor], dict[RunKey, Tensor], dict[tuple[int, bool], Tensor]]:
        """Return the gradients of `others`, and `[n, size]` of the seeds and gates that this pass trains."""
        runs = {key: leaves for key, leaves in self.runs.items() if key[1] is training}
        gates = {key: leaves for key, leaves in self.gate_runs.items() if key[1] is training}
        groups = [others, *(list(leaves.values()) for leaves in (*runs.values(), *gates.values()))]
        flat = torch.autograd.grad(loss.sum(), [t for group in groups for t in group], allow_unused=True)
        remaining = iter(flat)
        grads = [[g if g is not None else torch.zeros_like(t) for t, g in zip(group, remaining)] for group in groups]  # noqa: B905
        flats = [flat_gradients(group) for group in grads[1:]]
        return grads[0], dict(zip(runs, flats, strict=False)), dict(zip(gates, flats[len(runs) :], strict=True))

    def _step_seeds(self, grads: dict[RunKey, Tensor], gate_grads: dict[tuple[int, bool], Tensor]) -> Tensor:
        """Clip the gradient of each seed with its gate, take AdamW steps, and return the norms before clipping."""
        if not grads:
            return self.host_optimizer.params.new_zeros(0)
        flat_grads = {b: torch.cat([grads[key] for key in self.runs if key[2] == b]) for b in self.by_bank}
        gate_grad = torch.cat([gate_grads[key] for key in self.gate_runs]) if self.gate_runs else None
        squares = self.host_optimizer.params.new_zeros(len(self.seeds))
        if gate_grad is not None:
            squares[: len(gate_grad)] = gate_grad.square().sum(1)
        for b, grad in flat_grads.items():
            squares[self.bank_index[b]] += grad.square().sum(1)
        norms = squares.sqrt()
        scale = self._scale(norms)
        for b, grad in flat_grads.items():
            self.optimizers[b].step(grad * scale[self.bank_index[b]])
        if gate_grad is not None:
            self.gate_optimizer.step(gate_grad * scale[: len(gate_grad)])
        return norms

    def _scale(self, norms: Tensor) -> Tensor:
        """Return the factors `[n, 1]` that limit gradients of these norms `[n]` to `CLIP_NORM`."""
        return (CLIP_NORM / (norms + 1e-6)).clamp(max=1.0)[:, None]

    def _output_norms(self, grads: Sequence[Tensor]) -> Tensor | None:
        """Return the norms `[E, S + 1]` of gradients with respect to hidden tensors and, last, to the logits."""
        if not grads:
            return None
        by_env = [*(self.stack.layout.by_env(grad) for grad in grads[:-1]), grads[-1].flatten(1)]
        return torch.stack([grad.square().sum(1).sqrt() for grad in by_env], 1)

    def _optimizer(self, bank: ParamBank, seeds: Sequence[StackedSeed], lr: Tensor) -> RowOptimizer:
        """Return the optimizer of seeds, each at the learning rate of its environment."""
        return RowOptimizer(bank, self.stack.rows(seeds), lr[[seed.env for seed in seeds]])

    def _run_leaves(self, b: int, run: slice) -> dict[str, Tensor]:
        start = self.bank_row[run.start]
        return self.stack.banks[b].leaves(self.optimizers[b].params[start : start + run.stop - run.start])

    def _leaves(self, seeds: Sequence[StackedSeed]) -> Callable[[], Params]:
        leaves = self.runs[seeds[0].run]
        return lambda: leaves

    def _gate_leaves(self, seeds: Sequence[StackedSeed]) -> Callable[[], Params]:
        leaves = self.gate_runs[seeds[0].slot, seeds[0].training]
        return lambda: leaves

    def _shadow_params(self, seeds: Sequence[StackedSeed]) -> Callable[[], Params]:
        """Return the parameters of seeds in the shadow pass: leaves if they are training, constants otherwise."""
        if seeds[0].training:
            return self._leaves(seeds)
        b = seeds[0].bank
        bank, optimizer = self.stack.banks[b], self.optimizers[b]
        rows = self.stack.index(self.bank_row[self.seed_index[s.env, s.slot]] for s in seeds)
        return lambda: bank.views(optimizer.params[rows])

    def _shadow_gates(self, seeds: Sequence[StackedSeed]) -> Callable[[], Params]:
        learners = [seed for seed in seeds if seed.training]
        blended = [self.seed_index[s.env, s.slot] for s in seeds if not s.training]
        rows = self.stack.index(blended)

        def constant() -> Params:
            return self.stack.gates.views(self.gate_optimizer.params[rows])

        if not learners:
            return constant
        leaves = self._gate_leaves(learners)()
        if not blended:
            return lambda: leaves
        return lambda: {name: torch.cat([t, leaves[name]]) for name, t in constant().items()}


def _logits_of(groups: Sequence[ColumnGroup], x: Tensor) -> Outputs:
    """Return the logits of columns in training, whose running statistics are updated."""
    return [(group, group.logits(x, row_statistics(group.bank.running, group.rows))) for group in groups]
