"""`StackedNetworks`: E growing networks as one tensor program. Growth is data, not structure.

Parameters are stacked `[E, ...]` and padded to one shape. The seeds of one blueprint, whatever host and slot they grow
in, are rows of one bank; an epoch gathers those that take part, by slot, and puts them back afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from actors.env.bank import ParamBank
from actors.env.blends import GATED, gate_shapes
from actors.env.blueprints import MLP_BLUEPRINTS, Params, Units
from actors.env.contributions import Subset
from actors.env.growing import Optimisation
from actors.env.host import MLPHost
from actors.env.host_episode import EpochResult, Germination, HostEpisode, Measured, Orders
from actors.env.stacked_epoch import EpochProgram
from actors.env.stacked_plan import LiveSeed, Plans, slot_plan

ROW_MULTIPLE = 32
"""Transcendental functions work on vectors of lanes; rows in multiples of them keep each environment's bits apart from
its neighbours'."""


class StackedNetworks:
    """E hosts with their seeds. All have the padded shape of `host`; what is padding is 0 and stays 0."""

    def __init__(
        self,
        host: MLPHost,
        num_envs: int,
        max_steps: int,
        optimisation: Optimisation,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.host, self.num_envs, self.optimisation = host, num_envs, optimisation
        self.dtype, self.device = dtype, device
        rows = num_envs * host.slots
        self.hosts = ParamBank(host.shapes(), num_envs, max_steps, dtype, device)
        self.banks = [ParamBank(b.shapes(host.width), rows, max_steps, dtype, device) for b in MLP_BLUEPRINTS]
        self.gates = ParamBank(gate_shapes(GATED, host.width), rows, max_steps, dtype, device)
        self._seeds: dict[tuple[int, int], Germination] = {}  # by (env, slot)

    def reset(self, episodes: Sequence[HostEpisode]) -> list[Measured]:
        """New hosts on new tasks; returns each untrained host's measure."""
        self.episodes = list(episodes)
        self._seeds = {}
        width = self.host.width
        for e, episode in enumerate(episodes):
            self.hosts.draw(e, episode.host.shapes(), episode.host_rng())
        real = torch.tensor([episode.host.width for episode in episodes], device=self.device)
        mask = (torch.arange(width, device=self.device)[None, :] < real[:, None]).to(self.dtype)
        self.units = Units(mask[:, None, :], (mask / real[:, None])[:, :, None])
        classes = torch.tensor([episode.task.num_classes for episode in episodes], device=self.device)
        self.no_class = (torch.arange(self.host.num_classes, device=self.device)[None, :] >= classes[:, None])[:, None]
        self.train_x, self.train_y, _ = self._data("train")
        self.val_x, self.val_y, self.val_valid = self._data("val")
        self._keep_snapshot()
        present: list[Subset] = [frozenset()]
        return [m[present[0]] for m in self._measure({}, [present] * len(episodes))]

    def run_epoch(self, orders: Sequence[Orders | None]) -> list[EpochResult | None]:
        """Prune, germinate, train and measure as ordered; None for environments that idle."""
        for e, order in enumerate(orders):
            if order is not None:
                self.prune(e, order.pruned)
                if order.germinated is not None:
                    self._germinate(e, order.germinated)
        seeds = sorted(self._live(orders))
        losses, norms = self._train(orders, seeds)
        wanted = [[frozenset[int]()] if order is None else list(order.subsets) for order in orders]
        measured = self._measure(self.plans(seeds, range(self.num_envs), self._constant, self._constant_gates), wanted)
        by_env: list[dict[int, list[float]]] = [{} for _ in orders]
        for seed, values in zip(seeds, norms, strict=True):
            by_env[seed.env][seed.slot] = values
        return [
            None if order is None else EpochResult(loss, norm, m[order.subsets[0]], m)
            for order, loss, norm, m in zip(orders, losses, by_env, measured, strict=True)
        ]

    def finish_epoch(self, pruned: Sequence[tuple[int, ...]]) -> None:
        """Drop what the automatic edges pruned, and keep the state as the last good one."""
        for e, slots in enumerate(pruned):
            self.prune(e, slots)
        self._keep_snapshot()

    def prune(self, env: int, slots: Sequence[int]) -> None:
        for s in slots:
            self._seeds.pop((env, s), None)

    def roll_back(self, env: int, pruned: tuple[int, ...]) -> Measured:
        """One environment's last good snapshot, moments cleared, without the pruned seeds; returns its measure."""
        self.prune(env, pruned)
        own = slice(env * self.host.slots, (env + 1) * self.host.slots)
        rows = [slice(env, env + 1), *[own] * (len(self.banks) + 1)]
        for bank, snapshot, which in zip((self.hosts, *self.banks, self.gates), self._snapshot, rows, strict=True):
            bank.params[which] = snapshot[which]
            bank.clear_moments(which)
        alphas = {s: slot.alpha for s, slot in enumerate(self.episodes[env].lifecycle.slots)}
        seeds = [self._seed(e, s, False, alphas[s]) for e, s in self._seeds if e == env]
        plans = self.plans(sorted(seeds), range(self.num_envs), self._constant, self._constant_gates)
        present = frozenset(seed.slot for seed in seeds)
        return self._measure(plans, [[present]] * self.num_envs)[env][present]

    def _germinate(self, env: int, new: Germination) -> None:
        width, row = self.episodes[env].host.width, env * self.host.slots + new.slot
        self._seeds[env, new.slot] = new
        self.banks[new.blueprint].draw(row, MLP_BLUEPRINTS[new.blueprint].shapes(width), new.rng)
        self.gates.draw(row, gate_shapes(new.blend, width), new.rng)

    def _live(self, orders: Sequence[Orders | None]) -> list[LiveSeed]:
        out = []
        for e, order in enumerate(orders):
            if order is not None:
                out += [self._seed(e, s, False, alpha) for s, alpha in order.blended.items()]
                out += [self._seed(e, s, True, alpha) for s, alpha in order.training.items()]
        return out

    def _seed(self, env: int, slot: int, learning: bool, alpha: float) -> LiveSeed:
        own = self._seeds[env, slot]
        return LiveSeed(slot, learning, own.blueprint, env, own.blend, alpha)

    def rows(self, seeds: Sequence[LiveSeed]) -> Tensor:
        rows = [seed.env * self.host.slots + seed.slot for seed in seeds]
        return torch.tensor(rows, dtype=torch.long, device=self.device)

    def _train(self, orders: Sequence[Orders | None], seeds: list[LiveSeed]) -> tuple[list[float], list[list[float]]]:
        """Mean training loss per environment, and each seed's gradient norms per minibatch."""
        shape = next(order.rows.shape for order in orders if order is not None)
        idle = np.zeros(shape, dtype=np.int64)
        rows = torch.from_numpy(np.stack([idle if o is None else o.rows for o in orders], 1)).to(self.device)
        envs = torch.arange(self.num_envs, device=self.device)[None, :, None]
        x, y = self.train_x[envs, rows], self.train_y[envs, rows]  # [inner_steps, E, B, ...]
        epoch = EpochProgram(self, seeds, self.optimisation)
        losses, norms = [], []
        for batch, labels in zip(x, y, strict=True):
            loss, norm = epoch.step(batch, labels)
            losses.append(loss)
            norms.append(norm)
        epoch.store()
        return torch.stack(losses).mean(0).tolist(), torch.stack(norms, 1).tolist()

    @torch.no_grad()
    def _measure(self, plans: Plans, wanted: Sequence[Sequence[Subset]]) -> list[dict[Subset, Measured]]:
        """Accuracy and loss of each environment's wanted subsets.

        Subsets share the work of the slots before the one at which they part: after slot s there is one variant for
        each different set of slots up to s.
        """
        targets = sorted({subset for subsets in wanted for subset in subsets}, key=sorted)
        variants: list[Subset] = [frozenset()]

        def slot(s: int, h: Tensor) -> Tensor:
            nonlocal variants
            before, variants = variants, sorted({t & frozenset(range(s + 1)) for t in targets}, key=sorted)
            if s not in plans:
                # nothing grows here, so that switching this slot changes nothing
                return self._pick(h, [before.index(v - {s}) for v in variants], len(before))
            on = [v for v in variants if s in v]
            source = self._pick(h, [before.index(v - {s}) for v in variants], len(before))
            if not on:
                return source
            rows = source.shape[1] // len(variants)
            split = source.view(source.shape[0], len(variants), rows, -1)
            index = torch.tensor([variants.index(v) for v in on], device=h.device)
            switched = plans[s](split[:, index].flatten(1, 2)).view(source.shape[0], len(on), rows, -1)
            return split.index_copy(1, index, switched).flatten(1, 2)

        params = self.hosts.views(self.hosts.params)
        logits = self.host.forward(params, self.val_x, slot, self.units).masked_fill(self.no_class, -torch.inf)
        logits = logits.view(self.num_envs, len(targets), -1, logits.shape[-1])
        labels, valid = self.val_y[:, None].expand(-1, len(targets), -1), self.val_valid[:, None]
        count = self.val_valid.sum(1, keepdim=True).to(torch.float64)
        correct = ((logits.argmax(-1) == labels) & valid).sum(-1)
        loss = F.cross_entropy(logits.movedim(-1, 1), labels, reduction="none").masked_fill(~valid, 0.0).sum(-1)
        accuracy, mean_loss = (100.0 * correct / count).tolist(), (loss / count.to(loss.dtype)).tolist()
        place = {subset: k for k, subset in enumerate(targets)}
        return [
            {subset: (accuracy[e][place[subset]], mean_loss[e][place[subset]]) for subset in subsets}
            for e, subsets in enumerate(wanted)
        ]

    @staticmethod
    def _pick(h: Tensor, sources: list[int], variants: int) -> Tensor:
        if sources == list(range(variants)):
            return h
        split = h.view(h.shape[0], variants, -1, h.shape[-1])
        return split[:, torch.tensor(sources, device=h.device)].flatten(1, 2)

    def plans(
        self,
        seeds: Sequence[LiveSeed],
        envs: Sequence[int],
        params_of: Callable[[Sequence[LiveSeed]], Callable[[], Params]],
        gate_of: Callable[[Sequence[LiveSeed]], Callable[[], Params]],
    ) -> Plans:
        """By slot, for a pass over `envs`."""
        place = {env: row for row, env in enumerate(envs)}
        units = self.units.rows(torch.tensor(list(envs), device=self.device))
        plans = {}
        for s in range(self.host.slots):
            here = [seed for seed in seeds if seed.slot == s]
            if here:
                gate = gate_of(here)
                plans[s] = slot_plan(here, place, units, MLP_BLUEPRINTS, params_of, gate, self.hosts.params)
        return plans

    def _constant(self, seeds: Sequence[LiveSeed]) -> Callable[[], Params]:
        bank = self.banks[seeds[0].blueprint]
        params = bank.views(bank.params[self.rows(seeds)])
        return lambda: params

    def _constant_gates(self, seeds: Sequence[LiveSeed]) -> Callable[[], Params]:
        params = self.gates.views(self.gates.params[self.rows(seeds)])
        return lambda: params

    def _keep_snapshot(self) -> None:
        self._snapshot = [bank.params.clone() for bank in (self.hosts, *self.banks, self.gates)]

    def _data(self, split: str) -> tuple[Tensor, Tensor, Tensor]:
        """(x `[E, N, F]`, y `[E, N]`, valid `[E, N]`) of every environment's split, padded with zeros."""
        parts = [getattr(episode.task, split) for episode in self.episodes]
        rows = -(-max(len(p) for p in parts) // ROW_MULTIPLE) * ROW_MULTIPLE
        x = np.zeros((len(parts), rows, self.host.num_features), dtype=np.float32)
        y = np.zeros((len(parts), rows), dtype=np.int64)
        for e, p in enumerate(parts):
            x[e, : len(p), : p.x.shape[1]], y[e, : len(p)] = p.x, p.y
        valid = np.arange(rows)[None, :] < np.array([len(p) for p in parts])[:, None]
        arrays = (torch.from_numpy(a).to(self.device) for a in (x, y, valid))
        first, second, third = arrays
        return first.to(self.dtype), second, third
