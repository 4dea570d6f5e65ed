"""`ReferenceNetwork`: one host with its seeds, trained one epoch at a time. Written for clarity, not speed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from actors.env.blueprints.blends import GateLogits, apply_blend, gate_shapes
from actors.env.blueprints.vector import Blueprint
from actors.env.hosts.mlp import Host, draw_params
from actors.env.layers.batch_norm import (
    Moments,
    Normalize,
    batch_statistics,
    recorded_statistics,
    running_statistics,
)

Isolation = Literal["shadow", "straight_through"]


@dataclass(frozen=True)
class OptimizerSettings:
    """How hosts and seeds are trained; clip norm and decay are per group (the host, each seed)."""

    host_lr: float
    seed_lr: float
    weight_decay: float
    clip_norm: float


@dataclass
class ParameterGroup:
    """Parameters with an optimizer of their own: the host, or one seed with its gate."""

    params: dict[str, Tensor]
    optimizer: torch.optim.Optimizer

    @classmethod
    def fresh(cls, params: dict[str, Tensor], lr: float, weight_decay: float) -> ParameterGroup:
        adam = torch.optim.AdamW(list(params.values()), lr=lr, weight_decay=weight_decay, fused=True)
        return cls(params, adam)

    @property
    def tensors(self) -> list[Tensor]:
        return list(self.params.values())

    def step(self, grads: Sequence[Tensor], clip_norm: float) -> float:
        """Clip this group's gradient norm, take one Adam step, return the norm before the clip."""
        norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(list(grads))))
        torch._foreach_mul_(list(grads), (clip_norm / (norm + 1e-6)).clamp(max=1.0))
        for tensor, grad in zip(self.params.values(), grads, strict=True):
            tensor.grad = grad.contiguous()  # the fused optimizer reads memory in order, whatever the strides say
        self.optimizer.step()
        return float(norm)


@dataclass
class ReferenceSeed:
    """A blueprint grown at one slot, with the gate of its blend."""

    blueprint: Blueprint
    blend: int
    group: ParameterGroup
    gate_logits: GateLogits

    def on(self, h: Tensor, alpha: float) -> Tensor:
        """The host's h with this seed blended in at alpha; the seed's input is attached."""
        p = self.group.params
        return apply_blend(self.blend, h, self.blueprint.forward(p, h, None), alpha, p, self.gate_logits)


@dataclass
class SeedAlphas:
    """How each slot takes part in an epoch; a slot in neither table is absent."""

    blended: dict[int, float] = field(default_factory=dict)  # slot -> alpha: part of the host's function
    training: dict[int, float] = field(default_factory=dict)  # slot -> alpha target: learns apart from the host


@dataclass
class EpochStatistics:
    train_loss: float  # mean over minibatches, nats
    gradient_norms: dict[int, list[float]]  # slot -> norm at each minibatch, before the clip


@dataclass(frozen=True)
class NetworkSnapshot:
    params: dict[int, list[Tensor]]  # by slot; the host's under -1
    running: dict[str, Moments]


class ReferenceNetwork:
    def __init__(
        self,
        host: Host,
        rng: np.random.Generator,
        optimizer_settings: OptimizerSettings,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.host = host
        self.dtype = dtype
        self.optimizer_settings = optimizer_settings
        params = draw_params(host.shapes(), rng, dtype)
        self.group = ParameterGroup.fresh(params, optimizer_settings.host_lr, optimizer_settings.weight_decay)
        self.seeds: dict[int, ReferenceSeed] = {}
        self.running = {name: Moments.fresh(channels, dtype=dtype) for name, channels in host.norms().items()}

    def germinate(self, slot: int, blueprint: Blueprint, blend: int, rng: np.random.Generator) -> None:
        """Grow a seed with fresh moments; the host's function does not move."""
        width = self.host.slot_width(slot)
        shapes = blueprint.shapes(width) | gate_shapes(blend, width)
        o = self.optimizer_settings
        trained = ParameterGroup.fresh(draw_params(shapes, rng, self.dtype), o.seed_lr, o.weight_decay)
        self.seeds[slot] = ReferenceSeed(blueprint, blend, trained, self.host.family.gate_logits)

    def prune(self, slot: int) -> None:
        del self.seeds[slot]

    def added_params(self) -> int:
        return sum(t.numel() for seed in self.seeds.values() for t in seed.group.params.values())

    def logits(self, x: Tensor, on: Mapping[int, float], normalize: Normalize | None = None) -> Tensor:
        """Host output with the seeds of `on` blended in at their alphas; BatchNorm by the batch unless told."""

        def slot(s: int, h: Tensor) -> Tensor:
            return self.seeds[s].on(h, on[s]) if s in on else h

        return self.host.forward(self.group.params, x, slot, None, normalize)

    def train_epoch(self, x: Tensor, y: Tensor, alphas: SeedAlphas, isolation: Isolation) -> EpochStatistics:
        """One host epoch over minibatches `x [inner_steps, B, ...]`, `y [inner_steps, B]`.

        The main pass alone moves the running statistics of BatchNorm.
        """
        main = batch_statistics(self.running)
        losses = []
        norms: dict[int, list[float]] = {s: [] for s in (*alphas.blended, *alphas.training)}
        for batch, labels in zip(x, y, strict=True):
            groups = [self.group, *(self.seeds[s].group for s in alphas.blended)]
            learners = [self.seeds[s].group for s in alphas.training]
            if isolation == "straight_through":
                logits = self._straight_through(batch, alphas, main)
                loss = F.cross_entropy(logits, labels)
                grads = torch.autograd.grad(loss, [t for g in (*groups, *learners) for t in g.tensors])
            else:
                loss = F.cross_entropy(self.logits(batch, alphas.blended, main), labels)
                grads = torch.autograd.grad(loss, [t for g in groups for t in g.tensors])
                if learners:
                    # The shadow pass: the same minibatch with the learners switched on. Gradients are taken for
                    # their parameters alone, so everything else in it is a constant.
                    shadow = F.cross_entropy(self.logits(batch, alphas.blended | alphas.training), labels)
                    grads += torch.autograd.grad(shadow, [t for g in learners for t in g.tensors])
            slots: list[int | None] = [None, *alphas.blended, *alphas.training]
            rest = list(grads)
            for slot, group in zip(slots, [*groups, *learners], strict=True):
                own, rest = rest[: len(group.params)], rest[len(group.params) :]
                norm = group.step(own, self.optimizer_settings.clip_norm)
                if slot is not None:
                    norms[slot].append(norm)
            losses.append(loss.detach())
        return EpochStatistics(float(torch.stack(losses).mean()), norms)

    def _straight_through(self, x: Tensor, alphas: SeedAlphas, normalize: Normalize) -> Tensor:
        """TRAINING seeds add 0 to the value and their whole gradient to themselves; the host sees neither."""

        def slot(s: int, h: Tensor) -> Tensor:
            if s in alphas.blended:
                return self.seeds[s].on(h, alphas.blended[s])
            if s in alphas.training:
                grown = self.seeds[s].on(h.detach(), alphas.training[s])
                push = grown - grown.detach()
                return h + torch.where(push.isfinite(), push, torch.zeros_like(push))
            return h

        return self.host.forward(self.group.params, x, slot, None, normalize)

    @torch.no_grad()
    def validate(self, x: Tensor, y: Tensor, on: Mapping[int, float]) -> tuple[float, float]:
        """(accuracy in points, cross-entropy in nats) of the configuration `on`."""
        return _measured(self.logits(x, on, running_statistics(self.running)), y)

    @torch.no_grad()
    def ablate(self, x: Tensor, y: Tensor, on: Mapping[int, float], calibration: Tensor) -> tuple[float, float]:
        """`validate`, with BatchNorm's statistics those of this configuration on the rows of `calibration`.

        Running statistics are those of the present configuration: with them a seed that merely shifts its host's
        values would look worth many points.
        """
        if not self.running:
            return self.validate(x, y, on)
        own: dict[str, Moments] = {}
        self.logits(calibration, on, recorded_statistics(own))
        return _measured(self.logits(x, on, running_statistics(own)), y)

    def snapshot(self) -> NetworkSnapshot:
        """Copies of all parameters and of the running statistics."""
        groups = {-1: self.group} | {s: seed.group for s, seed in self.seeds.items()}
        running = {name: Moments(*(t.clone() for t in moments)) for name, moments in self.running.items()}
        return NetworkSnapshot({s: [t.detach().clone() for t in g.tensors] for s, g in groups.items()}, running)

    def restore(self, snapshot: NetworkSnapshot) -> None:
        """Put a snapshot back and clear the moments; seeds that it does not hold keep their parameters."""
        groups = {-1: self.group} | {s: seed.group for s, seed in self.seeds.items()}
        with torch.no_grad():
            for s, group in groups.items():
                for tensor, saved in zip(group.tensors, snapshot.params.get(s, group.tensors), strict=True):
                    tensor.copy_(saved)
                group.optimizer.state.clear()
            for name, moments in snapshot.running.items():
                for tensor, saved in zip(self.running[name], moments, strict=True):
                    tensor.copy_(saved)


def _measured(logits: Tensor, y: Tensor) -> tuple[float, float]:
    accuracy = 100.0 * (logits.argmax(-1) == y).double().mean()
    return float(accuracy), float(F.cross_entropy(logits, y))
