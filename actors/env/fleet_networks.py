"""`FleetNetworks`: a fleet's networks by kind of host, each kind in stacks of its own.

Hosts of one family and one size in space share a stack, padded to its widest. Which hosts an environment gets changes
with every reset, and so do the stacks; large stacks are cut into blocks that fit the cache.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Literal, Protocol, TypeVar

import torch

from actors.config import ConfigError, require
from actors.env.compiled import CompiledNetworks, compilable
from actors.env.growing import Optimisation
from actors.env.host import Host
from actors.env.host_episode import EpochResult, HostEpisode, Measured, Orders
from actors.env.hosts import make_host, padded_host
from actors.env.stacked import StackedNetworks
from actors.env.tasks import Task

T = TypeVar("T")
Kind = tuple[int, ...]
MOST_ENVS, LEAST_ENVS, POSITIONS = 16, 4, 4096


def block_envs(kind: Kind, num_envs: int) -> int:
    """Environments in a stack at most: for CNNs as many as keep its tensors near the cache (measured)."""
    return min(MOST_ENVS, max(LEAST_ENVS, POSITIONS // prod(kind))) if kind else num_envs


def kind_of(task: Task) -> Kind:
    """Stacks hold one kind: its number of spatial dimensions, and their size."""
    return task.train.x.shape[2:]


class Networks(Protocol):
    num_envs: int

    def reset(self, episodes: Sequence[HostEpisode], envs: Collection[int]) -> list[Measured]:
        """New hosts on new tasks for `envs`, the others as they were; returns each bare host's measure."""
        ...

    def run_epoch(self, orders: Sequence[Orders | None]) -> list[EpochResult | None]:
        """Prune, germinate, train and measure as ordered; None for environments that idle."""
        ...

    def finish_epoch(self, pruned: Sequence[tuple[int, ...]]) -> None:
        """Drop what the automatic edges pruned, and keep the state as the last good one."""
        ...

    def roll_back(self, env: int, pruned: tuple[int, ...]) -> Measured:
        """One environment's last good snapshot, moments cleared, without the pruned seeds; returns its measure."""
        ...


def make_networks(
    tasks: Sequence[Task],
    slots: int,
    num_envs: int,
    max_steps: int,
    optimisation: Optimisation,
    dtype: torch.dtype,
    device: torch.device,
    form: Literal["auto", "compiled", "stacked"] = "auto",
) -> Networks:
    """Machine code where that is to be had and asked for; one stack where that holds all that these tasks need.

    Raises `ConfigError` where `form` asks for machine code that does not exist.
    """
    hosts: dict[Kind, list[Host]] = {}
    for task in tasks:
        hosts.setdefault(kind_of(task), []).append(make_host(task, slots))
    has_code = device.type == "cpu" and all(compilable(host) for same in hosts.values() for host in same)
    require(
        has_code or form != "compiled",
        "env.form is compiled, which is for MLP hosts with built-in blueprints on a CPU: leave it at auto",
    )
    if has_code and form != "stacked":
        return CompiledNetworks(num_envs, optimisation, dtype)
    padded = {kind: padded_host(same) for kind, same in hosts.items()}
    if len(padded) == 1:
        ((kind, host),) = padded.items()
        if num_envs <= block_envs(kind, num_envs):
            return StackedNetworks(host, num_envs, max_steps, optimisation, dtype, device)
    return FleetNetworks(padded, num_envs, max_steps, optimisation, dtype, device)


@dataclass(frozen=True)
class Block:
    networks: StackedNetworks
    members: list[int]  # environments, by row; a last row that repeats the one before it idles


class FleetNetworks:
    """What `StackedNetworks` is, for environments with hosts of any kind."""

    def __init__(
        self,
        padded: Mapping[Kind, Host],
        num_envs: int,
        max_steps: int,
        optimisation: Optimisation,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.padded, self.num_envs = padded, num_envs
        self._settings = (max_steps, optimisation, dtype, device)
        self.blocks: list[Block] = []

    def reset(self, episodes: Sequence[HostEpisode], envs: Collection[int]) -> list[Measured]:
        """New hosts on new tasks for `envs`, the others as they were; returns each bare host's measure.

        Raises `ConfigError` where a part of the fleet would have to move to another stack.
        """
        if len(envs) == self.num_envs:
            self._stack(episodes)
        found: dict[int, Measured] = {}
        for block in self.blocks:
            new = [e for e in block.members if e in envs]
            if any(self.padded[kind_of(episodes[e].task)] is not block.networks.host for e in new):
                raise ConfigError(
                    "tasks of several kinds cannot be reset one environment at a time: give env.tasks of one kind, "
                    "or reset the whole fleet"
                )
            rows = [row for row, e in enumerate(block.members) if e in envs]
            measured = block.networks.reset([episodes[e] for e in block.members], rows) if rows else []
            found.update(zip(block.members, measured, strict=False))
        return [found.get(e, (0.0, 0.0)) for e in range(self.num_envs)]

    def _stack(self, episodes: Sequence[HostEpisode]) -> None:
        """Blocks for a whole new wave; stacks of the right size are used again."""
        old = {(b.networks.host, b.networks.num_envs): b.networks for b in self.blocks}
        self.blocks = []
        for kind, host in self.padded.items():
            of_kind = [e for e, episode in enumerate(episodes) if kind_of(episode.task) == kind]
            size = block_envs(kind, self.num_envs)
            for start in range(0, len(of_kind), size):
                members = of_kind[start : start + size]
                # A stack of one is computed in another order than a stack of many: never one.
                rows = members * 2 if len(members) == 1 < self.num_envs else members
                networks = old.pop((host, len(rows)), None) or StackedNetworks(host, len(rows), *self._settings)
                self.blocks.append(Block(networks, rows))
        self._at = {e: (b, b.members.index(e)) for b in self.blocks for e in b.members}

    def run_epoch(self, orders: Sequence[Orders | None]) -> list[EpochResult | None]:
        """Prune, germinate, train and measure as ordered; None for environments that idle."""
        results: list[EpochResult | None] = [None] * self.num_envs
        for block in self.blocks:
            own = self._own(block, orders, None)
            if all(order is None for order in own):
                continue
            for e, result in zip(block.members, block.networks.run_epoch(own), strict=True):
                results[e] = result if result is not None else results[e]
        return results

    def finish_epoch(self, pruned: Sequence[tuple[int, ...]]) -> None:
        """Drop what the automatic edges pruned, and keep the state as the last good one."""
        for block in self.blocks:
            block.networks.finish_epoch(self._own(block, pruned, ()))

    def roll_back(self, env: int, pruned: tuple[int, ...]) -> Measured:
        """One environment's last good snapshot, moments cleared, without the pruned seeds; returns its measure."""
        block, row = self._at[env]
        return block.networks.roll_back(row, pruned)

    @staticmethod
    def _own(block: Block, values: Sequence[T], idle: T) -> list[T]:
        """A block's values, by row."""
        repeats = len(block.members) - len(set(block.members))
        members = block.members[: len(block.members) - repeats]
        return [values[e] for e in members] + [idle] * repeats
