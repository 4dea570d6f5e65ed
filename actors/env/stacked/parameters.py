"""`StackedParameters`: the parameters of E hosts and of all their seeds, stacked."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from actors.blueprints.blends import GATED, gate_shapes
from actors.blueprints.blueprint import Params
from actors.env.fleet_networks import NetworkSettings
from actors.env.hosts.host import Host, column_host
from actors.env.stacked.column_bank import ColumnBank
from actors.env.stacked.column_group import ColumnGroup
from actors.env.stacked.layout import StackLayout
from actors.env.stacked.param_bank import ParamBank
from actors.env.stacked.slot_plan import Plans, StackedSeed, runs_of, slot_plan
from actors.layers.batch_norm import Moments
from actors.layers.layer_norm import Units


class StackedParameters:
    """Parameters of E hosts `[E, ...]`, padded to the shape of `host`, and of the seeds in their slots.

    Padded entries are 0 and stay 0. Of the slots, the first S are in the stream and C hold columns. In the stream there
    is one bank for each blueprint and width of slot; environment e's seed in slot s is row e * S + s of its bank, and
    its gate is the same row of `gates`. Then there is one bank for each column blueprint, where the seed is row
    e * C + s - S.
    """

    units: Units | None  # which hidden units are real; None for CNNs, whose padded channels stay 0 anyway
    class_counts: Tensor  # [E], classes of each environment's task
    no_class: Tensor  # bool [E, 1, classes], True for classes that are padding

    def __init__(self, host: Host, column_slots: int, num_envs: int, settings: NetworkSettings) -> None:
        self.settings, self.host, self.column_slots, self.num_envs = settings, host, column_slots, num_envs
        self.dtype, self.device = settings.dtype, settings.device
        table = (settings.max_steps, settings.dtype, settings.device)
        rows = num_envs * host.slots
        self.hosts = ParamBank(host.shapes(), num_envs, *table)
        self.layout = StackLayout(host.family.dims)
        widths = [host.slot_width(s) for s in range(host.slots)]
        self.widths = list(dict.fromkeys(widths))
        self.blueprints = [b for _ in self.widths for b in host.family.blueprints]
        self.column_banks = {
            blueprint: ColumnBank(column_host(host, column.scale), num_envs * column_slots, *table)
            for blueprint, column in enumerate(host.family.columns)
            if column is not None
        }
        self.banks: list[ParamBank] = [
            *(ParamBank(b.shapes(w), rows, *table) for w in self.widths for b in host.family.blueprints),
            *self.column_banks.values(),
        ]
        self.gates = ParamBank(gate_shapes(GATED, max(widths)), rows, *table)
        self.running: dict[str, Moments] = {}

    @property
    def total_slots(self) -> int:
        """Slots of both kinds."""
        return self.host.slots + self.column_slots

    def row(self, env: int, slot: int) -> int:
        """Return the row of a seed in its bank."""
        stream = self.host.slots
        return env * stream + slot if slot < stream else env * self.column_slots + slot - stream

    def rows(self, seeds: Sequence[StackedSeed]) -> Tensor:
        """Return the row of each seed in its bank."""
        rows = [self.row(seed.env, seed.slot) for seed in seeds]
        return torch.tensor(rows, dtype=torch.long, device=self.device)

    def plans(
        self,
        seeds: Sequence[StackedSeed],
        envs: Sequence[int],
        params_of: Callable[[Sequence[StackedSeed]], Callable[[], Params]],
        gate_of: Callable[[Sequence[StackedSeed]], Callable[[], Params]],
    ) -> Plans:
        """Return a plan for each slot in the stream that has seeds, for a pass over `envs`.

        `params_of` and `gate_of` return a function that reads the parameters of consecutive seeds.
        """
        position = {env: row for row, env in enumerate(envs)}
        units = None if self.units is None else self.units.rows(torch.tensor(list(envs), device=self.device))
        plans = {}
        for s in range(self.host.slots):
            here = [seed for seed in seeds if seed.slot == s]
            if here:
                gate = gate_of(here)
                plans[s] = slot_plan(
                    here, position, self.layout, units, self.blueprints, params_of, gate, self.hosts.params
                )
        return plans

    def columns(
        self, seeds: Sequence[StackedSeed], params_of: Callable[[Sequence[StackedSeed]], Callable[[], Params]]
    ) -> list[ColumnGroup]:
        """Return the groups of those of these seeds that are columns, in the order of their turns."""
        columns = [seed for seed in seeds if seed.slot >= self.host.slots]
        groups = []
        for _, run in runs_of(columns, lambda seed: (seed.slot, seed.training, seed.bank, seed.turn)):
            members = columns[run]
            bank = self.banks[members[0].bank]
            assert isinstance(bank, ColumnBank)
            envs = torch.tensor([seed.env for seed in members], device=self.device)
            alpha = torch.tensor([seed.alpha for seed in members], dtype=self.dtype, device=self.device)
            rows, size = self.rows(members), max(2, len(members))
            groups.append(
                ColumnGroup(
                    members[0].slot,
                    members[0].turn,
                    bank,
                    envs,
                    rows,
                    envs.expand(size),
                    bank.units(rows.expand(size)),
                    alpha[:, None, None],
                    params_of(members),
                    self.layout,
                )
            )
        return sorted(groups, key=lambda group: group.turn)

    def constant(self, seeds: Sequence[StackedSeed]) -> Callable[[], Params]:
        """Return a function that returns the current parameters of seeds of one bank, as constants."""
        bank = self.banks[seeds[0].bank]
        params = bank.views(bank.params[self.rows(seeds)])
        return lambda: params

    def constant_gates(self, seeds: Sequence[StackedSeed]) -> Callable[[], Params]:
        """Return a function that returns the current gates of these seeds, as constants."""
        params = self.gates.views(self.gates.params[self.rows(seeds)])
        return lambda: params
