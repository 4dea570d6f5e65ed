"""`ReferenceNetwork`: one host with its seeds, trained one epoch at a time.

It defines what the fast backends (`actors.kernels.hosts`, `actors.env.stacked`) must compute, and favors clarity over
speed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from actors.blueprints.blends import GateLogits, apply_blend, gate_shapes
from actors.blueprints.blueprint import Blueprint
from actors.env.fleet_networks import CLIP_NORM, WEIGHT_DECAY
from actors.env.hosts.host import Host, column_host, draw_params
from actors.layers.batch_norm import EPS, Moments, Normalize, batch_statistics, fresh, running_statistics
from actors.layers.convolution import After
from actors.slots.contributions import EvalResult


class ParameterGroup:
    """Parameters with their own optimizer: those of the host, or those of one seed and its gate."""

    def __init__(self, params: dict[str, Tensor], weight_decay: float) -> None:
        self.params, self.lr_scale = params, 1.0
        self.optimizer = torch.optim.AdamW(list(params.values()), weight_decay=weight_decay, fused=True)

    @property
    def tensors(self) -> list[Tensor]:
        return list(self.params.values())

    def step(self, grads: Sequence[Tensor], clip_norm: float, lr: float) -> float:
        """Clip the gradient norm, take one AdamW step, and return the norm before clipping."""
        norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(list(grads))))
        torch._foreach_mul_(list(grads), (clip_norm / (norm + 1e-6)).clamp(max=1.0))
        for tensor, grad in zip(self.params.values(), grads, strict=True):
            tensor.grad = grad.contiguous()  # the fused optimizer ignores strides
        self.optimizer.param_groups[0]["lr"] = lr * self.lr_scale
        self.optimizer.step()
        return float(norm)


@dataclass
class ReferenceSeed:
    """A seed: a blueprint in one slot, with the gate of its blend."""

    blueprint: Blueprint
    blend: int
    group: ParameterGroup
    gate_logits: GateLogits

    def blend_into(self, h: Tensor, alpha: float) -> Tensor:
        """Return the host's `h` with this seed blended in at `alpha`."""
        p = self.group.params
        return apply_blend(self.blend, h, self.blueprint.forward(p, h, None), alpha, p, self.gate_logits)


@dataclass
class ReferenceColumn:
    """A seed in a column slot: a bare host of its own width, whose logits are mixed with the host's."""

    host: Host
    group: ParameterGroup
    prefix: str  # of the names of its norms in the network's running statistics

    def logits(self, x: Tensor, normalize: Normalize) -> Tensor:
        """Return the column's own logits."""

        def own_norm(name: str, h: Tensor, gain: Tensor, bias: Tensor, dims: int, after: After) -> Tensor:
            return normalize(self.prefix + name, h, gain, bias, dims, after)

        return self.host.forward(self.group.params, x, lambda s, h: h, None, own_norm)

    def norms(self) -> dict[str, int]:
        """Return the number of channels of every BatchNorm, by its name in the network."""
        return {self.prefix + name: channels for name, channels in self.host.norms().items()}


Trained = tuple[float, dict[int, list[float]], dict[int, float]]
"""The first three fields of `EpochResult`; scores are those of slots with a seed too."""
Snapshot = tuple[dict[int, list[Tensor]], dict[str, Moments]]
"""Copies of all state but the optimizers': parameters by slot, the host's under -1, and running statistics."""


class ReferenceNetwork:
    """One host and the seeds in its slots, with parameters and optimizers.

    The host and every seed have their own AdamW and are clipped separately. Seeds in BLENDING, HOLDING or FOSSILIZED
    (`blended`) are part of the function and are trained with the host by the main pass. Seeds in TRAINING (`training`)
    learn from another pass over the same minibatch, in which everything else is constant: they change neither the host
    nor its running statistics. Those in the stream learn together, in the shadow pass; each column apart, mixed with
    the model alone.

    Slots up to `host.slots` are in the stream, the others hold columns, which are mixed with the logits one after the
    other: z = (1 - alpha) z + alpha c.
    """

    def __init__(
        self,
        host: Host,
        rng: np.random.Generator,
        dtype: torch.dtype = torch.float32,
        column_slots: int = 0,
        weight_decay: float = WEIGHT_DECAY,
        clip_norm: float = CLIP_NORM,
    ) -> None:
        self.host, self.column_slots = host, column_slots
        self.dtype = dtype
        self.weight_decay, self.clip_norm = weight_decay, clip_norm
        self.group = ParameterGroup(draw_params(host.shapes(), rng, dtype), weight_decay)
        self.seeds: dict[int, ReferenceSeed | ReferenceColumn] = {}
        self.running = dict(fresh(host.norms(), dtype=dtype))

    def germinate(self, slot: int, blueprint: int, blend: int, rng: np.random.Generator) -> None:
        """Add a seed with a fresh optimizer. It is not part of the host's function yet.

        `blueprint` is an index into the tables of the host's family.
        """
        family = self.host.family
        column = family.columns[blueprint]
        if column is None:
            width, grown = self.host.slot_width(slot), family.blueprints[blueprint]
            shapes = grown.shapes(width) | gate_shapes(blend, width)
            group = ParameterGroup(draw_params(shapes, rng, self.dtype), self.weight_decay)
            self.seeds[slot] = ReferenceSeed(grown, blend, group, family.gate_logits)
        else:
            host = column_host(self.host, column.scale)
            group = ParameterGroup(draw_params(host.shapes(), rng, self.dtype), self.weight_decay)
            self.seeds[slot] = seed = ReferenceColumn(host, group, f"column{slot}.")
            self.running |= fresh(seed.norms(), dtype=self.dtype)

    def prune(self, slot: int) -> None:
        """Remove the seed of a slot."""
        seed = self.seeds.pop(slot)
        if isinstance(seed, ReferenceColumn):
            for name in seed.norms():
                del self.running[name]

    def logits(
        self,
        x: Tensor,
        alphas: Mapping[int, float],
        normalize: Normalize | None = None,
        outputs: dict[int, Tensor] | None = None,
    ) -> Tensor:
        """Return the logits with the seeds of `alphas` (slot -> alpha) blended in.

        BatchNorm uses `normalize`, by default the statistics of the batch. The output of each slot is stored in
        `outputs`; that of a column slot are the logits.
        """
        outputs = {} if outputs is None else outputs
        normalize = normalize or batch_statistics()

        def slot(s: int, h: Tensor) -> Tensor:
            seed = self.seeds.get(s)
            grown = seed.blend_into(h, alphas[s]) if isinstance(seed, ReferenceSeed) and s in alphas else h
            outputs[s] = grown
            return grown

        logits = self.host.forward(self.group.params, x, slot, None, normalize)
        for s, alpha in alphas.items():
            seed = self.seeds[s]
            if isinstance(seed, ReferenceColumn):
                logits = (1.0 - alpha) * logits + alpha * seed.logits(x, normalize)
        outputs |= dict.fromkeys(range(self.host.slots, self.host.slots + self.column_slots), logits)
        return logits

    def train_epoch(
        self, x: Tensor, y: Tensor, blended: Mapping[int, float], training: Mapping[int, float], lr: float = 5e-3
    ) -> Trained:
        """Train one epoch on minibatches `x [inner_steps, B, ...]`, `y [inner_steps, B]`.

        `blended` are the alphas of seeds that are part of the host's function, by slot, columns in the order in which
        they are mixed; `training` the strengths at which seeds learn that do not affect the host. All others are off.
        The main pass updates the running statistics of BatchNorm. The shadow pass updates only those of the columns
        that it trains.
        """
        main = batch_statistics(self._running_of(blended, self.host.norms()))
        aside = batch_statistics(self._running_of(training))
        losses = []
        scores: dict[int, float] = {}
        norms: dict[int, list[float]] = {s: [] for s in (*blended, *training)}
        for step, (batch, labels) in enumerate(zip(x, y, strict=True)):
            outputs: dict[int, Tensor] = {}
            groups = [self.group, *(self.seeds[s].group for s in blended)]
            learners = [self.seeds[s].group for s in training]
            loss = F.cross_entropy(self.logits(batch, blended, main, outputs), labels)
            learnt = [t for g in groups for t in g.tensors]
            scored = list(outputs) if step == len(x) - 1 else []
            grads = torch.autograd.grad(loss, learnt + [outputs[s] for s in scored])
            grads, at_outputs = grads[: len(learnt)], grads[len(learnt) :]
            if learners:
                # The same minibatch with the training seeds of the stream on, and with each training column. Gradients
                # are taken only with respect to their parameters, so everything else is constant.
                stream = {s: a for s, a in training.items() if s < self.host.slots}
                passes = [stream, *({s: a} for s, a in training.items() if s not in stream)]
                shadow = torch.stack(
                    [F.cross_entropy(self.logits(batch, {**blended, **on}, aside), labels) for on in passes if on]
                ).sum()
                grads += torch.autograd.grad(shadow, [t for g in learners for t in g.tensors])
            slots: list[int | None] = [None, *blended, *training]
            rest = list(grads)
            for slot, group in zip(slots, [*groups, *learners], strict=True):
                group_grads, rest = rest[: len(group.params)], rest[len(group.params) :]
                norm = group.step(group_grads, self.clip_norm, lr)
                if slot is not None:
                    norms[slot].append(norm)
                elif norm > 0:
                    scores = {s: float(g.norm()) / norm for s, g in zip(scored, at_outputs, strict=True)}
            losses.append(loss.detach())
        return float(torch.stack(losses).mean()), norms, scores

    def _running_of(self, slots: Collection[int], others: Collection[str] = ()) -> dict[str, Moments]:
        """Return the running statistics of the columns in these slots, and of `others`."""
        columns = [seed for s in slots if isinstance(seed := self.seeds[s], ReferenceColumn)]
        return {name: self.running[name] for name in (*others, *(n for column in columns for n in column.norms()))}

    @torch.no_grad()
    def evaluate(self, x: Tensor, y: Tensor, alphas: Mapping[int, float]) -> EvalResult:
        """Evaluate the network with the seeds of `alphas` on, with BatchNorm's running statistics."""
        return _evaluated(self.logits(x, alphas, running_statistics(self.running)), y)

    @torch.no_grad()
    def ablate(self, x: Tensor, y: Tensor, alphas: Mapping[int, float], calibration: Tensor) -> EvalResult:
        """`evaluate`, with BatchNorm's statistics recomputed for this set of seeds on the rows of `calibration`.

        Running statistics belong to the seeds that are on during training. With them, switching off a seed that only
        shifts activations would seem to cost many points.
        """
        if not self.running:
            return self.evaluate(x, y, alphas)
        calibrated: dict[str, Moments] = {}
        self.logits(calibration, alphas, recorded_statistics(calibrated))
        return _evaluated(self.logits(x, alphas, running_statistics(calibrated)), y)

    def snapshot(self) -> Snapshot:
        """Copy all parameters and running statistics."""
        groups = {-1: self.group} | {s: seed.group for s, seed in self.seeds.items()}
        running = {name: Moments(*(t.clone() for t in moments)) for name, moments in self.running.items()}
        return {s: [t.detach().clone() for t in g.tensors] for s, g in groups.items()}, running

    def restore(self, snapshot: Snapshot) -> None:
        """Restore a snapshot and clear the optimizer moments; seeds that it lacks keep their parameters."""
        groups = {-1: self.group} | {s: seed.group for s, seed in self.seeds.items()}
        params, running = snapshot
        with torch.no_grad():
            for s, group in groups.items():
                for tensor, saved in zip(group.tensors, params.get(s, group.tensors), strict=True):
                    tensor.copy_(saved)
                group.optimizer.state.clear()
            for name in self.running.keys() & running.keys():
                for tensor, saved in zip(self.running[name], running[name], strict=True):
                    tensor.copy_(saved)


def recorded_statistics(into: dict[str, Moments]) -> Normalize:
    """Normalize by the statistics of the batch and store them in `into`, to evaluate other rows with them."""

    def normalize(name: str, h: Tensor, gain: Tensor, bias: Tensor, dims: int, after: After) -> Tensor:
        batch = (0, *range(2, h.dim()))
        into[name] = Moments(h.mean(batch), h.var(batch, correction=0))
        return after(F.batch_norm(h, *into[name], gain, bias, False, 0.1, EPS), dims)

    return normalize


def _evaluated(logits: Tensor, y: Tensor) -> EvalResult:
    accuracy = 100.0 * (logits.argmax(-1) == y).double().mean()
    return EvalResult(float(accuracy), float(F.cross_entropy(logits, y)))
