"""Fleets equal the one-environment reference, with both backends and hosts of every kind.

Widths, horizons and minibatches per epoch are drawn, and columns grow beside hosts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from actors.blueprints.family import COLUMNS, blueprint_index
from actors.blueprints.vector import MLP_BLUEPRINTS
from actors.config import EnvConfig
from actors.env import mixed_networks
from actors.env.episode.epoch import EpochPlan, EpochResult
from actors.env.episode.host_episode import HostEpisode
from actors.env.mixed_networks import HostKind, host_kind
from actors.env.seed_fleet import SeedTrainingFleet
from actors.rollout.wave import PolicyNoise
from actors.slots.lifecycle import EMBARGO_EPOCHS
from actors.slots.stage import Stage
from actors.types.actions import Op
from tests.support.env.fleets import (
    BACKENDS,
    Backend,
    assert_same_params,
    assert_same_step,
    break_params,
    host,
    random_actions,
    seed,
    started_pair,
    synchronize,
)
from tests.support.env.reference_env import ReferenceEnv
from tests.support.env.reference_network import ReferenceColumn
from tests.support.env.walks import act

DRAWN: dict[str, Any] = {"horizon_epochs": (6, 10), "inner_steps": (2, 4), "host_lr": (2e-3, 8e-3)}
VECTORS = EnvConfig(host_width=(5, 32), budget_ratio=40.0, lr_decay=0.5, **DRAWN)
"""Widths from 5: see `test_the_smallest_networks_equal_the_reference`."""


def stacked(*tasks: str) -> EnvConfig:
    return replace(VECTORS, tasks=tasks, host_width=(3, 9), horizon_epochs=(7, 10), batch_size=16, backend="torch")


CONFIGS = {name: replace(VECTORS, backend=name) for name in BACKENDS} | {
    "sequences": stacked("wave_forms", "signals"),
    "images": stacked("digits_image"),
    "mixed": stacked("wave_forms", "digits_image", "spirals"),
    "classic": replace(VECTORS, profile="classic"),
}


def left_to_long(*values: object) -> list[object]:
    """Parameters of `make test-long`."""
    return [pytest.param(*(v if isinstance(v, tuple) else (v,)), marks=pytest.mark.long) for v in values]


def check_episodes(config: EnvConfig, seeds: Sequence[int]) -> int:
    """Parameters agree to 1e-9, and so do observations, rewards and masks, without synchronizing. Return the number of
    columns that were compared."""
    reference, fleet = started_pair(config, seeds)
    noise, columns = PolicyNoise(1, seeds, len(fleet.spaces.action.heads)), 0
    a, b = reference.reset(seeds), fleet.reset(seeds)
    for _ in range(config.max_horizon_epochs):
        assert_same_step(a, b, rtol=1e-6, atol=1e-7)  # observations are fp32
        actions = random_actions(fleet, a, noise.step())
        a, b = reference.step(actions), fleet.step(actions)
        assert_same_params(fleet, reference, rtol=1e-9, atol=1e-9)
        columns += sum(isinstance(s, ReferenceColumn) for env in reference.envs for s in env.network.seeds.values())
    return columns


@pytest.mark.parametrize("name", [*BACKENDS, "classic"])
@settings(max_examples=2, deadline=None)
@given(first_seed=st.integers(0, 2**20))
def test_whole_episodes_equal_the_reference_in_double_precision(name: str, first_seed: int) -> None:
    check_episodes(CONFIGS[name], range(first_seed, first_seed + 5))


@pytest.mark.parametrize("name", ["mixed", *left_to_long("sequences", "images")])
def test_whole_episodes_of_convolutional_hosts_equal_the_reference(name: str) -> None:
    assert check_episodes(CONFIGS[name], range(40, 46)) >= 10


def follow(config: EnvConfig, script: Sequence[Sequence[tuple[int, ...]]]) -> None:
    """Play a script of legal actions, of all environments in each step, in both fleets, and compare them; and at the
    end the accuracies on test rows."""
    reference, fleet = started_pair(config, range(len(script[0])))
    for actions in script:
        a, b = reference.step(np.array(actions)), fleet.step(np.array(actions))
        assert not fleet.illegal
        assert_same_step(a, b, rtol=1e-6, atol=1e-7)
        assert_same_params(fleet, reference, rtol=1e-9, atol=1e-9)
    tested = {e: env.test_accuracy() for e, env in enumerate(reference.envs)}
    assert fleet.test_accuracies(list(tested)) == pytest.approx(tested, rel=1e-9)


@pytest.mark.parametrize(
    ("name", "blend"),
    [
        *((name, blend) for name in BACKENDS for blend in range(3)),
        *(("sequences", 0), ("images", 1), ("sequences", 2)),
        *left_to_long(("images", 0), ("sequences", 1), ("images", 2)),
    ],
)
def test_every_blueprint_and_blend_equals_the_reference(name: str, blend: int) -> None:
    """Each blueprint is germinated, trained, blended and held, in one environment each."""
    script = [(1, 2), (5, 2), (5, 2), (0, 0), (2, 2), (0, 0)]
    actions = [[(op, slot, e + 1, blend, 1 if op == 2 else 2, 1) for e in range(6)] for op, slot in script]
    tasks = ("spirals",) if name in BACKENDS else CONFIGS[name].tasks
    follow(replace(CONFIGS[name], tasks=tasks, horizon_epochs=6), actions)


@pytest.mark.parametrize("name", ["sequences", *left_to_long("images")])
def test_every_column_equals_the_reference_beside_seeds_of_the_stream(name: str) -> None:
    """Each size of column learns alone, beside a seed that learns, in the host beside it, and beside another column.

    It grows in four of five environments; the last has the seed in the stream alone.
    """
    script = [(1, 3), (5, 3), (1, 1), (5, 1), (5, 3), (1, 4), (5, 4), (5, 1), (5, 4)]  # germinate, train, blend
    actions = [[(op, slot, 5 if slot == 1 else 7 + e, 0, 1, 1) for e in range(4)] for op, slot in script]
    for row, (op, slot) in zip(actions, script, strict=True):
        row.append((op, slot, 5, 0, 2, 1) if slot == 1 else (0,) * 6)
    follow(replace(CONFIGS[name], horizon_epochs=len(script) + 1), actions)


@pytest.mark.parametrize("name", [*BACKENDS, "sequences", *left_to_long("images")])
def test_each_epoch_equals_the_reference_in_single_precision(name: str) -> None:
    """Synchronized after each epoch, so that differences are the rounding of one epoch.

    AdamW's first steps have the length of the learning rate however small the gradient. The narrower the host, the more
    gradients are hardly larger than their rounding; where a BatchNorm takes parameters out again, they are rounding
    alone, so that these parameters agree in bulk only.
    """
    config = replace(CONFIGS[name], host_width=(12, 32)) if name in BACKENDS else CONFIGS[name]
    reference, fleet = started_pair(config, range(4), torch.float32)
    noise, seen = PolicyNoise(3, range(4), 6), fleet.reset(range(4))
    for _ in range(config.max_horizon_epochs):
        actions = random_actions(fleet, seen, noise.step())
        seen = reference.step(actions)
        fleet.step(actions)
        if name in BACKENDS:
            assert_same_params(fleet, reference, rtol=1e-5, atol=1e-5)
        else:
            episodes = [env.episode for env in reference.envs], fleet.episodes
            np.testing.assert_allclose(*([e.val_losses[-1] for e in own] for own in episodes), rtol=1e-4)
            for e, env in enumerate(reference.envs):
                for key, p in env.network.group.params.items() if reference.running[e] else ():
                    mine, theirs = host(fleet, e).params[key], p.detach().numpy()
                    assert np.linalg.norm(mine - theirs) <= 1e-3 * np.linalg.norm(theirs) + 1e-4
        synchronize(fleet, reference)


MIXED_TASKS = ("wave_forms", "signals", "digits_image", "spirals", "moons")
MIXED = EnvConfig(tasks=MIXED_TASKS, horizon_epochs=(3, 6), inner_steps=(1, 2), batch_size=16, budget_ratio=40.0)


def kind_of(episode: HostEpisode) -> HostKind:
    return host_kind(episode.host, episode.task.shape)


@pytest.mark.parametrize("most", [2, pytest.param(16, marks=pytest.mark.long)], ids=["blocks of two", "large blocks"])
def test_partial_resets_of_mixed_hosts_equal_the_reference(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Random actions, and resets of what has ended and of some others, beside single environments."""
    monkeypatch.setattr(mixed_networks, "MAX_BLOCK_ENVS", most)
    envs, rng = 7, np.random.default_rng(most)
    fleet = SeedTrainingFleet(MIXED, envs, 0, torch.float64)
    single = [ReferenceEnv(MIXED, 0, dtype=torch.float64) for _ in range(envs)]
    seen, met = fleet.reset(range(envs)), Counter[str]()
    for e, env in enumerate(single):
        env.reset(seed=e)
    for _ in range(12):
        actions = random_actions(fleet, seen, rng.uniform(size=(envs, 6)))
        seen = fleet.step(actions)
        for e, env in enumerate(single):
            observation, reward, terminated, _, info = env.step(actions[e])
            np.testing.assert_allclose(seen.obs[e], observation["obs"], rtol=1e-6, atol=1e-7)
            np.testing.assert_allclose(seen.rewards[e], reward, rtol=1e-6, atol=1e-6)
            np.testing.assert_array_equal(seen.masks.rest[e], info["masks"].rest)
            assert seen.terminated[e] == terminated
        new = {int(e): int(rng.integers(2**20)) for e in np.flatnonzero(seen.terminated | (rng.random(envs) < 0.1))}
        if new:
            seen = fleet.reset_envs(new)
        for e, drawn in new.items():
            before = kind_of(single[e].episode)
            np.testing.assert_allclose(seen.obs[e], single[e].reset(seed=drawn)[0]["obs"], rtol=1e-6, atol=1e-7)
            met["moved" if kind_of(single[e].episode) != before else "stayed"] += 1
        met["some"] += 0 < len(new) < envs
    assert min(met["moved"], met["stayed"], met["some"]) >= 5, met


# Columns and seeds that join in turn


both_backends = pytest.mark.parametrize("backend", BACKENDS)
NARROW = EnvConfig(tasks=("spirals",), host_width=(6, 24), horizon_epochs=14, inner_steps=2, budget_ratio=60.0)
SIZES = [blueprint_index(column.name) for column in COLUMNS]
DENSE = [blueprint.name for blueprint in MLP_BLUEPRINTS].index("dense")
OTHER_SEED, A_SEED, A_COLUMN = 0, 1, 3
COLUMNS_AT = (3, 4)
"""Slots."""
Results = dict[int, tuple[EpochPlan, EpochResult]]
"""The plan and the result of the last epoch, by `id` of the episode."""


@pytest.fixture
def results(monkeypatch: pytest.MonkeyPatch) -> Results:
    found: Results = {}
    honest = HostEpisode.complete_epoch

    def noted(self: HostEpisode, plan: EpochPlan, result: EpochResult, *rest: Any) -> Any:
        found[id(self)] = (plan, result)
        return honest(self, plan, result, *rest)

    monkeypatch.setattr(HostEpisode, "complete_epoch", noted)
    return found


def script(envs: int) -> list[NDArray[np.int64]]:
    """Grow two columns, whose sizes differ between environments, that join in an order of each environment's own, at
    alphas up to 1, and are kept; and two seeds, which learn in the stream. The second column may replace the first."""
    first, second = 10, 11  # of the columns
    steps = [(Op.GERMINATE, first), (Op.ADVANCE, first), (Op.GERMINATE, second), (Op.ADVANCE, second)]
    steps += [(Op.ADVANCE, first), (Op.GERMINATE, A_SEED), (Op.ADVANCE, A_SEED), (Op.ADVANCE, second)]
    steps += [(Op.GERMINATE, OTHER_SEED), (Op.ADVANCE, OTHER_SEED)]
    steps += [(Op.FOSSILIZE, first), (Op.FOSSILIZE, second), (Op.WAIT, first)]

    def action(op: Op, which: int, env: int) -> NDArray[np.int64]:
        stream = which in (A_SEED, OTHER_SEED)
        slot = which if stream else COLUMNS_AT[(which + env) % 2]
        if op is not Op.GERMINATE:
            return act(op, 0 if op is Op.WAIT else slot)
        blueprint = DENSE if stream else SIZES[(env + which) % len(SIZES)]
        return act(op, slot, blueprint, 0, (env // 2 + which) % 3, 0)

    return [np.stack([action(op, which, e) for e in range(envs)]) for op, which in steps]


@both_backends
def test_what_an_epoch_measures_equals_the_reference(backend: Backend, results: Results) -> None:
    """Contributions by subtracting logits equal those by a forward pass; and so do losses, norms and scores."""
    envs = 6
    reference, fleet = started_pair(replace(NARROW, backend=backend), range(envs))
    orders, learning, evaluated = set(), set(), set()
    for actions in script(envs):
        for episode in (*fleet.episodes[::3], *(env.episode for env in reference.envs[::3])):
            for slot in episode.lifecycle.slots:
                slot.learns_alone = slot.stage is Stage.TRAINING  # as if the host overfitted
        reference.step(actions)
        fleet.step(actions)
        assert_same_params(fleet, reference, rtol=1e-8, atol=1e-8)
        for own, env in zip(fleet.episodes, reference.envs, strict=True):
            (plan, mine), (_, theirs) = results[id(own)], results[id(env.episode)]
            assert mine.train_loss == pytest.approx(theirs.train_loss, rel=1e-8)
            assert mine.validation.scored == pytest.approx(theirs.validation.scored, rel=1e-8)
            assert tuple(mine.validation.observed) == pytest.approx(tuple(theirs.validation.observed), rel=1e-8)
            assert mine.scores == pytest.approx(theirs.scores, rel=1e-7)
            for subset, truth in theirs.ablations.items():
                assert tuple(mine.ablations[subset]) == pytest.approx(tuple(truth), rel=1e-8), subset
            for s in plan.alphas:
                assert mine.gradient_norms[s] == pytest.approx(theirs.gradient_norms[s], rel=1e-7)
            contributions = [[s.contribution for s in e.lifecycle.slots] for e in (own, env.episode)]
            np.testing.assert_allclose(*np.array(contributions, dtype=np.float64), rtol=1e-8, atol=1e-8)
            orders.add(tuple(s for s in plan.blended if s in COLUMNS_AT))
            learning |= {strength for s, strength in plan.training.items() if s in COLUMNS_AT}
            evaluated.add(len(plan.subsets))
    assert {COLUMNS_AT, COLUMNS_AT[::-1]} <= orders
    assert learning == {0.5, 0.7, 1.0}
    assert {8, 1 + 4} <= evaluated  # all subsets of three seeds and columns; each of four is switched once
    assert 0 < sum(episode.lifecycle.replaced for episode in fleet.episodes) < envs


@both_backends
def test_the_smallest_networks_equal_the_reference(backend: Backend) -> None:
    """Hosts and columns of two to four units, synchronized after each epoch.

    A LayerNorm of two units returns almost exactly -1 and 1. Its gradient is what a cancellation leaves, so that
    rounding grows by a factor of 1e5 or more, and AdamW moves as far for a small gradient as for a large one.
    """
    config = replace(NARROW, host_width=(2, 4))
    reference, fleet = started_pair(replace(config, backend=backend), range(5))
    assert {episode.host.width for episode in fleet.episodes} >= {2, 3}
    for actions in script(5):
        reference.step(actions)
        fleet.step(actions)
        assert_same_params(fleet, reference, rtol=1e-6, atol=1e-6)
        synchronize(fleet, reference)


@both_backends
def test_a_slot_that_is_used_again_keeps_nothing(backend: Backend) -> None:
    """A wide column is pruned, and a narrow one grows in its slot."""
    reference, fleet = started_pair(replace(NARROW, backend=backend), range(2))
    wide = [(Op.GERMINATE, SIZES[3]), (Op.ADVANCE, 0), (Op.WAIT, 0), (Op.PRUNE, 0)]
    away = [(Op.WAIT, 0)] * (EMBARGO_EPOCHS + 2)
    for op, blueprint in [*wide, *away, (Op.GERMINATE, SIZES[0]), (Op.ADVANCE, 0), (Op.WAIT, 0)]:
        actions = np.stack([act(op, A_COLUMN, blueprint, 0, 2, 0)] * 2)
        reference.step(actions)
        fleet.step(actions)
        assert_same_params(fleet, reference, rtol=1e-9, atol=1e-9)
    assert [e.lifecycle.slots[A_COLUMN].blueprint for e in fleet.episodes] == [SIZES[0]] * 2
    assert all(env.network.seeds for env in reference.envs)


@both_backends
def test_a_broken_column_is_rolled_back(backend: Backend) -> None:
    fleet = SeedTrainingFleet(replace(NARROW, backend=backend), 2, 0)
    fleet.reset([3, 4])
    for op in (Op.GERMINATE, Op.ADVANCE, Op.ADVANCE, Op.FOSSILIZE):
        fleet.step(np.stack([act(op, A_COLUMN, SIZES[2]), act(Op.WAIT)]))
        assert not fleet.illegal
    before = {name: values.copy() for name, values in seed(fleet, 0, A_COLUMN).params.items()}
    assert np.abs(before["out.w"]).max() > 0  # it has learnt
    break_params(fleet, 0, A_COLUMN)
    step = fleet.step(np.stack([act(Op.WAIT)] * 2))
    assert step.terminated.tolist() == [True, False]
    accuracies = fleet.episodes[0].accuracies
    assert accuracies[-1] == accuracies[-2]
    after = seed(fleet, 0, A_COLUMN)
    for name, values in before.items():
        np.testing.assert_array_equal(after.params[name], values)
        assert not after.first[name].any()
        assert not after.second[name].any()
