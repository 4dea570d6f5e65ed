"""Access to the parameters inside a fleet of MLP hosts, by name and without padding, for either backend."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from actors.blueprints.blends import gate_shapes
from actors.blueprints.blueprint import Param
from actors.blueprints.vector import MLP_BLUEPRINTS
from actors.env.compiled.networks import NumbaNetworks
from actors.env.hosts.column import column_host
from actors.env.seed_fleet import SeedTrainingFleet
from actors.env.stacked.networks import TorchNetworks
from actors.env.stacked.param_bank import ParamBank
from tests.support.env.reference_env import ReferenceEnv, ReferenceFleet
from tests.support.env.reference_network import ParameterGroup

Backend = Literal["numba", "torch"]
BACKENDS: tuple[Backend, ...] = ("numba", "torch")
Arrays = dict[str, NDArray[Any]]


class Vectors(NamedTuple):
    """Views of the parameters and moments of a host or seed; writing to them changes the fleet."""

    params: Arrays
    first: Arrays
    second: Arrays
    steps: list[NDArray[Any]]  # one counter for each bank that holds the parameters


def host(fleet: SeedTrainingFleet, env: int) -> Vectors:
    shapes = fleet.episodes[env].host.shapes()
    networks = fleet.networks
    if isinstance(networks, NumbaNetworks):
        own = networks.networks[env]
        m = own.moments
        flats = (own.params, m.host_first, m.host_second)
        return Vectors(*(_flat_views(shapes, flat) for flat in flats), [m.steps[-1:]])
    assert isinstance(networks, TorchNetworks)
    bank = networks.hosts
    stacked = (bank.params, bank.first_moment, bank.second_moment)
    return Vectors(*(_cut(bank.views(t), shapes, env) for t in stacked), [bank.steps.numpy()[env : env + 1]])


def seed(fleet: SeedTrainingFleet, env: int, slot: int) -> Vectors:
    if isinstance(fleet.networks, TorchNetworks) and slot >= fleet.config.slots:
        return _stacked_column(fleet, fleet.networks, env, slot)
    episode = fleet.episodes[env]
    own, column_slot = episode.lifecycle.slots[slot], slot - episode.host.slots
    networks = fleet.networks
    if isinstance(networks, NumbaNetworks) and column_slot >= 0:
        network = networks.networks[env]
        columns, shapes = network.columns.arrays, network.columns.hosts[column_slot].shapes()
        rows = [t[column_slot] for t in (columns.q, columns.first_moment, columns.second_moment)]
        return Vectors(*(_flat_views(shapes, row) for row in rows), [network.moments.steps[slot : slot + 1]])
    width = episode.host.slot_width(slot)
    shapes, gate = MLP_BLUEPRINTS[own.blueprint].shapes(width), gate_shapes(own.blend, width)
    if isinstance(networks, NumbaNetworks):
        network = networks.networks[env]
        m = network.moments
        flats = [t[slot] for t in (network.seeds.q, m.seed_first, m.seed_second)]
        start = len(flats[0]) - width - 1
        views = [_flat_views(shapes, flat) | _flat_views(gate, flat[start:]) for flat in flats]
        return Vectors(*views, [m.steps[slot : slot + 1]])
    assert isinstance(networks, TorchNetworks)
    row, (blueprint, gates) = networks.row(env, slot), networks._banks_of(env, slot)
    params, first, second = (
        _cut(blueprint.views(a), shapes, row) | _cut(gates.views(b), gate, row)
        for a, b in zip(_tensors(blueprint), _tensors(gates), strict=True)
    )
    return Vectors(params, first, second, [bank.steps.numpy()[row : row + 1] for bank in (blueprint, gates)])


def _stacked_column(fleet: SeedTrainingFleet, networks: TorchNetworks, env: int, slot: int) -> Vectors:
    episode, row, (bank,) = fleet.episodes[env], networks.row(env, slot), networks._banks_of(env, slot)
    column = episode.host.family.columns[episode.lifecycle.slots[slot].blueprint]
    assert column is not None
    shapes = column_host(episode.host, column.scale).shapes()
    views = (_cut(bank.views(t), shapes, row) for t in _tensors(bank))
    return Vectors(*views, [bank.steps.numpy()[row : row + 1]])


def _tensors(bank: ParamBank) -> tuple[Tensor, Tensor, Tensor]:
    return bank.params, bank.first_moment, bank.second_moment


def _flat_views(shapes: dict[str, Param], flat: NDArray[Any]) -> Arrays:
    views, start = {}, 0
    for name, p in shapes.items():
        views[name] = flat[start : start + p.size].reshape(p.shape)
        start += p.size
    return views


def _cut(views: dict[str, Any], shapes: dict[str, Param], row: int) -> Arrays:
    return {name: views[name].numpy()[(row, *(slice(n) for n in p.shape))] for name, p in shapes.items()}


def groups(fleet: SeedTrainingFleet, reference: ReferenceFleet) -> Iterator[tuple[Vectors, ParameterGroup]]:
    """Yield every host and seed of a running episode, in the fleet and in the reference."""
    for e, env in enumerate(reference.envs):
        if fleet._running[e]:  # the torch backend continues to train hosts whose episodes have ended
            yield from env_groups(fleet, e, env)


def env_groups(fleet: SeedTrainingFleet, e: int, env: ReferenceEnv) -> Iterator[tuple[Vectors, ParameterGroup]]:
    yield host(fleet, e), env.network.group
    for s, grown in env.network.seeds.items():
        yield seed(fleet, e, s), grown.group


def assert_same_params(fleet: SeedTrainingFleet, reference: ReferenceFleet, rtol: float, atol: float) -> None:
    for mine, theirs in groups(fleet, reference):
        assert mine.params.keys() == theirs.params.keys()
        for name, p in theirs.params.items():
            np.testing.assert_allclose(mine.params[name], p.detach().numpy(), rtol=rtol, atol=atol, err_msg=name)


def synchronize(fleet: SeedTrainingFleet, reference: ReferenceFleet) -> None:
    """Copy the reference's parameters, moments and step counters to the fleet."""
    for mine, theirs in groups(fleet, reference):
        for name, p in theirs.params.items():
            state = theirs.optimizer.state.get(p, {})
            mine.params[name][...] = p.detach().numpy()
            mine.first[name][...] = state["exp_avg"].numpy() if state else 0.0
            mine.second[name][...] = state["exp_avg_sq"].numpy() if state else 0.0
            for steps in mine.steps:
                steps[...] = int(state["step"]) if state else 0


def break_host(fleet: SeedTrainingFleet, env: int) -> None:
    """Set the parameters of one host to NaN."""
    _break(host(fleet, env))


def break_seed(fleet: SeedTrainingFleet, env: int, slot: int) -> None:
    """Set the parameters of one seed or column to NaN."""
    _break(seed(fleet, env, slot))


def _break(vectors: Vectors) -> None:
    for values in vectors.params.values():
        values[...] = np.nan
