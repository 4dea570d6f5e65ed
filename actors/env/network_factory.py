"""`make_networks`: chooses the backend that trains the networks of a fleet (`env.backend`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from actors.config import require
from actors.env.compiled.networks import NumbaNetworks, has_kernels
from actors.env.fleet_networks import FleetNetworks, NetworkSettings
from actors.env.hosts.host import Host
from actors.env.hosts.make import padded_host
from actors.env.mixed_networks import HostKind, MixedNetworks, block_envs
from actors.env.stacked.networks import TorchNetworks


@dataclass(frozen=True)
class NetworkFactory:
    """Makes networks for hosts of one kind, with the backend of that kind."""

    padded_hosts: Mapping[HostKind, Host]  # large enough for every host of the kind
    numba_kinds: frozenset[HostKind]  # the other kinds use the torch backend
    column_slots: int
    settings: NetworkSettings

    def make(self, kind: HostKind, num_envs: int) -> FleetNetworks:
        if kind in self.numba_kinds:
            return NumbaNetworks(num_envs, self.column_slots, self.settings.optimizer_settings, self.settings.dtype)
        return TorchNetworks(self.padded_hosts[kind], self.column_slots, num_envs, self.settings)


def make_networks(
    hosts: Sequence[tuple[HostKind, Host]],
    column_slots: int,
    num_envs: int,
    settings: NetworkSettings,
    backend: Literal["auto", "numba", "torch"],
    kernels: bool,
) -> FleetNetworks:
    """Make the networks of a fleet; `hosts` holds the kinds of hosts of each of its tasks, with the widest of each.

    If `kernels`, hosts that have kernels are trained on the CPU, also where `settings` name another device.

    Raise `ConfigError` if `backend` is `numba` and a host has no kernels.
    """
    by_kind: dict[HostKind, list[Host]] = {}
    for kind, host in hosts:
        by_kind.setdefault(kind, []).append(host)
    padded = {kind: padded_host(same) for kind, same in by_kind.items()}
    with_kernels = {kind for kind, host in padded.items() if kernels and has_kernels(host)}
    require(
        backend != "numba" or with_kernels == set(padded),
        "env.backend is numba, which needs MLP hosts with built-in blueprints on a CPU: set it to auto",
    )
    factory = NetworkFactory(
        padded, frozenset() if backend == "torch" else frozenset(with_kernels), column_slots, settings
    )
    if len(padded) == 1:
        (kind,) = padded
        if num_envs <= block_envs(kind, num_envs, settings.device.type):
            return factory.make(kind, num_envs)
    return MixedNetworks(list(padded), factory.make, num_envs, settings.device.type, settings.least_channels)
