"""`TorchNetworks`: E growing networks as one tensor program. Growth is data, not structure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from actors.env.blueprints.blends import gate_shapes
from actors.env.blueprints.vector import Units
from actors.env.host_episode import EpochPlan, EpochResult, HostEpisode, NewSeed
from actors.env.hosts.mlp import Host
from actors.env.layers.batch_norm import CALIBRATION_ROWS, Moments
from actors.env.layers.fusion import fusing
from actors.env.slots.contributions import Subset
from actors.env.slots.growth_state import EvalResult
from actors.env.stacked.cuda_graph import run_steps
from actors.env.stacked.epoch import StackedEpoch
from actors.env.stacked.evaluation import ROWS_AT_ONCE, StackedEvaluation
from actors.env.stacked.layout import StackLayout
from actors.env.stacked.parameters import NetworkSettings, StackedParameters
from actors.env.stacked.slot_plan import StackedSeed


class TorchNetworks(StackedParameters):
    """E hosts with their seeds, trained and measured together."""

    def __init__(self, host: Host, num_envs: int, settings: NetworkSettings) -> None:
        super().__init__(host, num_envs, settings)
        self._seeds: dict[tuple[int, int], NewSeed] = {}  # by (env, slot)

    def reset(self, episodes: Sequence[HostEpisode], envs: Collection[int]) -> list[EvalResult]:
        """New hosts on new tasks for `envs`, the others as they were; returns each bare host's measure."""
        self.episodes = list(episodes)
        self._seeds = {place: seed for place, seed in self._seeds.items() if place[0] not in envs}
        for e in envs:
            self.hosts.draw(e, episodes[e].host.shapes(), episodes[e].host_rng())
            for new in episodes[e].initial_seeds:
                self._germinate(e, new)
        self.units = self._mask_units()
        self._fresh_moments(list(envs))
        classes = torch.tensor([episode.task.num_classes for episode in episodes], device=self.device)
        self.no_class = (torch.arange(self.host.num_classes, device=self.device)[None, :] >= classes[:, None])[:, None]
        self.train_x, self.train_y, _ = self._data("train")
        self.measure = StackedEvaluation(self, *self._data("val"), self._calibration())
        self._keep_snapshot()
        present: list[Subset] = [frozenset()]
        return [untrained for untrained, _ in self.measure([], [present] * len(episodes))]

    def run_epoch(self, orders: Sequence[EpochPlan | None]) -> list[EpochResult | None]:
        """Prune, germinate, train and measure as ordered; None for environments that idle."""
        for e, order in enumerate(orders):
            if order is not None:
                self.prune(e, order.pruned)
                if order.germinated is not None:
                    self._germinate(e, order.germinated)
        seeds = sorted(self._live(orders))
        losses, norms = self._train(orders, seeds)
        wanted = [[frozenset[int]()] if order is None else list(order.subsets) for order in orders]
        measured = self.measure(seeds, wanted)
        by_env: list[dict[int, list[float]]] = [{} for _ in orders]
        for seed, values in zip(seeds, norms, strict=True):
            by_env[seed.env][seed.slot] = values
        return [
            None if order is None else EpochResult(loss, norm, *m)
            for order, loss, norm, m in zip(orders, losses, by_env, measured, strict=True)
        ]

    def commit(self, pruned: Sequence[tuple[int, ...]]) -> None:
        """Drop what the automatic edges pruned, and keep the state as the last good one."""
        for e, slots in enumerate(pruned):
            self.prune(e, slots)
        self._keep_snapshot()

    def prune(self, env: int, slots: Sequence[int]) -> None:
        for s in slots:
            self._seeds.pop((env, s), None)

    def roll_back(self, env: int, pruned: tuple[int, ...]) -> EvalResult:
        """One environment's last good snapshot, moments cleared, without the pruned seeds; returns its measure."""
        self.prune(env, pruned)
        own = slice(env * self.host.slots, (env + 1) * self.host.slots)
        rows = [slice(env, env + 1), *[own] * (len(self.banks) + 1)]
        for bank, snapshot, which in zip((self.hosts, *self.banks, self.gates), self._snapshot, rows, strict=True):
            bank.params[which] = snapshot[which]
            bank.clear_moments(which)
        for name, moments in self._running_snapshot.items():
            for t, saved in zip(self.running[name], moments, strict=True):
                t[env] = saved[env]
        alphas = {s: slot.alpha for s, slot in enumerate(self.episodes[env].lifecycle.slots)}
        seeds = [self._seed(e, s, False, alphas[s]) for e, s in self._seeds if e == env]
        present = frozenset(seed.slot for seed in seeds)
        return self.measure(sorted(seeds), [[present]] * self.num_envs)[env][0]

    def test(self, on: Mapping[int, Mapping[int, float]]) -> dict[int, EvalResult]:
        """What each environment of `on` is worth on its test rows, with these slots at these alphas."""
        seeds = sorted(self._seed(e, s, False, alpha) for e, alphas in on.items() for s, alpha in alphas.items())
        subsets = [[frozenset(on.get(e, ()))] for e in range(self.num_envs)]
        measured = StackedEvaluation(self, *self._data("test"), self._calibration())(seeds, subsets)
        return {e: measured[e][0] for e in on}

    def _germinate(self, env: int, new: NewSeed) -> None:
        host, row = self.episodes[env].host, env * self.host.slots + new.slot
        width, blueprint = host.slot_width(new.slot), host.family.blueprints[new.blueprint]
        self._seeds[env, new.slot] = new
        self.banks[self._bank(new)].draw(row, blueprint.shapes(width), new.rng)
        self.gates.draw(row, gate_shapes(new.blend, width), new.rng)

    def _bank(self, seed: NewSeed) -> int:
        width = self.widths.index(self.host.slot_width(seed.slot))
        return width * len(self.host.family.blueprints) + seed.blueprint

    def _live(self, orders: Sequence[EpochPlan | None]) -> list[StackedSeed]:
        out = []
        for e, order in enumerate(orders):
            if order is not None:
                out += [self._seed(e, s, False, alpha) for s, alpha in order.blended.items()]
                out += [self._seed(e, s, True, alpha) for s, alpha in order.training.items()]
        return out

    def _seed(self, env: int, slot: int, learning: bool, alpha: float) -> StackedSeed:
        own = self._seeds[env, slot]
        return StackedSeed(slot, learning, self._bank(own), env, own.blend, alpha)

    def _train(
        self, orders: Sequence[EpochPlan | None], seeds: list[StackedSeed]
    ) -> tuple[list[float], list[list[float]]]:
        """Mean training loss per environment, and each seed's gradient norms per minibatch."""
        shape = next(order.rows.shape for order in orders if order is not None)
        idle = np.zeros(shape, dtype=np.int64)
        rows = torch.from_numpy(np.stack([idle if o is None else o.rows for o in orders], 1)).to(self.device)
        x = self.layout.batch(self.train_x, rows)  # [inner_steps, ...]
        y = StackLayout(0).batch(self.train_y, rows)  # [inner_steps, E, B]
        epoch = StackedEpoch(self, seeds, self.optimizer_settings)
        with fusing(self.settings.compiled):
            losses, norms = zip(*run_steps(epoch.step, x, y, self.settings.replayed), strict=True)
        epoch.store()
        return torch.stack(losses).mean(0).tolist(), torch.stack(norms, 1).tolist()

    def _mask_units(self) -> Units | None:
        """Which units are real; channels of padding are inert of themselves."""
        if self.layout.dims:
            return None
        real = torch.tensor([episode.host.slot_width(0) for episode in self.episodes], device=self.device)
        mask = (torch.arange(self.host.slot_width(0), device=self.device)[None, :] < real[:, None]).to(self.dtype)
        return Units(mask[:, None, :], (mask / real[:, None])[:, :, None])

    def _fresh_moments(self, envs: list[int]) -> None:
        """Running statistics of untrained norms for these environments."""
        for name, channels in self.host.norms().items():
            fresh = Moments.fresh(self.num_envs, channels, dtype=self.dtype, device=self.device)
            for t, new in zip(self.running.setdefault(name, fresh), fresh, strict=True):
                t[envs] = new[envs]

    def _keep_snapshot(self) -> None:
        self._running_snapshot = {name: Moments(*(t.clone() for t in m)) for name, m in self.running.items()}
        self._snapshot = [bank.params.clone() for bank in (self.hosts, *self.banks, self.gates)]

    def _data(self, split: str) -> tuple[Tensor, Tensor, Tensor]:
        """(x `[E, N, *sample]`, y `[E, N]`, valid `[E, N]`) of every environment's split, padded with zeros."""
        parts = [getattr(episode.task, split) for episode in self.episodes]
        rows = -(-max(len(p) for p in parts) // ROWS_AT_ONCE) * ROWS_AT_ONCE
        x = np.zeros((len(parts), rows, self.host.num_features, *parts[0].x.shape[2:]), dtype=np.float32)
        y = np.zeros((len(parts), rows), dtype=np.int64)
        for e, p in enumerate(parts):
            x[e, : len(p), : p.x.shape[1]], y[e, : len(p)] = p.x, p.y
        valid = np.arange(rows)[None, :] < np.array([len(p) for p in parts])[:, None]
        first, second, third = (torch.from_numpy(a).to(self.device) for a in (x, y, valid))
        return first.to(self.dtype), second, third

    def _calibration(self) -> Tensor:
        """`[E, CALIBRATION_ROWS, *sample]`: each environment's first training rows."""
        rows = [np.arange(CALIBRATION_ROWS) % len(episode.task.train) for episode in self.episodes]
        envs = torch.arange(self.num_envs, device=self.device)[:, None]
        return self.train_x[envs, torch.from_numpy(np.stack(rows)).to(self.device)]
