"""`NumbaNetworks`: the `FleetNetworks` of the numba backend."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from actors.env.blueprints.blends import gate_shapes
from actors.env.blueprints.blueprint import NOOP, Param
from actors.env.epoch import EpochPlan, EpochResult, NewSeed
from actors.env.host_episode import HostEpisode
from actors.env.hosts.host import Host
from actors.env.kernels.epoch import Adam, train_epoch
from actors.env.kernels.evaluate import evaluate
from actors.env.kernels.network import ABSENT, BLENDED, TRAINING, Seeds, make_work
from actors.env.kernels.seeds import EXCITATION, NORM, RESIDUAL
from actors.env.kernels.seeds import GATED as GATED_UNIT
from actors.env.reference_network import OptimizerSettings
from actors.env.slots.contributions import EvalResult, Subset
from actors.env.tasks import Split

Array = NDArray[Any]
FORMULAS = {"norm": NORM, "residual": RESIDUAL, "gated": GATED_UNIT, "excitation": EXCITATION}
ROWS_AT_ONCE = 64
"""Rows that are evaluated together."""


def has_kernels(host: Host) -> bool:
    """Return whether there are kernels for this host and every blueprint of its family."""
    return not host.family.dims and all(b is NOOP or b.formula for b in host.family.blueprints)


@dataclass
class NumbaNetwork:
    """One host with its seeds, as arrays that the kernels read and write. Its counterpart is `ReferenceNetwork`.

    The host's parameters are one vector; those of the seeds are rows of `seeds.q`, one per slot.
    """

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
        formula, hidden, blend, mode = (np.zeros(slots, np.int64) for _ in range(4))
        self.seeds = Seeds(self._zeros(slots, largest), formula, hidden, blend, np.zeros(slots), mode)
        self.moments = Adam(
            np.zeros_like(self.params),
            np.zeros_like(self.params),
            self._zeros(slots, largest),
            self._zeros(slots, largest),
            np.zeros(slots + 1, np.int64),
        )
        max_hidden = max(b.hidden(width) for b in self.blueprints)
        sizes = (slots, width, max_hidden, host.num_classes)
        self.work = make_work(*sizes, ROWS_AT_ONCE, self.dtype)
        rows = episode.config.batch_size
        self.training_work = self.work if rows == ROWS_AT_ONCE else make_work(*sizes, rows, self.dtype)
        self.filled: set[int] = set()
        self.train_data = self._data(episode.task.train)
        self.val_data = self._data(episode.task.val)
        for new in episode.initial_seeds:
            self.germinate(new)
        self.commit()

    def _data(self, split: Split) -> tuple[Array, Array]:
        """Return x and y as contiguous, writable arrays: kernels are compiled for one type of array."""
        return np.require(split.x, self.dtype, ["C", "W"]), np.require(split.y, np.int64, ["C", "W"])

    def _zeros(self, *shape: int) -> Array:
        return np.zeros(shape, self.dtype)

    def germinate(self, new: NewSeed) -> None:
        """Draw the parameters of a new seed and clear its moments."""
        s, width = new.slot, self.episode.host.slot_width(0)
        blueprint = self.blueprints[new.blueprint]
        q = self.seeds.q[s]
        q[:] = 0
        _draw(blueprint.shapes(width), q, new.rng)
        _draw(gate_shapes(new.blend, width), q[len(q) - width - 1 :], new.rng)
        assert blueprint.formula is not None
        self.seeds.formula[s], self.seeds.hidden[s] = FORMULAS[blueprint.formula], blueprint.hidden(width)
        self.seeds.blend[s] = new.blend
        self._clear(s)
        self.filled.add(s)

    def _clear(self, slot: int) -> None:
        self.moments.seed_first[slot], self.moments.seed_second[slot], self.moments.steps[slot] = 0, 0, 0

    def prune(self, slots: Iterable[int]) -> None:
        """Remove the seeds of these slots."""
        self.filled.difference_update(slots)

    def _set_modes(self, blended: Mapping[int, float], training: Mapping[int, float]) -> None:
        self.seeds.mode[:] = ABSENT
        for mode, alphas in ((BLENDED, blended), (TRAINING, training)):
            for s, alpha in alphas.items():
                self.seeds.mode[s], self.seeds.alpha[s] = mode, alpha

    def train(self, plan: EpochPlan) -> tuple[float, dict[int, list[float]]]:
        """Train one epoch; return the mean loss, and the gradient norms of each seed by minibatch."""
        self._set_modes(plan.blended, plan.training)
        o = self.optimizer_settings
        norms = self._zeros(len(plan.rows), len(self.seeds.mode))
        rates = (o.host_lr, o.seed_lr, o.weight_decay, o.clip_norm)
        x, y = self.train_data
        loss = train_epoch(x, y, plan.rows, self.params, self.seeds, self.moments, self.training_work, rates, norms)
        return loss, {s: norms[:, s].tolist() for s in (*plan.blended, *plan.training)}

    def evaluate(self, alphas: Mapping[int, float], subsets: Sequence[Subset]) -> dict[Subset, EvalResult]:
        """Evaluate each of `subsets` of the seeds of `alphas` on the validation rows."""
        return self._evaluate(*self.val_data, alphas, subsets)

    def evaluate_test(self, alphas: Mapping[int, float]) -> EvalResult:
        """Evaluate the network with the seeds of `alphas` on the test rows."""
        on = frozenset(alphas)
        return self._evaluate(*self._data(self.episode.task.test), alphas, [on])[on]

    def _evaluate(
        self, x: Array, y: Array, alphas: Mapping[int, float], subsets: Sequence[Subset]
    ) -> dict[Subset, EvalResult]:
        self._set_modes(alphas, {})
        bits = np.array([sum(1 << s for s in subset if s in alphas) for subset in subsets], np.int64)
        correct, losses = np.zeros(len(subsets), np.int64), np.zeros(len(subsets))
        evaluate(x, y, self.params, self.seeds, self.work, bits, correct, losses)
        rows = len(y)
        return {
            subset: EvalResult(100.0 * right / rows, loss / rows)
            for subset, right, loss in zip(subsets, correct.tolist(), losses.tolist(), strict=True)
        }

    def commit(self) -> None:
        """Save the parameters for `roll_back`."""
        self._snapshot = (self.params.copy(), self.seeds.q.copy())

    def roll_back(self) -> None:
        """Restore the saved parameters and clear the moments."""
        self.params[:], self.seeds.q[:] = self._snapshot
        for t in self.moments:
            t[...] = 0


def _draw(shapes: Mapping[str, Param], into: Array, rng: np.random.Generator) -> None:
    """Draw parameters into a vector, in the order of `shapes`."""
    start = 0
    for p in shapes.values():
        into[start : start + p.size] = p.draw(rng).ravel()
        start += p.size


class NumbaNetworks:
    """Hosts for which `has_kernels`, trained one after the other, each at its true size. See `FleetNetworks`."""

    def __init__(self, num_envs: int, optimizer_settings: OptimizerSettings, dtype: torch.dtype) -> None:
        self.num_envs, self.optimizer_settings = num_envs, optimizer_settings
        self.dtype = np.dtype(str(dtype).removeprefix("torch."))
        self.networks: list[NumbaNetwork] = []

    def reset(self, episodes: Sequence[HostEpisode], envs: Collection[int]) -> list[EvalResult]:
        """See `FleetNetworks.reset`."""
        for e, episode in enumerate(episodes):
            if e in envs:
                new = NumbaNetwork(episode, self.optimizer_settings, self.dtype)
                self.networks[e : e + 1] = [new]
        bare: Subset = frozenset()
        idle = EvalResult(0.0, 0.0)
        return [n.evaluate({}, [bare])[bare] if e in envs else idle for e, n in enumerate(self.networks)]

    def run_epoch(self, plans: Sequence[EpochPlan | None]) -> list[EpochResult | None]:
        """See `FleetNetworks.run_epoch`."""
        return [None if p is None else _run_epoch(n, p) for n, p in zip(self.networks, plans, strict=True)]

    def commit(self, pruned: Sequence[tuple[int, ...]]) -> None:
        """See `FleetNetworks.commit`."""
        for network, slots in zip(self.networks, pruned, strict=True):
            network.prune(slots)
            network.commit()

    def roll_back(self, env: int, pruned: tuple[int, ...]) -> EvalResult:
        """See `FleetNetworks.roll_back`."""
        network = self.networks[env]
        network.prune(pruned)
        network.roll_back()
        slots = network.episode.lifecycle.slots
        alphas = {s: slots[s].alpha for s in network.filled}
        return network.evaluate(alphas, [frozenset(alphas)])[frozenset(alphas)]

    def evaluate_test(self, alphas: Mapping[int, Mapping[int, float]]) -> dict[int, EvalResult]:
        """See `FleetNetworks.evaluate_test`."""
        return {e: self.networks[e].evaluate_test(by_slot) for e, by_slot in alphas.items()}


def _run_epoch(network: NumbaNetwork, plan: EpochPlan) -> EpochResult:
    network.prune(plan.pruned)
    if plan.germinated is not None:
        network.germinate(plan.germinated)
    loss, norms = network.train(plan)
    results = network.evaluate(plan.alphas, plan.subsets)
    return EpochResult(loss, norms, results[plan.subsets[0]], results)
