"""`make_networks`: chooses the backend of a fleet's networks; `MixedNetworks`: networks of hosts of several kinds."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Literal, NamedTuple, TypeVar

from actors.config import require
from actors.env.compiled.networks import NumbaNetworks, has_kernels
from actors.env.episode.epoch import EpochPlan, EpochResult, HostEpoch, TwinEpoch
from actors.env.episode.host_episode import HostEpisode
from actors.env.fleet_networks import FleetNetworks, NetworkSettings
from actors.env.hosts.host import Host
from actors.env.hosts.make import padded_host
from actors.env.stacked.networks import TorchNetworks
from actors.slots.contributions import EvalResult, Validation

T = TypeVar("T")
MAX_BLOCK_ENVS, MIN_BLOCK_ENVS, MAX_BLOCK_POSITIONS = 16, 4, 4096
LEAST_CHANNELS, LEAST_CHANNELS_OF_KERNELS = 4, 8
"""CNNs are padded to this width at least. Kernels leave padded channels out, so that fewer and larger stacks are
faster."""


class HostKind(NamedTuple):
    """Hosts of one kind share a stack."""

    space: tuple[int, ...]  # size of their input in space, () for MLPs
    most_channels: int
    """CNNs are padded to this width or less; 0 for MLPs, which are padded to the largest."""


def host_kind(host: Host, sample: tuple[int, ...], least_channels: int = LEAST_CHANNELS) -> HostKind:
    """Return the kind of a host on samples of this shape.

    Padding a CNN to twice its width costs up to four times the work, so that narrow and wide ones are not stacked: CNNs
    are padded to a power of two, or to `least_channels`, which is one.
    """
    return HostKind(sample[1:], max(least_channels, 1 << (host.width - 1).bit_length()) if sample[1:] else 0)


def block_envs(kind: HostKind, num_envs: int, device: str) -> int:
    """Return the largest number of environments in a block on a device of this type.

    For CNNs on a CPU it is limited so that the tensors of a block stay near the cache (measured). A GPU needs as much
    work as possible at once.
    """
    if device != "cpu":
        return num_envs
    positions = prod(kind.space)
    return min(MAX_BLOCK_ENVS, max(MIN_BLOCK_ENVS, MAX_BLOCK_POSITIONS // positions)) if kind.space else num_envs


@dataclass(eq=False)
class Block:
    """Networks of one kind, and the environment in each row of them.

    A row without an environment idles: it computes, and its results are ignored.
    """

    kind: HostKind
    networks: FleetNetworks
    envs: list[int | None]

    @property
    def idle(self) -> bool:
        """Whether no row has an environment."""
        return all(env is None for env in self.envs)

    def leave(self, envs: Collection[int]) -> list[int]:
        """Free the rows of these environments; return the rows."""
        rows = [row for row, env in enumerate(self.envs) if env in envs]
        for row in rows:
            self.envs[row] = None
        return rows

    def join(self, waiting: list[int]) -> list[int]:
        """Move environments from `waiting` into free rows, from the front; return the rows."""
        rows = [row for row, env in enumerate(self.envs) if env is None][: len(waiting)]
        for row in rows:
            self.envs[row] = waiting.pop(0)
        return rows

    def by_row(self, by_env: Sequence[T], default: T) -> list[T]:
        """Return the value of each row's environment; `default` for idle rows."""
        return [default if env is None else by_env[env] for env in self.envs]


class MixedNetworks(FleetNetworks):
    """`FleetNetworks` in blocks, each of one kind of host and at most `block_envs` environments.

    A reset may give an environment a host of another kind. It then leaves its row, which idles, and takes an idle row
    of its new kind: in the oldest block that has one, else in a new block. Environments that are not reset never move,
    since moving would change their results in the last bits. A block without environments is dropped. A kind
    therefore has few more rows than it once had environments.
    """

    def __init__(
        self,
        kinds: Sequence[HostKind],
        make_block: Callable[[HostKind, int], FleetNetworks],
        num_envs: int,
        device: str,
        least_channels: int = LEAST_CHANNELS,
    ) -> None:
        """`make_block(kind, num_envs)` makes the networks of one block, on a device of this type."""
        self.least_channels = least_channels
        self.kinds, self.make_block, self.num_envs, self.device = tuple(kinds), make_block, num_envs, device
        self.blocks: list[Block] = []

    def reset(self, episodes: Sequence[HostEpisode], envs: Collection[int]) -> dict[int, Validation]:
        kinds = {e: host_kind(episodes[e].host, episodes[e].task.shape, self.least_channels) for e in envs}
        stale = {block: block.leave(envs) for block in self.blocks}
        dropped = [block for block in self.blocks if block.idle]
        self.blocks = [block for block in self.blocks if not block.idle]
        spare = {(b.kind, b.networks.num_envs): b.networks for b in dropped}
        # Environments that are reset one at a time are usually followed by others: a new block has some spare rows.
        least = MIN_BLOCK_ENVS if self.blocks else 2
        for kind in self.kinds:
            waiting = sorted(e for e in envs if kinds[e] == kind)
            for block in self.blocks:
                if block.kind == kind:
                    stale[block] += block.join(waiting)
            for block in self._new_blocks(kind, waiting, least, spare):
                stale[block] = list(range(len(block.envs)))
                self.blocks.append(block)
        self._position = {e: (b, row) for b in self.blocks for row, e in enumerate(b.envs) if e is not None}
        results: dict[int, Validation] = {}
        for block in self.blocks:
            if rows := sorted(set(stale[block])):
                # An idle row holds a copy of another row's host, since its numbers must be finite.
                stand_in = next(episodes[e] for e in block.envs if e is not None)
                present = [stand_in if e is None else episodes[e] for e in block.envs]
                started = block.networks.reset(present, rows)
                results |= {e: started[row] for row in rows if (e := block.envs[row]) is not None}
        return results

    def _new_blocks(
        self, kind: HostKind, waiting: Sequence[int], least: int, spare: dict[tuple[HostKind, int], FleetNetworks]
    ) -> Iterator[Block]:
        """Yield blocks of at least `least` rows for the waiting environments; reuse `spare` networks of the same size.

        A stack of one rounds differently from a stack of many, so a block has one row only in a fleet of one.
        """
        size = block_envs(kind, self.num_envs, self.device)
        least = min(self.num_envs, least)
        for start in range(0, len(waiting), size):
            envs: list[int | None] = [*waiting[start : start + size]]
            envs += [None] * (least - len(envs))
            networks = spare.pop((kind, len(envs)), None) or self.make_block(kind, len(envs))
            yield Block(kind, networks, envs)

    def can_train_twin(self, env: int) -> bool:
        block, row = self._position[env]
        return block.networks.can_train_twin(row)

    def train_twin(self, env: int, epochs: Sequence[HostEpoch]) -> list[TwinEpoch]:
        block, row = self._position[env]
        return block.networks.train_twin(row, epochs)

    def run_epoch(self, plans: Sequence[EpochPlan | None]) -> list[EpochResult | None]:
        results: list[EpochResult | None] = [None] * self.num_envs
        for block in self.blocks:
            for e, result in zip(block.envs, block.networks.run_epoch(block.by_row(plans, None)), strict=True):
                if e is not None:
                    results[e] = result
        return results

    def commit(self, pruned: Sequence[tuple[int, ...]]) -> None:
        for block in self.blocks:
            block.networks.commit(block.by_row(pruned, ()))

    def roll_back(self, env: int, pruned: tuple[int, ...]) -> Validation:
        block, row = self._position[env]
        return block.networks.roll_back(row, pruned)

    def evaluate_test(self, alphas: Mapping[int, Mapping[int, float]]) -> dict[int, EvalResult]:
        results: dict[int, EvalResult] = {}
        for block in self.blocks:
            block_alphas = {row: alphas[e] for row, e in enumerate(block.envs) if e is not None and e in alphas}
            if block_alphas:
                evaluated = block.networks.evaluate_test(block_alphas)
                results |= {e: r for row, r in evaluated.items() if (e := block.envs[row]) is not None}
        return results


def make_networks(
    hosts: Sequence[tuple[HostKind, Host]],
    column_slots: int,
    num_envs: int,
    settings: NetworkSettings,
    backend: Literal["auto", "numba", "torch"],
    kernels: bool,
) -> FleetNetworks:
    """Make the networks of a fleet; `hosts` are all that its episodes may have, each with its kind.

    If `kernels`, hosts that have kernels are trained on the CPU, also where `settings` name another device.

    Raise `ConfigError` if `backend` is `numba` and a host has no kernels.
    """
    padded: dict[HostKind, Host] = {}
    for kind, host in hosts:
        padded[kind] = padded_host(padded.get(kind, host), host)
    with_kernels = {kind for kind, host in padded.items() if kernels and has_kernels(host)}
    require(
        backend != "numba" or with_kernels == set(padded),
        "env.backend is numba, which needs MLP hosts with built-in blueprints on a CPU: set it to auto",
    )

    def make(kind: HostKind, num_envs: int) -> FleetNetworks:
        if backend != "torch" and kind in with_kernels:
            return NumbaNetworks(num_envs, column_slots, settings.dtype)
        return TorchNetworks(padded[kind], column_slots, num_envs, settings)

    device = settings.device.type
    if len(padded) == 1:
        (kind,) = padded
        if num_envs <= block_envs(kind, num_envs, device):
            return make(kind, num_envs)
    return MixedNetworks(list(padded), make, num_envs, device, settings.least_channels)
