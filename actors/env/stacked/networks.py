"""`TorchNetworks`: the `FleetNetworks` of the torch backend."""

from __future__ import annotations

from collections.abc import Collection, Container, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from actors.blueprints.blends import gate_shapes
from actors.env.episode.epoch import EpochPlan, EpochResult, HostEpoch, NewSeed, TwinEpoch
from actors.env.episode.host_episode import HostEpisode
from actors.env.fleet_networks import FleetNetworks, NetworkSettings
from actors.env.hosts.host import Host, column_host
from actors.env.stacked.cuda_graph import StepResult, run_steps
from actors.env.stacked.epoch import StackedEpoch
from actors.env.stacked.evaluation import ROWS_AT_ONCE, StackedEvaluation
from actors.env.stacked.layout import StackLayout
from actors.env.stacked.param_bank import ColumnBank, ParamBank
from actors.env.stacked.parameters import StackedParameters
from actors.env.stacked.slot_plan import StackedSeed
from actors.env.tasks.task import Split
from actors.kernels.cnn.compile import compile_kernels
from actors.layers.batch_norm import CALIBRATION_ROWS
from actors.layers.layer_norm import Units
from actors.precision import tf32
from actors.slots.contributions import EvalResult, Subset, Validation

Trained = tuple[float, dict[int, list[float]], dict[int, float]]
"""What training measured in one environment: the first three fields of `EpochResult`."""


class Saved(NamedTuple):
    """Saved rows of one tensor."""

    tensor: Tensor
    rows: Tensor
    values: Tensor
    envs: list[int]  # the environment of each row


class TorchNetworks(StackedParameters, FleetNetworks):
    """E hosts with their seeds, trained and evaluated together as stacked tensors."""

    def __init__(self, host: Host, column_slots: int, num_envs: int, settings: NetworkSettings) -> None:
        """`host` is padded: it is at least as large as the host of any episode, in each dimension."""
        super().__init__(host, column_slots, num_envs, settings)
        if host.family.dims and self.device.type == "cpu" and self.dtype is torch.float32:
            compile_kernels()
        self._seeds: dict[tuple[int, int], NewSeed] = {}  # by (env, slot)

    @tf32(False)
    def reset(self, episodes: Sequence[HostEpisode], envs: Collection[int]) -> dict[int, Validation]:
        self.episodes = list(episodes)
        self._seeds = {place: seed for place, seed in self._seeds.items() if place[0] not in envs}
        for e in envs:
            self.hosts.draw(e, episodes[e].host.shapes(), episodes[e].host_rng())
        widths = self.index(episode.host.width for episode in episodes)
        self.units = None if self.layout.dims else Units.of_widths(widths, self.host.width, self.dtype)
        self.class_counts = self.index(episode.task.num_classes for episode in episodes)
        every_class = torch.arange(self.host.num_classes, device=self.device)
        self.no_class = (every_class[None, :] >= self.class_counts[:, None])[:, None]
        self.train_x, self.train_y, _ = self._data([episode.task.train for episode in episodes])
        calibration = self._calibration()
        observed, scored = (self._data(rows) for rows in zip(*((e.observed, e.scored) for e in episodes), strict=True))
        self.evaluation = StackedEvaluation(self, *observed, calibration)
        self.scoring = StackedEvaluation(self, *scored, calibration)
        self._save_snapshot()
        bare: list[Subset] = [frozenset()]
        validated = self._validated([], [bare] * len(episodes))
        return {e: validated[e][0] for e in envs}

    def can_train_twin(self, env: int) -> bool:
        return False  # a host's bits depend on the size of its stack

    def train_twin(self, env: int, epochs: Sequence[HostEpoch]) -> list[TwinEpoch]:
        """Not available, see `can_train_twin`."""
        raise NotImplementedError("the torch backend trains all hosts of a stack together")

    @tf32(False)
    def run_epoch(self, plans: Sequence[EpochPlan | None]) -> list[EpochResult | None]:
        if all(plan is None for plan in plans):
            return [None] * len(plans)
        given = [(e, plan) for e, plan in enumerate(plans) if plan is not None]
        for e, plan in given:
            self.prune(e, plan.pruned)
            if plan.germinated is not None:
                self._germinate(e, plan.germinated)
        learning = [seed for e, plan in given for seed in self._seeds_of(e, plan.blended)]
        learning += [seed for e, plan in given for seed in self._seeds_of(e, plan.training, plan.training)]
        trained = self._train(plans, sorted(learning))
        seeds = sorted(seed for e, plan in given for seed in self._seeds_of(e, plan.alphas, plan.training))
        subsets = [[frozenset[int]()] if plan is None else list(plan.subsets) for plan in plans]
        evaluated = self._validated(seeds, subsets)
        return [
            None if plan is None else EpochResult(*t, *m) for plan, t, m in zip(plans, trained, evaluated, strict=True)
        ]

    def commit(self, pruned: Sequence[tuple[int, ...]]) -> None:
        for e, slots in enumerate(pruned):
            self.prune(e, slots)
        self._save_snapshot()

    def prune(self, env: int, slots: Sequence[int]) -> None:
        """Remove the seeds of these slots."""
        for s in slots:
            self._seeds.pop((env, s), None)

    @tf32(False)
    def roll_back(self, env: int, pruned: tuple[int, ...]) -> Validation:
        self.prune(env, pruned)
        for saved in self._snapshot:
            mine = self.index(i for i, e in enumerate(saved.envs) if e == env)
            saved.tensor[saved.rows[mine]] = saved.values[mine]
        self.hosts.clear_moments(slice(env, env + 1))
        for e, s in self._seeds:
            if e == env:
                for bank in self._banks_of(e, s):
                    bank.clear_moments(slice(self.row(e, s), self.row(e, s) + 1))
        seeds = self._seeds_of(env, self.episodes[env].growth.blended())
        on = frozenset(seed.slot for seed in seeds)
        return self._validated(sorted(seeds), [[on]] * self.num_envs)[env][0]

    def _validated(
        self, seeds: Sequence[StackedSeed], subsets: Sequence[Sequence[Subset]]
    ) -> list[tuple[Validation, dict[Subset, EvalResult]]]:
        """Return, by environment, the validation with its blended seeds, and the result of each of its `subsets`."""
        observed = self.evaluation(seeds, subsets)
        scored = self.scoring(seeds, [sets[:1] for sets in subsets])
        return [(Validation(o, s.accuracy), table) for (o, table), (s, _) in zip(observed, scored, strict=True)]

    @tf32(False)
    def evaluate_test(self, alphas: Mapping[int, Mapping[int, float]]) -> dict[int, EvalResult]:
        seeds = sorted(seed for e, by_slot in alphas.items() for seed in self._seeds_of(e, by_slot))
        subsets = [[frozenset(alphas.get(e, ()))] for e in range(self.num_envs)]
        results = StackedEvaluation(self, *self._data([e.task.test for e in self.episodes]), self._calibration())(
            seeds, subsets
        )
        return {e: results[e][0] for e in alphas}

    def _germinate(self, env: int, new: NewSeed) -> None:
        host, row = self.episodes[env].host, self.row(env, new.slot)
        self._seeds[env, new.slot] = new
        bank, column = self.banks[self._bank(new)], host.family.columns[new.blueprint]
        if column is not None:
            bank.draw(row, column_host(host, column.scale).shapes(), new.rng)
        else:
            width = host.slot_width(new.slot)
            bank.draw(row, host.family.blueprints[new.blueprint].shapes(width), new.rng)
            self.gates.draw(row, gate_shapes(new.blend, width), new.rng)

    def _bank(self, seed: NewSeed) -> int:
        """Return the index of the bank that holds the parameters of a seed."""
        blueprints = self.host.family.blueprints
        if seed.slot >= self.host.slots:
            return len(self.widths) * len(blueprints) + list(self.column_banks).index(seed.blueprint)
        return self.widths.index(self.host.slot_width(seed.slot)) * len(blueprints) + seed.blueprint

    def _banks_of(self, env: int, slot: int) -> list[ParamBank]:
        """Return the banks that hold the parameters of a seed and of its gate."""
        bank = self.banks[self._bank(self._seeds[env, slot])]
        return [bank] if isinstance(bank, ColumnBank) else [bank, self.gates]

    def _seeds_of(self, env: int, alphas: Mapping[int, float], training: Container[int] = ()) -> list[StackedSeed]:
        """Return the seeds of one environment that take part in a pass, at their alphas; columns are mixed in the order
        of `alphas`."""
        turns = {s: turn for turn, s in enumerate(s for s in alphas if s >= self.host.slots)}
        return [
            StackedSeed(s, s in training, self._bank(seed := self._seeds[env, s]), turns.get(s, 0), env, seed.blend, a)
            for s, a in alphas.items()
        ]

    def _train(self, plans: Sequence[EpochPlan | None], seeds: list[StackedSeed]) -> list[Trained]:
        """Train one epoch; the results of environments without a plan have no meaning."""
        shape = max(plan.data.rows.shape for plan in plans if plan is not None)
        # An environment that has had its minibatches goes through them again while others continue, to no effect.
        counts = [shape[0] if plan is None else len(plan.data.rows) for plan in plans]
        idle = np.zeros(shape, dtype=np.int64)
        padded = [idle if plan is None else np.resize(plan.data.rows, shape) for plan in plans]
        rows = torch.from_numpy(np.stack(padded, 1)).to(self.device)
        x = self.layout.batch(self.train_x, rows)  # [inner_steps, ...]
        y = StackLayout(0).batch(self.train_y, rows)  # [inner_steps, E, B]
        lr = torch.tensor([0.0 if plan is None else plan.data.lr for plan in plans], dtype=torch.float64)
        epoch = StackedEpoch(self, seeds, lr)
        last = {count - 1 for count in counts}
        results: list[StepResult] = []
        for result in run_steps(epoch.step, x, y, last, self.settings.cuda_graph):
            results.append(result)
            if len(results) - 1 in last and len(results) < shape[0]:
                epoch.keep([e for e, count in enumerate(counts) if count == len(results)])
        epoch.store()
        return self._measured(results, counts, plans, seeds)

    def _measured(
        self,
        results: Sequence[StepResult],
        counts: Sequence[int],
        plans: Sequence[EpochPlan | None],
        seeds: Sequence[StackedSeed],
    ) -> list[Trained]:
        """Return what each environment's minibatches measured, of which there are `counts`."""
        losses = torch.stack([r.loss for r in results])
        means = {count: losses[:count].mean(0).tolist() for count in set(counts)}
        host_norms = {count: results[count - 1].host_norms.tolist() for count in set(counts)}
        at_outputs = {c: [] if (t := results[c - 1].output_norms) is None else t.tolist() for c in set(counts)}
        norms: list[dict[int, list[float]]] = [{} for _ in plans]
        for seed, values in zip(seeds, torch.stack([r.seed_norms for r in results], 1).tolist(), strict=True):
            norms[seed.env][seed.slot] = values[: counts[seed.env]]
        trained = []
        for e, (count, plan) in enumerate(zip(counts, plans, strict=True)):
            scores = {}
            if plan is not None and (norm := host_norms[count][e]) > 0:
                free = set(range(self.total_slots)) - set(plan.alphas)
                scores = {s: at_outputs[count][e][min(s, self.host.slots)] / norm for s in free}
            trained.append((means[count][e], norms[e], scores))
        return trained

    def _save_snapshot(self) -> None:
        """Save parameters and running statistics of hosts and seeds."""
        owners = {self.hosts: [(env, env) for env in range(self.num_envs)]}  # rows of a bank and their environments
        for env, slot in self._seeds:
            for bank in self._banks_of(env, slot):
                owners.setdefault(bank, []).append((self.row(env, slot), env))
        self._snapshot: list[Saved] = []
        for bank, owned in owners.items():
            rows, envs = self.index(row for row, _ in owned), [env for _, env in owned]
            self._snapshot += [Saved(t, rows, t[rows], envs) for t in (bank.params, *bank.statistics)]

    def _data(self, splits: Sequence[Split]) -> tuple[Tensor, Tensor, Tensor]:
        """Return x `[E, N, *sample]`, y `[E, N]` and valid `[E, N]` of each environment's rows, padded with zeros."""
        rows = -(-max(len(p) for p in splits) // ROWS_AT_ONCE) * ROWS_AT_ONCE
        x = np.zeros((len(splits), rows, self.host.num_features, *splits[0].x.shape[2:]), dtype=np.float32)
        y = np.zeros((len(splits), rows), dtype=np.int64)
        for e, p in enumerate(splits):
            x[e, : len(p), : p.x.shape[1]], y[e, : len(p)] = p.x, p.y
        valid = np.arange(rows)[None, :] < np.array([len(p) for p in splits])[:, None]
        first, second, third = (torch.from_numpy(a).to(self.device) for a in (x, y, valid))
        return first.to(self.dtype), second, third

    def _calibration(self) -> Tensor:
        """Return `[E, CALIBRATION_ROWS, *sample]`: the first training rows of each environment."""
        rows = [np.arange(CALIBRATION_ROWS) % len(episode.task.train) for episode in self.episodes]
        envs = torch.arange(self.num_envs, device=self.device)[:, None]
        return self.train_x[envs, torch.from_numpy(np.stack(rows)).to(self.device)]
