"""`StackedParameters`: the parameters of E networks, and how the passes of an epoch read them.

Parameters are stacked `[E, ...]` and padded to one shape. The seeds of one blueprint, whatever host and slot they grow
in, are rows of one bank (one for each width that slots have); an epoch gathers those that take part, by slot, and puts
them back afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from actors.env.blueprints.blends import GATED, gate_shapes
from actors.env.blueprints.vector import Params, Units
from actors.env.hosts.mlp import Host
from actors.env.layers.batch_norm import Moments
from actors.env.reference_network import OptimizerSettings
from actors.env.stacked.layout import StackLayout
from actors.env.stacked.param_bank import ParamBank
from actors.env.stacked.slot_plan import Plans, StackedSeed, slot_plan


@dataclass(frozen=True)
class NetworkSettings:
    """How the networks of a fleet are trained."""

    max_steps: int  # of an episode
    optimizer_settings: OptimizerSettings
    dtype: torch.dtype
    device: torch.device
    compiled: bool = False  # pieces fused by `torch.compile`
    replayed: bool = False  # an epoch's steps as a CUDA graph


class StackedParameters:
    """E hosts with their seeds. All have the padded shape of `host`; padded entries are 0 and stay 0."""

    units: Units | None  # which units are real; None for channels, whose padding is inert
    no_class: Tensor  # bool [E, 1, classes], True where the class is padding

    def __init__(self, host: Host, num_envs: int, settings: NetworkSettings) -> None:
        self.settings, self.optimizer_settings = settings, settings.optimizer_settings
        self.host, self.num_envs = host, num_envs
        self.dtype, self.device = settings.dtype, settings.device
        table = (settings.max_steps, settings.dtype, settings.device)
        rows = num_envs * host.slots
        self.hosts = ParamBank(host.shapes(), num_envs, *table)
        self.layout = StackLayout(host.family.dims)
        widths = [host.slot_width(s) for s in range(host.slots)]
        self.widths = list(dict.fromkeys(widths))
        self.blueprints = [b for _ in self.widths for b in host.family.blueprints]
        self.banks = [ParamBank(b.shapes(w), rows, *table) for w in self.widths for b in host.family.blueprints]
        self.gates = ParamBank(gate_shapes(GATED, max(widths)), rows, *table)
        self.running: dict[str, Moments] = {}

    def rows(self, seeds: Sequence[StackedSeed]) -> Tensor:
        rows = [seed.env * self.host.slots + seed.slot for seed in seeds]
        return torch.tensor(rows, dtype=torch.long, device=self.device)

    def plans(
        self,
        seeds: Sequence[StackedSeed],
        envs: Sequence[int],
        params_of: Callable[[Sequence[StackedSeed]], Callable[[], Params]],
        gate_of: Callable[[Sequence[StackedSeed]], Callable[[], Params]],
    ) -> Plans:
        """By slot, for a pass over `envs`."""
        place = {env: row for row, env in enumerate(envs)}
        units = None if self.units is None else self.units.rows(torch.tensor(list(envs), device=self.device))
        plans = {}
        for s in range(self.host.slots):
            here = [seed for seed in seeds if seed.slot == s]
            if here:
                gate = gate_of(here)
                plans[s] = slot_plan(
                    here, place, self.layout, units, self.blueprints, params_of, gate, self.hosts.params
                )
        return plans

    def constant(self, seeds: Sequence[StackedSeed]) -> Callable[[], Params]:
        bank = self.banks[seeds[0].bank]
        params = bank.views(bank.params[self.rows(seeds)])
        return lambda: params

    def constant_gates(self, seeds: Sequence[StackedSeed]) -> Callable[[], Params]:
        params = self.gates.views(self.gates.params[self.rows(seeds)])
        return lambda: params
