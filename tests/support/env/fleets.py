"""Fleets beside their reference: the same actions, steps that are compared, and access to the parameters inside a fleet
by name and without padding, for every backend and kind of host."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from actors.blueprints.blends import gate_shapes
from actors.blueprints.blueprint import Param
from actors.config import EnvConfig
from actors.env.compiled.networks import NumbaNetworks
from actors.env.hosts.host import column_host
from actors.env.mixed_networks import MixedNetworks
from actors.env.seed_fleet import SeedTrainingFleet
from actors.env.stacked.networks import TorchNetworks
from actors.env.stacked.param_bank import ParamBank
from actors.policy.baselines import RandomPolicy
from actors.policy.state import PolicyState, StateSizes
from actors.types.fleet_step import FleetStep
from tests.support.env.reference_env import ReferenceFleet
from tests.support.env.reference_network import ParameterGroup

Backend = Literal["numba", "torch"]
BACKENDS: tuple[Backend, ...] = ("numba", "torch")
Arrays = dict[str, NDArray[Any]]
HOST = -1
"""In the place of a slot."""


class Vectors(NamedTuple):
    """Views of the parameters and moments of a host or seed; writing to them changes the fleet."""

    params: Arrays
    first: Arrays
    second: Arrays
    steps: list[NDArray[Any]]  # one counter for each bank that holds the parameters


def started_pair(
    config: EnvConfig, seeds: Sequence[int], dtype: torch.dtype = torch.float64
) -> tuple[ReferenceFleet, SeedTrainingFleet]:
    """Make a fleet and its reference, and begin these episodes in both."""
    made = ReferenceFleet(config, len(seeds), 0, dtype), SeedTrainingFleet(config, len(seeds), 0, dtype)
    for fleet in made:
        fleet.reset(seeds)
    return made


def random_actions(fleet: SeedTrainingFleet, seen: FleetStep, noise: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return legal actions of the random policy."""
    state = PolicyState.zeros(StateSizes(), 0)
    policy = RandomPolicy(fleet.spaces)
    return policy.act(seen.obs, seen.blueprint_indices, seen.masks, state, noise)[0].actions


def assert_same_step(a: FleetStep, b: FleetStep, rtol: float, atol: float) -> None:
    exact = ([*step.masks, step.blueprint_indices, step.terminated] for step in (a, b))
    for mine, theirs in zip(*exact, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    np.testing.assert_allclose(a.obs, b.obs, rtol=rtol, atol=atol)
    np.testing.assert_allclose(a.rewards, b.rewards, rtol=rtol, atol=atol)
    assert a.end_reasons == b.end_reasons


def stack(fleet: SeedTrainingFleet, env: int) -> tuple[NumbaNetworks | TorchNetworks, int]:
    """Return the networks that hold an environment, and its row there."""
    networks: Any = fleet.networks
    if isinstance(networks, MixedNetworks):
        block, env = networks._position[env]
        networks = block.networks
    return networks, env


def host(fleet: SeedTrainingFleet, env: int) -> Vectors:
    networks, row = stack(fleet, env)
    if isinstance(networks, TorchNetworks):
        return _of_banks(fleet, env, HOST)
    own = networks.networks[row]
    m = own.moments
    flats = (own.params, m.host_first, m.host_second)
    return Vectors(*(_flat_views(fleet.episodes[env].host.shapes(), flat) for flat in flats), [m.steps[-1:]])


def seed(fleet: SeedTrainingFleet, env: int, slot: int) -> Vectors:
    networks, row = stack(fleet, env)
    if isinstance(networks, TorchNetworks):
        return _of_banks(fleet, env, slot)
    network, (shapes, gate) = networks.networks[row], _seed_shapes(fleet, env, slot)
    steps = [network.moments.steps[slot : slot + 1]]
    column_slot = slot - fleet.episodes[env].host.slots
    if column_slot >= 0:
        columns = network.columns.arrays
        rows = [t[column_slot] for t in (columns.q, columns.first_moment, columns.second_moment)]
        return Vectors(*(_flat_views(shapes, flat) for flat in rows), steps)
    flats = [t[slot] for t in (network.seeds.q, network.moments.seed_first, network.moments.seed_second)]
    start = len(flats[0]) - fleet.episodes[env].host.slot_width(slot) - 1
    return Vectors(*(_flat_views(shapes, flat) | _flat_views(gate, flat[start:]) for flat in flats), steps)


def banks(fleet: SeedTrainingFleet, env: int, slot: int) -> Iterator[tuple[ParamBank, dict[str, Param], int]]:
    """Yield (bank of the torch backend, shapes without padding, row) of a host, or of a seed and its gate."""
    networks, row = stack(fleet, env)
    if slot == HOST:
        yield networks.hosts, fleet.episodes[env].host.shapes(), row
    else:
        for bank, shapes in zip(networks._banks_of(row, slot), _seed_shapes(fleet, env, slot), strict=False):
            yield bank, shapes, networks.row(row, slot)


def _of_banks(fleet: SeedTrainingFleet, env: int, slot: int) -> Vectors:
    values: tuple[Arrays, Arrays, Arrays] = {}, {}, {}
    steps = []
    for bank, shapes, row in banks(fleet, env, slot):
        for views, tensor in zip(values, (bank.params, bank.first_moment, bank.second_moment), strict=True):
            stacked = bank.views(tensor)
            views |= {name: stacked[name].numpy()[(row, *(slice(n) for n in p.shape))] for name, p in shapes.items()}
        steps.append(bank.steps.numpy()[row : row + 1])
    return Vectors(*values, steps)


def _seed_shapes(fleet: SeedTrainingFleet, env: int, slot: int) -> tuple[dict[str, Param], dict[str, Param]]:
    """Return the shapes of a seed or column, and those of its gate."""
    host, own = fleet.episodes[env].host, fleet.episodes[env].lifecycle.slots[slot]
    column = host.family.columns[own.blueprint]
    if column is not None:
        return column_host(host, column.scale).shapes(), {}
    width = host.slot_width(slot)
    return host.family.blueprints[own.blueprint].shapes(width), gate_shapes(own.blend, width)


def _flat_views(shapes: dict[str, Param], flat: NDArray[Any]) -> Arrays:
    views, start = {}, 0
    for name, p in shapes.items():
        views[name] = flat[start : start + p.size].reshape(p.shape)
        start += p.size
    return views


def groups(fleet: SeedTrainingFleet, reference: ReferenceFleet) -> Iterator[tuple[Vectors, ParameterGroup]]:
    """Yield every host and seed of a running episode, in the fleet and in the reference."""
    for e, env in enumerate(reference.envs):
        if reference.running[e]:  # the torch backend continues to train hosts whose episodes have ended
            yield host(fleet, e), env.network.group
            for s, grown in env.network.seeds.items():
                yield seed(fleet, e, s), grown.group


def running_statistics(fleet: SeedTrainingFleet, reference: ReferenceFleet) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield those of the BatchNorms of running hosts and their columns, in the fleet and in the reference."""
    for e in np.flatnonzero(reference.running).tolist():
        networks, row = stack(fleet, e)
        for name, moments in reference.envs[e].network.running.items():
            statistics, own = networks.running, row
            if name.startswith("column"):
                place, name = name.removeprefix("column").split(".")
                (bank,) = networks._banks_of(row, int(place))
                statistics, own = bank.running, networks.row(row, int(place))
            for mine, theirs in zip(statistics[name], moments, strict=True):
                yield mine[own, : len(theirs)], theirs


def assert_same_params(fleet: SeedTrainingFleet, reference: ReferenceFleet, rtol: float, atol: float) -> None:
    """Compare parameters of hosts, seeds and gates, and running statistics."""
    for mine, theirs in groups(fleet, reference):
        assert mine.params.keys() == theirs.params.keys()
        for name, p in theirs.params.items():
            np.testing.assert_allclose(mine.params[name], p.detach().numpy(), rtol=rtol, atol=atol, err_msg=name)
    for own, other in running_statistics(fleet, reference):
        np.testing.assert_allclose(own.numpy(), other.numpy(), rtol=rtol, atol=atol)


def synchronize(fleet: SeedTrainingFleet, reference: ReferenceFleet) -> None:
    """Copy the reference's parameters, moments, step counters and running statistics to the fleet."""
    for mine, theirs in groups(fleet, reference):
        for name, p in theirs.params.items():
            state = theirs.optimizer.state.get(p, {})
            mine.params[name][...] = p.detach().numpy()
            mine.first[name][...] = state["exp_avg"].numpy() if state else 0.0
            mine.second[name][...] = state["exp_avg_sq"].numpy() if state else 0.0
            for steps in mine.steps:
                steps[...] = int(state["step"]) if state else 0
    for own, other in running_statistics(fleet, reference):
        own[:] = other


def break_params(fleet: SeedTrainingFleet, env: int, slot: int = HOST) -> None:
    """Set the parameters of one host, seed or column to NaN."""
    for values in (host(fleet, env) if slot == HOST else seed(fleet, env, slot)).params.values():
        values[...] = np.nan
