"""Fleets of stacked hosts equal the one-environment reference, and environments do not affect each other.

Widths, horizons and minibatches per epoch are drawn, and columns grow beside hosts.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from actors.config import EnvConfig
from actors.env import mixed_networks
from actors.env.hosts.column import column_host
from actors.env.mixed_networks import MixedNetworks
from actors.env.seed_fleet import SeedTrainingFleet
from actors.env.stacked.column_bank import ColumnBank
from actors.env.stacked.networks import TorchNetworks
from actors.policy.baselines import RandomPolicy
from actors.policy.state import PolicyState, StateSizes
from actors.rollout.wave import PolicyNoise
from actors.slots.stage import Stage
from actors.types.fleet_step import FleetStep
from tests.support.env import cnn
from tests.support.env.reference_env import ReferenceFleet
from tests.support.env.reference_network import ParameterGroup, ReferenceColumn, ReferenceNetwork

torch.set_num_threads(1)
ROOT = Path(__file__).parents[3]
NO_STATE = PolicyState.zeros(StateSizes(), 0)
MIXES = {
    "vectors": ("spirals", "clusters", "parity"),
    "sequences": ("sequences", "wide_sequences"),
    "images": ("images", "wide_images"),
    "all": ("sequences", "images", "spirals"),
}


@pytest.fixture(autouse=True)
def _known_tasks() -> Iterator[None]:
    cnn.register()
    yield
    cnn.forget()


RANGES: dict[str, Any] = {"host_width": (3, 9), "horizon_epochs": (7, 10), "inner_steps": (2, 4)}


def first(*values: Any, later: Sequence[Any]) -> list[Any]:
    """Parameters: `values`, and those that are left to `make test-long`."""
    return [*values, *(pytest.param(*(v if isinstance(v, tuple) else (v,)), marks=pytest.mark.long) for v in later)]


def config(tasks: Sequence[str], **settings: Any) -> EnvConfig:
    defaults = RANGES | {"batch_size": 16, "budget_ratio": 40.0, "backend": "torch"}
    return EnvConfig(tasks=tuple(tasks), **(defaults | settings))


def reference_fleet(config: EnvConfig, num_envs: int, dtype: torch.dtype) -> ReferenceFleet:
    fleet = ReferenceFleet(config, num_envs, run_seed=0)
    for env in fleet.envs:
        env.dtype = dtype
    return fleet


def stacks(fleet: SeedTrainingFleet) -> Iterator[tuple[int, TorchNetworks, int]]:
    """Yield (environment, networks of its block, its row there)."""
    if isinstance(fleet.networks, MixedNetworks):
        for e in range(fleet.num_envs):
            block, row = fleet.networks._position[e]
            yield e, block.networks, row
    else:
        assert isinstance(fleet.networks, TorchNetworks)
        yield from ((e, fleet.networks, e) for e in range(fleet.num_envs))


def blocks(fleet: SeedTrainingFleet) -> list[list[int]]:
    """Return the environments of each stack."""
    together: dict[int, list[int]] = {}
    for e, n, _ in stacks(fleet):
        together.setdefault(id(n), []).append(e)
    return list(together.values())


def groups(network: ReferenceNetwork, n: TorchNetworks, row: int) -> Iterator[tuple[Any, ParameterGroup, int]]:
    """Yield (bank, the reference's parameters, row) of a host and its seeds."""
    yield n.hosts, network.group, row
    for s, seed in network.seeds.items():
        for bank in n._banks_of(row, s):
            yield bank, seed.group, n.row(row, s)


def running(network: ReferenceNetwork, n: TorchNetworks, row: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the running statistics of a host and its columns, ours and the reference's."""
    for name, moments in network.running.items():
        statistics, own = n.running, row
        if name.startswith("column"):
            place, name = name.removeprefix("column").split(".")
            (bank,) = n._banks_of(row, int(place))
            assert isinstance(bank, ColumnBank)
            statistics, own = bank.running, n.row(row, int(place))
        for mine, theirs in zip(statistics[name], moments, strict=True):
            yield mine[own, : len(theirs)], theirs


def assert_same_state(fleet: SeedTrainingFleet, reference: ReferenceFleet, rtol: float, atol: float) -> None:
    """Compare parameters of hosts, seeds and gates, and running statistics."""
    for e, n, row in stacks(fleet):
        if not reference.running[e]:
            continue
        network = reference.envs[e].network
        for bank, trained, own in groups(network, n, row):
            views = bank.views(bank.params)
            for name, p in trained.params.items():
                if name in views:
                    mine = views[name][own][tuple(slice(size) for size in p.shape)]
                    torch.testing.assert_close(mine, p.detach(), rtol=rtol, atol=atol)
        for mine, theirs in running(network, n, row):
            torch.testing.assert_close(mine, theirs, rtol=rtol, atol=atol)


def synchronize(fleet: SeedTrainingFleet, reference: ReferenceFleet) -> None:
    """Copy the reference's parameters, moments, step counters and running statistics to the fleet."""
    for e, n, row in stacks(fleet):
        network = reference.envs[e].network
        for bank, trained, own in groups(network, n, row):
            views = [bank.views(t) for t in (bank.params, bank.first_moment, bank.second_moment)]
            for name, p in trained.params.items():
                if name not in views[0]:
                    continue
                place = tuple(slice(size) for size in p.shape)
                state = trained.optimizer.state.get(p, {})
                values = (p.detach(), *(state.get(k, torch.zeros_like(p)) for k in ("exp_avg", "exp_avg_sq")))
                for view, value in zip(views, values, strict=True):
                    view[name][own][place] = value
                bank.steps[own] = int(state.get("step", torch.zeros(())))
        for mine, theirs in running(network, n, row):
            mine[:] = theirs


def assert_same_step(a: FleetStep, b: FleetStep, rtol: float, atol: float) -> None:
    for mine, theirs in zip(a.masks, b.masks, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    np.testing.assert_array_equal(a.terminated, b.terminated)
    np.testing.assert_allclose(a.obs, b.obs, rtol=rtol, atol=atol)
    np.testing.assert_allclose(a.rewards, b.rewards, rtol=rtol, atol=atol)


def act(policy: RandomPolicy, seen: FleetStep, noise: NDArray[np.float64]) -> NDArray[np.int64]:
    return policy.act(seen.obs, seen.blueprint_indices, seen.masks, NO_STATE, noise)[0].actions


@pytest.mark.parametrize("mix", first("vectors", "all", later=["sequences", "images"]))
def test_whole_episodes_equal_the_reference_in_double_precision(mix: str) -> None:
    c = config(MIXES[mix])
    reference, fleet = reference_fleet(c, 6, torch.float64), SeedTrainingFleet(c, 6, 0, torch.float64)
    seeds = range(40, 46)
    policy, noise = RandomPolicy(fleet.spaces), PolicyNoise(1, seeds, 6)
    a, b = reference.reset(seeds), fleet.reset(seeds)
    together = [{fleet.episodes[e].settings.inner_steps for e in rows} for rows in blocks(fleet)]
    assert max(map(len, together)) > 1  # different numbers of minibatches in one stack
    columns = 0
    for _ in range(c.max_horizon_epochs):
        assert_same_step(a, b, rtol=1e-6, atol=1e-7)  # observations are fp32
        actions = act(policy, a, noise.step())
        a, b = reference.step(actions), fleet.step(actions)
        assert_same_state(fleet, reference, rtol=1e-9, atol=1e-9)
        columns += sum(isinstance(s, ReferenceColumn) for env in reference.envs for s in env.network.seeds.values())
    assert columns >= 10


@pytest.mark.parametrize(
    ("task", "blend"),
    first(("sequences", 0), ("images", 1), ("sequences", 2), later=[("images", 0), ("sequences", 1), ("images", 2)]),
)
def test_every_blueprint_and_blend_equals_the_reference(task: str, blend: int) -> None:
    c = config([task], horizon_epochs=6)
    script = [(1, 2), (5, 2), (5, 2), (0, 0), (2, 2), (0, 0)]
    follow(c, 6, [[(op, slot, e + 1, blend, 1 if op == 2 else 2, 1) for e in range(6)] for op, slot in script])


@pytest.mark.parametrize("task", first("spirals", "sequences", later=["images"]))
def test_every_column_equals_the_reference_beside_seeds_of_the_stream(task: str) -> None:
    """Each size of column learns alone, beside a seed that learns, in the host beside it, and beside another column.

    It grows in four of five environments; the last has the seed in the stream alone.
    """
    script = [(1, 3), (5, 3), (1, 1), (5, 1), (5, 3), (1, 4), (5, 4), (5, 1), (5, 4)]  # germinate, train, blend
    actions = [[(op, slot, 5 if slot == 1 else 7 + e, 0, 1, 1) for e in range(4)] for op, slot in script]
    for row, (op, slot) in zip(actions, script, strict=True):
        row.append((op, slot, 5, 0, 2, 1) if slot == 1 else (0,) * 6)
    follow(config([task], horizon_epochs=len(script) + 1), 5, actions)


def follow(c: EnvConfig, envs: int, script: Sequence[Sequence[tuple[int, ...]]]) -> None:
    """Play a script of legal actions in both fleets, and compare them."""
    reference, fleet = reference_fleet(c, envs, torch.float64), SeedTrainingFleet(c, envs, 0, torch.float64)
    reference.reset(range(envs))
    fleet.reset(range(envs))
    for actions in script:
        a, b = reference.step(np.array(actions)), fleet.step(np.array(actions))
        assert not fleet.illegal
        assert_same_step(a, b, rtol=1e-6, atol=1e-7)
        assert_same_state(fleet, reference, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("mix", first("sequences", later=["images"]))
def test_each_epoch_equals_the_reference_in_single_precision(mix: str) -> None:
    """Synchronized after each epoch, so that differences are those of one epoch.

    Parameters that a norm takes out again have a gradient of rounding alone, which Adam makes a step of, so that
    parameters themselves agree in bulk only.
    """
    c = config(MIXES[mix])
    reference, fleet = reference_fleet(c, 5, torch.float32), SeedTrainingFleet(c, 5, 0)
    policy, noise = RandomPolicy(fleet.spaces), PolicyNoise(3, range(5), 6)
    a = reference.reset(range(5))
    fleet.reset(range(5))
    for _ in range(c.max_horizon_epochs):
        actions = act(policy, a, noise.step())
        a = reference.step(actions)
        fleet.step(actions)
        losses = [
            [ep.val_losses[-1] for ep in eps] for eps in ([env.episode for env in reference.envs], fleet.episodes)
        ]
        np.testing.assert_allclose(losses[1], losses[0], rtol=1e-4)
        for e, n, row in filter(lambda place: reference.running[place[0]], stacks(fleet)):
            views = n.hosts.views(n.hosts.params)
            for name, p in reference.envs[e].network.group.params.items():
                mine = views[name][row][tuple(slice(size) for size in p.shape)]
                assert (mine - p).norm() <= 1e-3 * p.norm() + 1e-4
        synchronize(fleet, reference)


def play(mix: str, num_envs: int, seeds: Sequence[int], noise_seeds: Sequence[int]) -> list[FleetStep]:
    c = config(MIXES[mix])
    fleet = SeedTrainingFleet(c, num_envs, 0)
    policy, noise = RandomPolicy(fleet.spaces), PolicyNoise(7, noise_seeds, 6)
    seen = [fleet.reset(seeds)]
    for _ in range(c.max_horizon_epochs):
        seen.append(fleet.step(act(policy, seen[-1], noise.step())))
    return seen


def check_neighbors(mix: str) -> None:
    plain = play(mix, 4, [11, 1, 2, 3], [0, 1, 2, 3])
    other = play(mix, 4, [11, 21, 22, 23], [0, 31, 32, 33])
    for a, b in zip(plain, other, strict=True):
        np.testing.assert_array_equal(a.obs[0], b.obs[0])
        assert a.rewards[0] == b.rewards[0]


@pytest.mark.parametrize("mix", first("all", later=["vectors", "sequences", "images"]))
def test_other_environments_change_no_bit(mix: str) -> None:
    """In a separate process, whose matrix products and convolutions round a row alike whatever the other rows are.

    This holds by default with AVX-512; with AVX2, another row may change the last bit unless it is set.
    """
    program = f"from tests.property.env.test_cnn_fleet import *; cnn.register(); check_neighbors({mix!r})"
    env = os.environ | {"MKL_CBWR": "COMPATIBLE", "ONEDNN_MAX_CPU_ISA": "SSE41", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", program]
    ran = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert ran.returncode == 0, ran.stderr[-2000:]


def test_splitting_into_blocks_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = play("sequences", 5, range(5), range(5))
    monkeypatch.setattr(mixed_networks, "MAX_BLOCK_ENVS", 2)
    for a, b in zip(whole, play("sequences", 5, range(5), range(5)), strict=True):
        assert_same_step(a, b, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("mix", ["vectors", "sequences", "images"])
def test_padding_stays_exactly_zero(mix: str) -> None:
    """Of parameters and moments, of hosts, seeds and columns; so the gradients were 0 too."""
    c = config(MIXES[mix])
    fleet = SeedTrainingFleet(c, 6, 0)
    policy, noise = RandomPolicy(fleet.spaces), PolicyNoise(5, range(6), 6)
    seen = fleet.reset(range(6))
    columns = 0
    for _ in range(7):
        seen = fleet.step(act(policy, seen, noise.step()))
        columns += check_padding(fleet)
    assert columns >= 6


def check_padding(fleet: SeedTrainingFleet) -> int:
    """Check all padded entries; return the number of columns."""
    columns = 0
    for e, n, row in stacks(fleet):
        host = fleet.episodes[e].host
        rows = [(n.hosts, host.shapes(), row)]
        for (env, s), seed in n._seeds.items():
            if env == row:
                column = host.family.columns[seed.blueprint]
                if column is None:
                    shapes = host.family.blueprints[seed.blueprint].shapes(host.slot_width(s))
                else:
                    shapes = column_host(host, column.scale).shapes()
                    columns += 1
                rows.append((n._banks_of(row, s)[0], shapes, n.row(row, s)))
        for bank, shapes, own in rows:
            for values in (bank.params, bank.first_moment, bank.second_moment):
                views = bank.views(values)
                for name, p in shapes.items():
                    beyond = views[name][own].clone()
                    beyond[tuple(slice(size) for size in p.shape)] = 0.0
                    assert not beyond.any(), name
    return columns


def broken_column(task: str, nan: bool) -> tuple[SeedTrainingFleet, list[Tensor]]:
    """Let a column learn in the first of three environments, if `nan` from parameters that are not numbers.

    Return the fleet, and a copy of everything that hosts have.
    """
    fleet = SeedTrainingFleet(config([task], host_width=6, horizon_epochs=9), 3, 0)
    fleet.reset(range(3))
    waits = np.zeros((3, 6), dtype=np.int64)
    for op in (1, 5, 0, 0) if nan else (0, 0, 0, 0):
        actions = waits.copy()
        actions[0] = (op, 3, 8, 0, 2, 1) if op else 0
        n = fleet.networks
        assert isinstance(n, TorchNetworks)
        if nan and op == 5:
            n._banks_of(0, 3)[0].params[n.row(0, 3)] = torch.nan
        fleet.step(actions)
    own = [n.hosts.params, n.hosts.first_moment, n.hosts.second_moment, *(t for m in n.running.values() for t in m)]
    return fleet, own


@pytest.mark.parametrize("task", ["spirals", "sequences", "images"])
def test_a_column_that_learns_changes_no_bit_of_its_host(task: str) -> None:
    """Not even if it is not a number."""
    (plain, ours), (grown, theirs) = broken_column(task, nan=False), broken_column(task, nan=True)
    assert grown.episodes[0].lifecycle.slots[3].stage is Stage.TRAINING
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
    for a, b in zip(plain.episodes, grown.episodes, strict=True):
        assert (a.val_losses, a.train_losses, a.accuracies) == (b.val_losses, b.train_losses, b.accuracies)


def test_only_a_broken_environment_is_rolled_back() -> None:
    """NaN in one host: its episode ends and its running statistics are restored; the others are unaffected."""
    c = config(["images"], host_width=6, horizon_epochs=10)
    calm, hurt = SeedTrainingFleet(c, 4, 0), SeedTrainingFleet(c, 4, 0)
    waits = np.zeros((4, 6), dtype=np.int64)
    for fleet in (calm, hurt):
        fleet.reset(range(4))
        fleet.step(waits)
    assert isinstance(hurt.networks, TorchNetworks)
    before = {name: m.mean[2].clone() for name, m in hurt.networks.running.items()}
    hurt.networks.hosts.params[2] = float("nan")
    a, b = calm.step(waits), hurt.step(waits)
    assert b.terminated.tolist() == [False, False, True, False]
    assert all(torch.equal(m.mean[2], before[name]) for name, m in hurt.networks.running.items())
    keep = [0, 1, 3]
    for _ in range(3):
        np.testing.assert_array_equal(a.obs[keep], b.obs[keep])
        a, b = calm.step(waits), hurt.step(waits)
