"""`TorchNetworks`: the `FleetNetworks` of the torch backend."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from actors.env.blueprints.blends import gate_shapes
from actors.env.epoch import EpochPlan, EpochResult, NewSeed
from actors.env.fleet_networks import NetworkSettings
from actors.env.host_episode import HostEpisode
from actors.env.hosts.host import Host
from actors.env.layers.batch_norm import CALIBRATION_ROWS, Moments
from actors.env.layers.fusion import fusing
from actors.env.layers.layer_norm import Units
from actors.env.slots.contributions import EvalResult, Subset
from actors.env.stacked.cuda_graph import run_steps
from actors.env.stacked.epoch import StackedEpoch
from actors.env.stacked.evaluation import ROWS_AT_ONCE, StackedEvaluation
from actors.env.stacked.layout import StackLayout
from actors.env.stacked.parameters import StackedParameters
from actors.env.stacked.slot_plan import StackedSeed


class TorchNetworks(StackedParameters):
    """E hosts with their seeds, trained and evaluated together as stacked tensors. See `FleetNetworks`."""

    def __init__(self, host: Host, num_envs: int, settings: NetworkSettings) -> None:
        super().__init__(host, num_envs, settings)
        self._seeds: dict[tuple[int, int], NewSeed] = {}  # by (env, slot)

    def reset(self, episodes: Sequence[HostEpisode], envs: Collection[int]) -> list[EvalResult]:
        """See `FleetNetworks.reset`."""
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
        self.evaluation = StackedEvaluation(self, *self._data("val"), self._calibration())
        self._save_snapshot()
        bare: list[Subset] = [frozenset()]
        return [untrained for untrained, _ in self.evaluation([], [bare] * len(episodes))]

    def run_epoch(self, plans: Sequence[EpochPlan | None]) -> list[EpochResult | None]:
        """See `FleetNetworks.run_epoch`."""
        for e, plan in enumerate(plans):
            if plan is not None:
                self.prune(e, plan.pruned)
                if plan.germinated is not None:
                    self._germinate(e, plan.germinated)
        seeds = sorted(self._live(plans))
        losses, norms = self._train(plans, seeds)
        subsets = [[frozenset[int]()] if plan is None else list(plan.subsets) for plan in plans]
        evaluated = self.evaluation(seeds, subsets)
        by_env: list[dict[int, list[float]]] = [{} for _ in plans]
        for seed, values in zip(seeds, norms, strict=True):
            by_env[seed.env][seed.slot] = values
        return [
            None if plan is None else EpochResult(loss, norm, *m)
            for plan, loss, norm, m in zip(plans, losses, by_env, evaluated, strict=True)
        ]

    def commit(self, pruned: Sequence[tuple[int, ...]]) -> None:
        """See `FleetNetworks.commit`."""
        for e, slots in enumerate(pruned):
            self.prune(e, slots)
        self._save_snapshot()

    def prune(self, env: int, slots: Sequence[int]) -> None:
        """Remove the seeds of these slots."""
        for s in slots:
            self._seeds.pop((env, s), None)

    def roll_back(self, env: int, pruned: tuple[int, ...]) -> EvalResult:
        """See `FleetNetworks.roll_back`."""
        self.prune(env, pruned)
        seed_rows = slice(env * self.host.slots, (env + 1) * self.host.slots)
        rows = [slice(env, env + 1), *[seed_rows] * (len(self.banks) + 1)]
        for bank, snapshot, which in zip((self.hosts, *self.banks, self.gates), self._snapshot, rows, strict=True):
            bank.params[which] = snapshot[which]
            bank.clear_moments(which)
        for name, moments in self._running_snapshot.items():
            for t, saved in zip(self.running[name], moments, strict=True):
                t[env] = saved[env]
        alphas = {s: slot.alpha for s, slot in enumerate(self.episodes[env].lifecycle.slots)}
        seeds = [self._seed(e, s, False, alphas[s]) for e, s in self._seeds if e == env]
        on = frozenset(seed.slot for seed in seeds)
        return self.evaluation(sorted(seeds), [[on]] * self.num_envs)[env][0]

    def evaluate_test(self, alphas: Mapping[int, Mapping[int, float]]) -> dict[int, EvalResult]:
        """See `FleetNetworks.evaluate_test`."""
        seeds = sorted(self._seed(e, s, False, alpha) for e, by_slot in alphas.items() for s, alpha in by_slot.items())
        subsets = [[frozenset(alphas.get(e, ()))] for e in range(self.num_envs)]
        results = StackedEvaluation(self, *self._data("test"), self._calibration())(seeds, subsets)
        return {e: results[e][0] for e in alphas}

    def _germinate(self, env: int, new: NewSeed) -> None:
        host, row = self.episodes[env].host, env * self.host.slots + new.slot
        width, blueprint = host.slot_width(new.slot), host.family.blueprints[new.blueprint]
        self._seeds[env, new.slot] = new
        self.banks[self._bank(new)].draw(row, blueprint.shapes(width), new.rng)
        self.gates.draw(row, gate_shapes(new.blend, width), new.rng)

    def _bank(self, seed: NewSeed) -> int:
        width = self.widths.index(self.host.slot_width(seed.slot))
        return width * len(self.host.family.blueprints) + seed.blueprint

    def _live(self, plans: Sequence[EpochPlan | None]) -> list[StackedSeed]:
        out = []
        for e, plan in enumerate(plans):
            if plan is not None:
                out += [self._seed(e, s, False, alpha) for s, alpha in plan.blended.items()]
                out += [self._seed(e, s, True, alpha) for s, alpha in plan.training.items()]
        return out

    def _seed(self, env: int, slot: int, training: bool, alpha: float) -> StackedSeed:
        seed = self._seeds[env, slot]
        return StackedSeed(slot, training, self._bank(seed), env, seed.blend, alpha)

    def _train(
        self, plans: Sequence[EpochPlan | None], seeds: list[StackedSeed]
    ) -> tuple[list[float], list[list[float]]]:
        """Return the mean loss of each environment, and the gradient norms of each seed by minibatch."""
        shape = next(plan.rows.shape for plan in plans if plan is not None)
        idle = np.zeros(shape, dtype=np.int64)
        rows = torch.from_numpy(np.stack([idle if o is None else o.rows for o in plans], 1)).to(self.device)
        x = self.layout.batch(self.train_x, rows)  # [inner_steps, ...]
        y = StackLayout(0).batch(self.train_y, rows)  # [inner_steps, E, B]
        epoch = StackedEpoch(self, seeds, self.optimizer_settings)
        with fusing(self.settings.fused):
            losses, norms = zip(*run_steps(epoch.step, x, y, self.settings.cuda_graph), strict=True)
        epoch.store()
        return torch.stack(losses).mean(0).tolist(), torch.stack(norms, 1).tolist()

    def _mask_units(self) -> Units | None:
        """Return which hidden units are real; None for CNNs, whose padded channels stay 0 anyway."""
        if self.layout.dims:
            return None
        real = torch.tensor([episode.host.slot_width(0) for episode in self.episodes], device=self.device)
        mask = (torch.arange(self.host.slot_width(0), device=self.device)[None, :] < real[:, None]).to(self.dtype)
        return Units(mask[:, None, :], (mask / real[:, None])[:, :, None])

    def _fresh_moments(self, envs: list[int]) -> None:
        """Reset the running statistics of BatchNorm for these environments."""
        for name, channels in self.host.norms().items():
            fresh = Moments.fresh(self.num_envs, channels, dtype=self.dtype, device=self.device)
            for t, new in zip(self.running.setdefault(name, fresh), fresh, strict=True):
                t[envs] = new[envs]

    def _save_snapshot(self) -> None:
        self._running_snapshot = {name: Moments(*(t.clone() for t in m)) for name, m in self.running.items()}
        self._snapshot = [bank.params.clone() for bank in (self.hosts, *self.banks, self.gates)]

    def _data(self, split: str) -> tuple[Tensor, Tensor, Tensor]:
        """Return x `[E, N, *sample]`, y `[E, N]` and valid `[E, N]` of every environment's split, padded with zeros."""
        splits = [getattr(episode.task, split) for episode in self.episodes]
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
