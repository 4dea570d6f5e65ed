"""`StackedParameters`: the parameters of E hosts and of all their seeds, stacked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from actors.blueprints.blends import GATED, gate_shapes
from actors.blueprints.blueprint import Params
from actors.env.fleet_networks import NetworkSettings
from actors.env.hosts.host import Host, column_host
from actors.env.stacked.column_group import ColumnGroup
from actors.env.stacked.layout import StackLayout
from actors.env.stacked.param_bank import ColumnBank, ParamBank
from actors.env.stacked.slot_plan import BlueprintGroup, ParamsOf, Plans, SlotPlan, StackedSeed, runs_of
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
        rows = num_envs * host.slots
        self.hosts = ParamBank(host.shapes(), host.norms(), num_envs, settings)
        self.running = self.hosts.running
        self.layout = StackLayout(host.family.dims)
        widths = [host.slot_width(s) for s in range(host.slots)]
        self.widths = list(dict.fromkeys(widths))
        self.blueprints = [b for _ in self.widths for b in host.family.blueprints]
        self.column_banks = {
            blueprint: ColumnBank(column_host(host, column.scale), num_envs * column_slots, settings)
            for blueprint, column in enumerate(host.family.columns)
            if column is not None
        }
        self.banks: list[ParamBank] = [
            *(ParamBank(b.shapes(w), {}, rows, settings) for w in self.widths for b in host.family.blueprints),
            *self.column_banks.values(),
        ]
        self.gates = ParamBank(gate_shapes(GATED, max(widths)), {}, rows, settings)

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
        return self.index(self.row(seed.env, seed.slot) for seed in seeds)

    def index(self, rows: Iterable[int]) -> Tensor:
        """Return indices of rows as a tensor on the device."""
        return torch.tensor([*rows], dtype=torch.long, device=self.device)

    def plans(self, seeds: Sequence[StackedSeed], envs: Sequence[int], params_of: ParamsOf, gate_of: ParamsOf) -> Plans:
        """Return a plan for each slot in the stream that has seeds, which are sorted, for a pass over `envs`."""
        position = {env: row for row, env in enumerate(envs)}
        shape = (-1, *(1,) * max(2, 1 + self.layout.dims))
        plans = {}
        for s in sorted({seed.slot for seed in seeds if seed.slot < self.host.slots}):
            here = [seed for seed in seeds if seed.slot == s]
            groups = [
                BlueprintGroup(self.blueprints[bank], run, params_of(here[run]))
                for (_, _, bank, _), run in runs_of(here, lambda seed: seed.run)
            ]
            places = [position[seed.env] for seed in here]
            units = None if self.units is None else self.units.rows(self.index(seed.env for seed in here))
            alpha = torch.tensor([seed.alpha for seed in here], dtype=self.dtype, device=self.device)
            blends = [seed.blend for seed in here]
            plans[s] = SlotPlan(
                self.index(places),
                places == list(range(len(places))),
                self.layout,
                units,
                tuple(groups),
                alpha.view(shape),
                self.index(blends).view(shape),
                frozenset(blends),
                gate_of(here),
            )
        return plans

    def columns(self, seeds: Sequence[StackedSeed], params_of: ParamsOf) -> list[ColumnGroup]:
        """Return the groups of those of these seeds that are columns, in the order of their turns."""
        columns = [seed for seed in seeds if seed.slot >= self.host.slots]
        groups = []
        for (slot, _, b, turn), run in runs_of(columns, lambda seed: seed.run):
            members, bank = columns[run], self.banks[b]
            assert isinstance(bank, ColumnBank)
            envs, rows = self.index(seed.env for seed in members), self.rows(members)
            alpha = torch.tensor([seed.alpha for seed in members], dtype=self.dtype, device=self.device)
            inputs, held = (t.expand(max(2, len(members))) for t in (envs, rows))
            column = alpha[:, None, None]
            params, units = params_of(members), bank.units(held)
            groups.append(ColumnGroup(slot, turn, bank, envs, rows, inputs, units, column, params, self.layout))
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
