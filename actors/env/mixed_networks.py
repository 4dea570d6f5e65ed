"""`MixedNetworks`: a fleet's networks by kind of host, each kind in blocks of its own.

MLPs on a CPU run as machine code. Elsewhere hosts of one family and one size in space share a stack, padded to its
widest. Which hosts an environment gets changes
with every reset, and so do the stacks; large stacks are cut into blocks that fit the cache.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Literal, Protocol, TypeVar

from actors.config import require
from actors.env.host_episode import EpochPlan, EpochResult, HostEpisode
from actors.env.hosts.make import make_host, padded_host
from actors.env.hosts.mlp import Host
from actors.env.kernels.networks import NumbaNetworks, has_kernels
from actors.env.slots.growth_state import EvalResult
from actors.env.stacked.networks import TorchNetworks
from actors.env.stacked.parameters import NetworkSettings
from actors.env.tasks import Task

T = TypeVar("T")
HostKind = tuple[int, ...]
MAX_BLOCK_ENVS, MIN_BLOCK_ENVS, MAX_BLOCK_POSITIONS = 16, 4, 4096


def block_envs(kind: HostKind, num_envs: int) -> int:
    """Environments in a stack at most: for CNNs as many as keep its tensors near the cache (measured)."""
    return min(MAX_BLOCK_ENVS, max(MIN_BLOCK_ENVS, MAX_BLOCK_POSITIONS // prod(kind))) if kind else num_envs


def host_kind(task: Task) -> HostKind:
    """Stacks hold one kind: its number of spatial dimensions, and their size."""
    return task.train.x.shape[2:]


class Networks(Protocol):
    num_envs: int

    def reset(self, episodes: Sequence[HostEpisode], envs: Collection[int]) -> list[EvalResult]:
        """New hosts on new tasks for `envs`, the others as they were; returns each bare host's measure."""
        ...

    def run_epoch(self, orders: Sequence[EpochPlan | None]) -> list[EpochResult | None]:
        """Prune, germinate, train and measure as ordered; None for environments that idle."""
        ...

    def commit(self, pruned: Sequence[tuple[int, ...]]) -> None:
        """Drop what the automatic edges pruned, and keep the state as the last good one."""
        ...

    def roll_back(self, env: int, pruned: tuple[int, ...]) -> EvalResult:
        """One environment's last good snapshot, moments cleared, without the pruned seeds; returns its measure."""
        ...

    def test(self, on: Mapping[int, Mapping[int, float]]) -> dict[int, EvalResult]:
        """What each environment of `on` is worth on its test rows, with these slots at these alphas."""
        ...


def make_networks(
    tasks: Sequence[Task],
    slots: int,
    num_envs: int,
    settings: NetworkSettings,
    backend: Literal["auto", "numba", "torch"] = "auto",
) -> Networks:
    """Machine code or tensors for all that these tasks need, in one piece where one holds it.

    Raises `ConfigError` if `backend` is `numba` and a host has no kernels.
    """
    hosts: dict[HostKind, list[Host]] = {}
    for task in tasks:
        hosts.setdefault(host_kind(task), []).append(make_host(task, slots))
    padded = {kind: padded_host(same) for kind, same in hosts.items()}
    coded = {kind for kind, host in padded.items() if settings.device.type == "cpu" and has_kernels(host)}
    require(
        backend != "numba" or coded == set(padded),
        "env.backend is numba, which needs MLP hosts with built-in blueprints on a CPU: set it to auto",
    )
    maker = NetworksFactory(padded, frozenset() if backend == "torch" else frozenset(coded), settings)
    if len(padded) == 1:
        ((kind, _),) = padded.items()
        if num_envs <= block_envs(kind, num_envs):
            return maker.make(kind, num_envs)
    return MixedNetworks(maker, num_envs)


@dataclass(frozen=True)
class NetworksFactory:
    """Makes what trains the environments of one kind."""

    padded: Mapping[HostKind, Host]
    coded: frozenset[HostKind]  # kinds with machine code
    settings: NetworkSettings

    def make(self, kind: HostKind, num_envs: int) -> Networks:
        if kind in self.coded:
            return NumbaNetworks(num_envs, self.settings.optimizer_settings, self.settings.dtype)
        return TorchNetworks(self.padded[kind], num_envs, self.settings)


@dataclass(eq=False)
class Block:
    """A stack and the environments in its rows. A row without one idles: it computes, and nobody reads it."""

    kind: HostKind
    networks: Networks
    members: list[int | None]  # by row

    @property
    def idle(self) -> bool:
        return all(e is None for e in self.members)

    def own(self, values: Sequence[T], idle: T) -> list[T]:
        """The fleet's values, by row."""
        return [idle if e is None else values[e] for e in self.members]

    def leave(self, envs: Collection[int]) -> list[int]:
        """Rows that idle from now on."""
        rows = [row for row, e in enumerate(self.members) if e in envs]
        for row in rows:
            self.members[row] = None
        return rows

    def join(self, waiting: list[int]) -> list[int]:
        """Idle rows taken by the first of `waiting`, which are taken off that list."""
        rows = [row for row, e in enumerate(self.members) if e is None][: len(waiting)]
        for row in rows:
            self.members[row] = waiting.pop(0)
        return rows


class MixedNetworks:
    """What `TorchNetworks` is, for environments with hosts of any kind.

    An environment that is reset may come to a host of another kind: it leaves its row, which then idles, and takes an
    idle row of its new kind, in the oldest block that has one, or else a row of a new block. A block without members
    goes. So a kind has at most as many rows as it once had members, and a few.
    """

    def __init__(self, maker: NetworksFactory, num_envs: int) -> None:
        self.maker, self.num_envs = maker, num_envs
        self.blocks: list[Block] = []

    def reset(self, episodes: Sequence[HostEpisode], envs: Collection[int]) -> list[EvalResult]:
        """New hosts on new tasks for `envs`, the others as they were; returns each bare host's measure."""
        stale = {block: block.leave(envs) for block in self.blocks}
        gone = [block for block in self.blocks if block.idle]
        self.blocks = [block for block in self.blocks if not block.idle]
        spare = {(b.kind, b.networks.num_envs): b.networks for b in gone}
        # Who comes alone is followed by others: while the fleet goes on, a new block has some rows to spare.
        least = MIN_BLOCK_ENVS if self.blocks else 2
        for kind in self.maker.padded:
            waiting = sorted(e for e in envs if host_kind(episodes[e].task) == kind)
            for block in self.blocks:
                if block.kind == kind:
                    stale[block] += block.join(waiting)
            for block in self._new_blocks(kind, waiting, least, spare):
                stale[block] = list(range(len(block.members)))
                self.blocks.append(block)
        self._at = {e: (b, row) for b in self.blocks for row, e in enumerate(b.members) if e is not None}
        found: dict[int | None, EvalResult] = {}
        for block in self.blocks:
            if rows := sorted(set(stale[block])):
                # An idle row holds a copy of a member's host: it must be something finite.
                stand_in = next(episodes[e] for e in block.members if e is not None)
                present = [stand_in if e is None else episodes[e] for e in block.members]
                found.update(zip(block.members, block.networks.reset(present, rows), strict=True))
        return [found.get(e, (0.0, 0.0)) for e in range(self.num_envs)]

    def _new_blocks(
        self, kind: HostKind, waiting: Sequence[int], least: int, spare: dict[tuple[HostKind, int], Networks]
    ) -> Iterator[Block]:
        """Blocks of at least so many rows for those who wait; a `spare` stack of the right size is used again.

        A stack of one is computed in another order than a stack of many: never one, but in a fleet of one.
        """
        size = block_envs(kind, self.num_envs)
        least = min(self.num_envs, least)
        for start in range(0, len(waiting), size):
            members: list[int | None] = [*waiting[start : start + size]]
            members += [None] * (least - len(members))
            networks = spare.pop((kind, len(members)), None) or self.maker.make(kind, len(members))
            yield Block(kind, networks, members)

    def run_epoch(self, orders: Sequence[EpochPlan | None]) -> list[EpochResult | None]:
        """Prune, germinate, train and measure as ordered; None for environments that idle."""
        results: list[EpochResult | None] = [None] * self.num_envs
        for block in self.blocks:
            own = block.own(orders, None)
            if all(order is None for order in own):
                continue
            for e, result in zip(block.members, block.networks.run_epoch(own), strict=True):
                if e is not None:
                    results[e] = result
        return results

    def commit(self, pruned: Sequence[tuple[int, ...]]) -> None:
        """Drop what the automatic edges pruned, and keep the state as the last good one."""
        for block in self.blocks:
            block.networks.commit(block.own(pruned, ()))

    def roll_back(self, env: int, pruned: tuple[int, ...]) -> EvalResult:
        """One environment's last good snapshot, moments cleared, without the pruned seeds; returns its measure."""
        block, row = self._at[env]
        return block.networks.roll_back(row, pruned)

    def test(self, on: Mapping[int, Mapping[int, float]]) -> dict[int, EvalResult]:
        """What each environment of `on` is worth on its test rows, with these slots at these alphas."""
        found: dict[int, EvalResult] = {}
        for block in self.blocks:
            own = {row: on[e] for row, e in enumerate(block.members) if e is not None and e in on}
            if own:
                found |= {e: m for row, m in block.networks.test(own).items() if (e := block.members[row]) is not None}
        return found
