"""`NumbaNetwork`: one host with its seeds and columns, as arrays that the kernels read and write."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import isnan
from typing import Any

import numpy as np

from actors.blueprints.blends import gate_shapes
from actors.env.compiled.column_arrays import ColumnArrays
from actors.env.episode.epoch import EpochPlan, EpochResult, HostEpoch, NewSeed, TwinEpoch
from actors.env.episode.host_episode import HostEpisode
from actors.env.fleet_networks import CLIP_NORM, WEIGHT_DECAY
from actors.env.hosts.host import column_host, draw_into
from actors.env.tasks import Split
from actors.kernels.decorators import Array
from actors.kernels.hosts.epoch import Adam, train_epoch
from actors.kernels.hosts.evaluate import evaluate
from actors.kernels.hosts.network import ABSENT, BLENDED, TRAINING, Seeds, make_work
from actors.kernels.hosts.seeds import EXCITATION, GATED, NORM, RESIDUAL
from actors.slots.contributions import EvalResult, Subset, Validation

FORMULAS = {"norm": NORM, "residual": RESIDUAL, "gated": GATED, "excitation": EXCITATION}
ROWS_AT_ONCE = 64
"""Rows that are evaluated together."""


class NumbaNetwork:
    """One host with its seeds and columns. Its counterpart is `ReferenceNetwork`.

    The host's parameters are one vector; those of the seeds are rows of `seeds.q`, one per slot of the stream, and
    those of the columns rows in `columns`.
    """

    def __init__(self, episode: HostEpisode, column_slots: int, dtype: np.dtype[Any]) -> None:
        self.episode, self.column_slots, self.dtype = episode, column_slots, dtype
        host = episode.host
        width, slots = host.slot_width(0), host.slots
        self.blueprints = host.family.blueprints
        largest = max(b.cost(width) for b in self.blueprints) + width + 1
        self.params = np.zeros(host.num_params(), self.dtype)
        draw_into(host.shapes(), self.params, episode.host_rng())
        size, formula, hidden, blend, mode = np.zeros((5, slots), np.int64)
        q, steps = self._zeros(slots, largest), np.zeros(slots + self.column_slots + 1, np.int64)
        self.seeds = Seeds(q, size, formula, hidden, blend, np.zeros(slots), mode)
        first, second = np.zeros_like(self.params), np.zeros_like(self.params)
        self.moments = Adam(first, second, np.zeros_like(q), np.zeros_like(q), steps)
        max_hidden = max(b.hidden(width) for b in self.blueprints)
        sizes = (slots, width, max_hidden, host.num_classes)
        self.work = make_work(*sizes, ROWS_AT_ONCE, self.dtype)
        rows = episode.config.batch_size
        self.training_work = self.work if rows == ROWS_AT_ONCE else make_work(*sizes, rows, self.dtype)
        self.columns = ColumnArrays(self.column_slots, max(rows, ROWS_AT_ONCE), self.dtype)
        self.filled: set[int] = set()
        self._modes: tuple[Any, Any] = ((), ())  # strengths of the joined and of the learning seeds, in order
        self.train_data = self._data(episode.task.train)
        self.observed_data, self.scored_data = self._columns(episode.observed), self._columns(episode.scored)
        self.commit()

    def _data(self, split: Split) -> tuple[Array, Array]:
        """Return x and y as contiguous, writable arrays: kernels are compiled for one type of array."""
        return np.require(split.x, self.dtype, ["C", "W"]), np.require(split.y, np.int64, ["C", "W"])

    def _columns(self, split: Split) -> tuple[Array, Array]:
        """Return x [F, N] and y: rows of data as columns, with copies of the last one to fill the last block."""
        padded = np.minimum(np.arange(-(-len(split.y) // ROWS_AT_ONCE) * ROWS_AT_ONCE), len(split.y) - 1)
        x = split.x.T[:, padded]
        return np.require(x, self.dtype, ["C", "W"]), np.require(split.y, np.int64, ["C", "W"])

    def _zeros(self, *shape: int) -> Array:
        return np.zeros(shape, self.dtype)

    def germinate(self, new: NewSeed) -> None:
        """Draw the parameters of a new seed or column and clear its moments."""
        s, host = new.slot, self.episode.host
        self.filled.add(s)
        self.moments.steps[s] = 0
        column = host.family.columns[new.blueprint]
        if column is not None:
            self.columns.germinate(s - host.slots, column_host(host, column.scale), new.rng)
            return
        blueprint, width = self.blueprints[new.blueprint], host.slot_width(s)
        q = self.seeds.q[s]
        q[:] = 0
        draw_into(blueprint.shapes(width), q, new.rng)
        draw_into(gate_shapes(new.blend, width), q[len(q) - width - 1 :], new.rng)
        assert blueprint.formula is not None
        self.seeds.formula[s], self.seeds.hidden[s] = FORMULAS[blueprint.formula], blueprint.hidden(width)
        self.seeds.blend[s], self.seeds.size[s] = new.blend, blueprint.cost(width)
        self.moments.seed_first[s], self.moments.seed_second[s] = 0, 0

    def prune(self, slots: Iterable[int]) -> None:
        """Remove the seeds of these slots."""
        for s in self.filled.intersection(slots):
            self.filled.remove(s)
            self.columns.prune(s - self.episode.host.slots)

    def _set_modes(self, blended: Mapping[int, float], training: Mapping[int, float]) -> None:
        modes = (tuple(blended.items()), tuple(training.items()))
        if modes == self._modes:
            return
        self._modes = modes
        stream = self.episode.host.slots
        self.seeds.mode[:], self.columns.arrays.mode[:] = ABSENT, ABSENT
        mixed = [s - stream for s in (*blended, *training) if s >= stream]
        self.columns.arrays.order[:] = [*mixed, *(c for c in range(self.column_slots) if c not in mixed)]
        for mode, alphas in ((BLENDED, blended), (TRAINING, training)):
            for s, alpha in alphas.items():
                kind, index = (self.seeds, s) if s < stream else (self.columns.arrays, s - stream)
                kind.mode[index], kind.alpha[index] = mode, alpha

    def run_epoch(self, plan: EpochPlan) -> EpochResult:
        """See `FleetNetworks.run_epoch`."""
        self.prune(plan.pruned)
        if plan.germinated is not None:
            self.germinate(plan.germinated)
        self._set_modes(plan.blended, plan.training)
        loss, norms, scores = self._train(plan.data)
        alphas = plan.alphas
        known = {s: score for s, score in enumerate(scores.tolist()) if s not in alphas and not isnan(score)}
        results, current = self._evaluate(*self.observed_data, alphas, plan.subsets), plan.subsets[0]
        scored = self._evaluate(*self.scored_data, alphas, [current])[current].accuracy
        validation = Validation(results[current], scored)
        return EpochResult(loss, {s: norms[:, s].tolist() for s in alphas}, known, validation, results)

    def train_twin(self, epochs: Sequence[HostEpoch]) -> list[TwinEpoch]:
        """See `FleetNetworks.train_twin`."""
        kept = self.params, self.moments
        m = self.moments
        self.params = self.params.copy()
        self.moments = m._replace(
            host_first=m.host_first.copy(), host_second=m.host_second.copy(), steps=m.steps.copy()
        )
        measures = []
        for epoch in epochs:
            self._set_modes({}, {})
            loss, _, _ = self._train(epoch)
            measures.append((loss, self.validate({})))
        self.params, self.moments = kept
        return measures

    def _train(self, data: HostEpoch) -> tuple[float, Array, Array]:
        """Train an epoch; return the mean loss, the gradient norms `[T, slots]` and the scores `[slots]`."""
        slots = self.episode.host.slots + self.column_slots
        norms, scores = self._zeros(len(data.rows), slots), np.zeros(slots)
        rates = (data.lr, WEIGHT_DECAY, CLIP_NORM)
        (x, y), columns, work = self.train_data, self.columns.arrays, self.training_work
        loss = train_epoch(x, y, data.rows, self.params, self.seeds, columns, self.moments, work, rates, norms, scores)
        return loss, norms, scores

    def validate(self, alphas: Mapping[int, float]) -> Validation:
        """Evaluate the network with the seeds of `alphas` on the validation rows."""
        on = frozenset(alphas)
        observed, scored = (self._evaluate(*data, alphas, [on])[on] for data in (self.observed_data, self.scored_data))
        return Validation(observed, scored.accuracy)

    def evaluate_test(self, alphas: Mapping[int, float]) -> EvalResult:
        """Evaluate the network with the seeds of `alphas` on the test rows."""
        on = frozenset(alphas)
        return self._evaluate(*self._columns(self.episode.task.test), alphas, [on])[on]

    def _evaluate(
        self, x: Array, y: Array, alphas: Mapping[int, float], subsets: Sequence[Subset]
    ) -> dict[Subset, EvalResult]:
        self._set_modes(alphas, {})
        bits = np.array([sum(1 << s for s in subset if s in alphas) for subset in subsets], np.int64)
        correct, losses = np.zeros(len(subsets), np.int64), np.zeros(len(subsets))
        evaluate(x, y, self.params, self.seeds, self.columns.arrays, self.work, bits, correct, losses)
        rows = len(y)
        return {
            subset: EvalResult(100.0 * right / rows, loss / rows)
            for subset, right, loss in zip(subsets, correct.tolist(), losses.tolist(), strict=True)
        }

    def commit(self) -> None:
        """Save the parameters for `roll_back`."""
        self._snapshot = (self.params.copy(), self.seeds.q.copy(), self.columns.snapshot())

    def roll_back(self) -> None:
        """Restore the saved parameters and clear the moments."""
        self.params[:], self.seeds.q[:], columns = self._snapshot
        self.columns.restore(columns)
        for t in self.moments:
            t[...] = 0
