"""`ModelCounter`: the parameters of a reference network, and the FLOPs of the passes that it makes, as PyTorch counts
them."""

from __future__ import annotations

from collections.abc import Mapping
from math import log2
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from actors.slots.contributions import subsets_to_evaluate
from actors.slots.stage import Stage
from tests.support.env.reference_env import ReferenceEnv
from tests.support.env.reference_network import ReferenceColumn, ReferenceSeed

KEPT = (Stage.BLENDING, Stage.HOLDING, Stage.FOSSILIZED)
Part = tuple[int, object]  # which rows were read, and by what: the host with seeds in its stream, or a column


class ModelCounter:
    """Counts what happens in an environment after its reset.

    A pass counts once: the reference repeats that of the host for every column that learns, which nobody else does.
    Gates of blends are left out, as are norms and activations. Passes of training count three times. Once a column has
    replaced the host, the host counts no more.
    """

    def __init__(self, env: ReferenceEnv) -> None:
        self.env, self.network = env, env.network
        self.epochs: list[float] = []  # FLOPs
        self._passes: dict[Part, float] = {}
        honest, train = self.network.logits, self.network.train_epoch

        def logits(x: Tensor, alphas: Mapping[int, float], *rest: Any) -> Tensor:
            self._passes |= self._parts(x, alphas)
            return honest(x, alphas, *rest)

        def train_epoch(x: Tensor, *rest: Any) -> Any:
            self._passes.clear()
            self._trained = x
            statistics = train(x, *rest)
            self._training = 3.0 * sum(self._passes.values())
            self._own = self._parts(env.observed[0], self.blended())
            self._passes.clear()
            return statistics

        self.network.logits, self.network.train_epoch = logits, train_epoch
        self.bare = 3.0 * env.episode.settings.inner_steps * env.config.batch_size * self.forward({})

    def end_epoch(self) -> None:
        """Close the count of an epoch; the model itself would have been evaluated in any case."""
        rows = self.env.observed[0].data_ptr()
        self.epochs.append(
            self._training + sum(f for part, f in self._passes.items() if part[0] == rows and part not in self._own)
        )

    def compute_doublings(self, each: float | None = None) -> float:
        """Return C; `each` are the FLOPs of the epochs that are left, by default those of the bare host."""
        horizon = self.env.episode.horizon_epochs
        left = horizon - len(self.epochs)
        return log2((sum(self.epochs) + left * (self.bare if each is None else each)) / (horizon * self.bare))

    def epoch_of_the_model(self) -> float:
        """Return the FLOPs of training the model as it is for an epoch, and of measuring the seeds that it kept."""
        observed, on = self.env.observed[0], self.blended()
        measured: dict[Part, float] = {}
        for subset in subsets_to_evaluate(on, ()):
            measured |= self._parts(observed, {s: on[s] for s in subset})
        training = 3.0 * len(self._trained) * sum(self._parts(self._trained[0], on).values())
        return training + sum(measured.values()) - sum(self._parts(observed, on).values())

    def forward(self, alphas: Mapping[int, float]) -> float:
        """Return the FLOPs of a forward pass of one sample."""
        return sum(self._parts(self.env.train_x[:1], alphas).values())

    def effort(self, flops: float) -> float:
        """Return the doublings of training compute by so many more FLOPs of a forward pass, up to the horizon."""
        samples = self.env.episode.settings.inner_steps * self.env.config.batch_size
        return self.compute_doublings(self.bare + 3.0 * samples * flops) - self.compute_doublings()

    def blended(self) -> dict[int, float]:
        return {s: slot.alpha for s, slot in enumerate(self.env.episode.lifecycle.slots) if slot.stage in KEPT}

    def host_params(self) -> int:
        return sum(t.numel() for t in self.network.group.tensors)

    def model_params(self) -> int:
        """Return the parameters of the model as it would be exported."""
        grown = sum(self.seed_params(s) for s in self.blended())
        return grown + (0 if self.replaced() else self.host_params())

    def seed_params(self, slot: int) -> int:
        return sum(t.numel() for t in self.network.seeds[slot].group.tensors)

    def doublings(self) -> float:
        """Return D."""
        return log2(self.model_params() / self.host_params())

    def replaced(self) -> bool:
        """Whether a column has replaced the host."""
        slots = enumerate(self.env.episode.lifecycle.slots)
        final = [s for s, slot in slots if slot.stage is Stage.FOSSILIZED and slot.alpha == 1.0]
        return any(isinstance(self.network.seeds[s], ReferenceColumn) for s in final)

    def _parts(self, x: Tensor, alphas: Mapping[int, float]) -> dict[Part, float]:
        seeds = {s: self.network.seeds[s] for s in alphas}
        stream = {s: seed for s, seed in seeds.items() if isinstance(seed, ReferenceSeed)}
        columns = {s: seed for s, seed in seeds.items() if isinstance(seed, ReferenceColumn)}

        def slot(s: int, h: Tensor) -> Tensor:
            return stream[s].blueprint.forward(stream[s].group.params, h, None) if s in stream else h

        parts: dict[Part, float] = {}
        if not self.replaced():
            parts[x.data_ptr(), frozenset(stream)] = counted(self.network.host, self.network.group.params, x, slot)
        for s, column in columns.items():
            parts[x.data_ptr(), s] = counted(column.host, column.group.params, x, lambda s, h: h)
        return parts


def counted(host: Any, *arguments: Any) -> float:
    """Return the FLOPs of a forward pass."""
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        host.forward(*arguments)
    return float(counter.get_total_flops())
