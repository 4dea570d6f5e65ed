"""`NumbaNetworks`: the `FleetNetworks` of the numba backend."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np
import torch

from actors.blueprints.blueprint import NOOP
from actors.env.compiled.compile import compile_kernels
from actors.env.compiled.numba_network import NumbaNetwork
from actors.env.episode.epoch import EpochPlan, EpochResult, HostEpoch, TwinEpoch
from actors.env.episode.host_episode import HostEpisode
from actors.env.fleet_networks import FleetNetworks
from actors.env.hosts.host import Host
from actors.slots.contributions import EvalResult, Validation


def has_kernels(host: Host) -> bool:
    """Return whether there are kernels for this host and every blueprint of its family."""
    return not host.family.dims and all(b is NOOP or b.formula for b in host.family.blueprints)


class NumbaNetworks(FleetNetworks):
    """Hosts for which `has_kernels`, trained one after the other, each at its true size."""

    def __init__(self, num_envs: int, column_slots: int, dtype: torch.dtype) -> None:
        self.num_envs, self.column_slots = num_envs, column_slots
        self.dtype = np.dtype(str(dtype).removeprefix("torch."))
        self.networks: list[NumbaNetwork] = []
        compile_kernels(self.dtype.name)

    def reset(self, episodes: Sequence[HostEpisode], envs: Collection[int]) -> dict[int, Validation]:
        for e in sorted(envs):
            self.networks[e : e + 1] = [NumbaNetwork(episodes[e], self.column_slots, self.dtype)]
        return {e: self.networks[e].validate({}) for e in envs}

    def can_train_twin(self, env: int) -> bool:
        return True

    def train_twin(self, env: int, epochs: Sequence[HostEpoch]) -> list[TwinEpoch]:
        return self.networks[env].train_twin(epochs)

    def run_epoch(self, plans: Sequence[EpochPlan | None]) -> list[EpochResult | None]:
        return [None if p is None else n.run_epoch(p) for n, p in zip(self.networks, plans, strict=True)]

    def commit(self, pruned: Sequence[tuple[int, ...]]) -> None:
        for network, slots in zip(self.networks, pruned, strict=True):
            network.prune(slots)
            network.commit()

    def roll_back(self, env: int, pruned: tuple[int, ...]) -> Validation:
        network = self.networks[env]
        network.prune(pruned)
        network.roll_back()
        return network.validate(network.episode.growth.blended())

    def evaluate_test(self, alphas: Mapping[int, Mapping[int, float]]) -> dict[int, EvalResult]:
        return {e: self.networks[e].evaluate_test(by_slot) for e, by_slot in alphas.items()}
