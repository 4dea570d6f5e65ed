"""`NumbaNetworks`: MLP hosts with their seeds as machine code, one environment after the other.

The form for a CPU (see `actors.env.kernels`). Every environment has its true size, so that nothing is padded.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from actors.env.blueprints.blends import gate_shapes
from actors.env.blueprints.vector import NOOP, Param
from actors.env.host_episode import EpochPlan, EpochResult, HostEpisode, NewSeed
from actors.env.hosts.mlp import Host
from actors.env.kernels.epoch import Adam, train_epoch
from actors.env.kernels.evaluate import measure
from actors.env.kernels.network import ABSENT, BLENDED, LEARNING, Seeds, make_work
from actors.env.kernels.seeds import EXCITATION, NORM, RESIDUAL
from actors.env.kernels.seeds import GATED as GATED_UNIT
from actors.env.reference_network import OptimizerSettings
from actors.env.slots.contributions import Subset
from actors.env.slots.growth_state import EvalResult
from actors.env.tasks import Split

Array = NDArray[Any]
FORMS = {"norm": NORM, "residual": RESIDUAL, "gated": GATED_UNIT, "excitation": EXCITATION}
ROWS_AT_ONCE = 64
"""Validation rows that pass through a network together."""


def has_kernels(host: Host) -> bool:
    """Whether there is machine code for this host and every blueprint that may grow in it."""
    return not host.family.dims and all(b is NOOP or b.form for b in host.family.blueprints)


@dataclass
class NumbaNetwork:
    """One host with its seeds; what `ReferenceNetwork` is."""

    episode: HostEpisode
    optimizer_settings: OptimizerSettings
    dtype: np.dtype[Any]
    alphas: dict[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        episode, host = self.episode, self.episode.host
        width, slots = host.slot_width(0), host.slots
        self.blueprints = host.family.blueprints
        largest = max(b.cost(width) for b in self.blueprints) + width + 1
        self.params = np.zeros(host.num_params(), self.dtype)
        _draw(host.shapes(), self.params, episode.host_rng())
        integers = [np.zeros(slots, np.int64) for _ in range(4)]
        form, hidden, blend, mode = integers
        self.seeds = Seeds(self._zeros(slots, largest), form, hidden, blend, np.zeros(slots), mode)
        self.moments = Adam(
            np.zeros_like(self.params),
            np.zeros_like(self.params),
            self._zeros(slots, largest),
            self._zeros(slots, largest),
            np.zeros(slots + 1, np.int64),
        )
        most_hidden = max(b.hidden(width) for b in self.blueprints)
        sizes = (slots, width, most_hidden, host.num_classes)
        self.work = make_work(*sizes, ROWS_AT_ONCE, self.dtype)
        rows = episode.config.batch_size
        self.training_work = self.work if rows == ROWS_AT_ONCE else make_work(*sizes, rows, self.dtype)
        self.filled: set[int] = set()
        self.train_data = self._data(episode.task.train)
        self.val_data = self._data(episode.task.val)
        for new in episode.initial_seeds:
            self.germinate(new)
        self.keep()

    def _data(self, split: Split) -> tuple[Array, Array]:
        """In order in memory and writable, so that the kernels always meet the same types."""
        return np.require(split.x, self.dtype, ["C", "W"]), np.require(split.y, np.int64, ["C", "W"])

    def _zeros(self, *shape: int) -> Array:
        return np.zeros(shape, self.dtype)

    def germinate(self, new: NewSeed) -> None:
        """Fresh parameters and moments for a slot."""
        s, width = new.slot, self.episode.host.slot_width(0)
        blueprint = self.blueprints[new.blueprint]
        q = self.seeds.q[s]
        q[:] = 0
        _draw(blueprint.shapes(width), q, new.rng)
        _draw(gate_shapes(new.blend, width), q[len(q) - width - 1 :], new.rng)
        assert blueprint.form is not None
        self.seeds.form[s], self.seeds.hidden[s] = FORMS[blueprint.form], blueprint.hidden(width)
        self.seeds.blend[s] = new.blend
        self._clear(s)
        self.filled.add(s)

    def _clear(self, slot: int) -> None:
        self.moments.seed_first[slot], self.moments.seed_second[slot], self.moments.steps[slot] = 0, 0, 0

    def prune(self, slots: Iterable[int]) -> None:
        self.filled.difference_update(slots)

    def _switch(self, blended: Mapping[int, float], learning: Mapping[int, float]) -> None:
        self.seeds.mode[:] = ABSENT
        for mode, alphas in ((BLENDED, blended), (LEARNING, learning)):
            for s, alpha in alphas.items():
                self.seeds.mode[s], self.seeds.alpha[s] = mode, alpha

    def train(self, orders: EpochPlan) -> tuple[float, dict[int, list[float]]]:
        """One epoch; returns the mean loss and each seed's gradient norms by minibatch."""
        self._switch(orders.blended, orders.training)
        o = self.optimizer_settings
        norms = self._zeros(len(orders.rows), len(self.seeds.mode))
        rates = (o.host_lr, o.seed_lr, o.weight_decay, o.clip_norm)
        x, y = self.train_data
        loss = train_epoch(x, y, orders.rows, self.params, self.seeds, self.moments, self.training_work, rates, norms)
        return loss, {s: norms[:, s].tolist() for s in (*orders.blended, *orders.training)}

    def measure(self, on: Mapping[int, float], subsets: Sequence[Subset]) -> dict[Subset, EvalResult]:
        """(accuracy in points, loss in nats) on the validation rows of each of `subsets` of the slots of `on`."""
        return self._measure(*self.val_data, on, subsets)

    def test(self, on: Mapping[int, float]) -> EvalResult:
        """The same on the test rows, of the configuration `on`."""
        present = frozenset(on)
        return self._measure(*self._data(self.episode.task.test), on, [present])[present]

    def _measure(
        self, x: Array, y: Array, on: Mapping[int, float], subsets: Sequence[Subset]
    ) -> dict[Subset, EvalResult]:
        self._switch(on, {})
        bits = np.array([sum(1 << s for s in subset if s in on) for subset in subsets], np.int64)
        correct, losses = np.zeros(len(subsets), np.int64), np.zeros(len(subsets))
        measure(x, y, self.params, self.seeds, self.work, bits, correct, losses)
        rows = len(y)
        return {
            subset: (100.0 * right / rows, loss / rows)
            for subset, right, loss in zip(subsets, correct.tolist(), losses.tolist(), strict=True)
        }

    def keep(self) -> None:
        """The state now is the last good one."""
        self._good = (self.params.copy(), self.seeds.q.copy())

    def roll_back(self) -> None:
        """The last good state, moments cleared."""
        self.params[:], self.seeds.q[:] = self._good
        for t in self.moments:
            t[...] = 0


def _draw(shapes: Mapping[str, Param], into: Array, rng: np.random.Generator) -> None:
    """Parameters in the table's order, one after the other."""
    start = 0
    for p in shapes.values():
        into[start : start + p.size] = p.draw(rng).ravel()
        start += p.size


class NumbaNetworks:
    """What `TorchNetworks` is, where `has_kernels`."""

    def __init__(self, num_envs: int, optimizer_settings: OptimizerSettings, dtype: torch.dtype) -> None:
        self.num_envs, self.optimizer_settings = num_envs, optimizer_settings
        self.dtype = np.dtype(str(dtype).removeprefix("torch."))
        self.networks: list[NumbaNetwork] = []

    def reset(self, episodes: Sequence[HostEpisode], envs: Collection[int]) -> list[EvalResult]:
        """New hosts on new tasks for `envs`, the others as they were; returns each bare host's measure."""
        for e, episode in enumerate(episodes):
            if e in envs:
                new = NumbaNetwork(episode, self.optimizer_settings, self.dtype)
                self.networks[e : e + 1] = [new]
        bare: Subset = frozenset()
        return [n.measure({}, [bare])[bare] if e in envs else (0.0, 0.0) for e, n in enumerate(self.networks)]

    def run_epoch(self, orders: Sequence[EpochPlan | None]) -> list[EpochResult | None]:
        """Prune, germinate, train and measure as ordered; None for environments that idle."""
        return [None if o is None else _run_epoch(n, o) for n, o in zip(self.networks, orders, strict=True)]

    def commit(self, pruned: Sequence[tuple[int, ...]]) -> None:
        """Drop what the automatic edges pruned, and keep the state as the last good one."""
        for network, slots in zip(self.networks, pruned, strict=True):
            network.prune(slots)
            network.keep()

    def roll_back(self, env: int, pruned: tuple[int, ...]) -> EvalResult:
        """One environment's last good snapshot, moments cleared, without the pruned seeds; returns its measure."""
        network = self.networks[env]
        network.prune(pruned)
        network.roll_back()
        slots = network.episode.lifecycle.slots
        on = {s: slots[s].alpha for s in network.filled}
        return network.measure(on, [frozenset(on)])[frozenset(on)]

    def test(self, on: Mapping[int, Mapping[int, float]]) -> dict[int, EvalResult]:
        """What each environment of `on` is worth on its test rows, with these slots at these alphas."""
        return {e: self.networks[e].test(alphas) for e, alphas in on.items()}


def _run_epoch(network: NumbaNetwork, orders: EpochPlan) -> EpochResult:
    network.prune(orders.pruned)
    if orders.germinated is not None:
        network.germinate(orders.germinated)
    loss, norms = network.train(orders)
    measured = network.measure({**orders.blended, **orders.training}, orders.subsets)
    return EpochResult(loss, norms, measured[orders.subsets[0]], measured)
