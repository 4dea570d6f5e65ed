"""Columns in fleets: equal to the reference, contributions by subtraction, and no effect on the host in TRAINING."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from actors.blueprints.column import COLUMNS
from actors.blueprints.family import blueprint_index
from actors.blueprints.vector import MLP_BLUEPRINTS
from actors.config import EnvConfig
from actors.env.episode.epoch import EpochPlan, EpochResult
from actors.env.episode.host_episode import HostEpisode
from actors.env.seed_fleet import SeedTrainingFleet
from actors.slots.lifecycle import EMBARGO_EPOCHS
from actors.slots.stage import Stage
from actors.slots.topology import GrownSeed
from actors.types.actions import Op
from tests.support.env.fleets import BACKENDS, Backend, Vectors, assert_same_params, break_seed, host, seed, synchronize
from tests.support.env.reference_env import ReferenceFleet
from tests.support.env.walks import act

torch.set_num_threads(1)
both_backends = pytest.mark.parametrize("backend", BACKENDS)
CONFIG = EnvConfig(tasks=("spirals",), host_width=(6, 24), horizon_epochs=12, inner_steps=3, budget_ratio=60.0)
SIZES = [blueprint_index(column.name) for column in COLUMNS]
DENSE = next(i for i, blueprint in enumerate(MLP_BLUEPRINTS) if blueprint.name == "dense")
OTHER_SEED, A_SEED, A_COLUMN, OTHER_COLUMN = 0, 1, 3, 4
"""Slots."""


def fleets(config: EnvConfig, backend: Backend, envs: int) -> tuple[ReferenceFleet, SeedTrainingFleet]:
    reference = ReferenceFleet(config, envs, 0, torch.float64)
    fleet = SeedTrainingFleet(replace(config, backend=backend), envs, 0, torch.float64)
    reference.reset(range(envs))
    fleet.reset(range(envs))
    return reference, fleet


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


def measured(
    fleet: SeedTrainingFleet, reference: ReferenceFleet, results: Results, rel: float
) -> Iterator[tuple[EpochPlan, EpochResult, EpochResult]]:
    """Compare losses, accuracies and ablations of the last epoch. Yield its plan and both results, by environment."""
    for own, env in zip(fleet.episodes, reference.envs, strict=True):
        (plan, mine), (_, theirs) = results[id(own)], results[id(env.episode)]
        assert mine.train_loss == pytest.approx(theirs.train_loss, rel=rel)
        assert mine.validation.scored == pytest.approx(theirs.validation.scored, rel=rel)
        assert tuple(mine.validation.observed) == pytest.approx(tuple(theirs.validation.observed), rel=rel)
        for subset, truth in theirs.ablations.items():
            assert tuple(mine.ablations[subset]) == pytest.approx(tuple(truth), rel=rel), subset
        yield plan, mine, theirs


def script(envs: int) -> list[NDArray[np.int64]]:
    """Grow a seed and two columns, whose sizes differ between environments, then another seed; the last two stay in
    TRAINING."""
    grow = [
        (Op.GERMINATE, A_COLUMN),
        (Op.GERMINATE, A_SEED),
        (Op.ADVANCE, A_COLUMN),
        (Op.ADVANCE, A_SEED),
        (Op.ADVANCE, A_COLUMN),
        (Op.GERMINATE, OTHER_COLUMN),
        (Op.ADVANCE, OTHER_COLUMN),
        (Op.GERMINATE, OTHER_SEED),
        (Op.ADVANCE, OTHER_SEED),
    ]

    def blueprint(slot: int, env: int) -> int:
        return DENSE if slot < A_COLUMN else SIZES[(env + slot) % len(SIZES)]

    return [
        np.stack([act(op, slot, blueprint(slot, e) if op is Op.GERMINATE else 0, 0, 1, 1) for e in range(envs)])
        for op, slot in grow
    ]


@both_backends
def test_what_an_epoch_measures_equals_the_reference(backend: Backend, results: Results) -> None:
    """Contributions by subtracting logits equal those by a forward pass; and so do losses, norms and scores."""
    envs = len(SIZES)
    reference, fleet = fleets(CONFIG, backend, envs)
    evaluated = []
    for actions in script(envs):
        reference.step(actions)
        fleet.step(actions)
        assert_same_params(fleet, reference, rtol=1e-9, atol=1e-9)
        for plan, mine, theirs in measured(fleet, reference, results, 1e-9):
            assert mine.scores == pytest.approx(theirs.scores, rel=1e-7)
            assert set(mine.scores) == set(range(5)) - set(plan.alphas)
            for slot in plan.alphas:
                assert mine.gradient_norms[slot] == pytest.approx(theirs.gradient_norms[slot], rel=1e-7)
            evaluated.append(len(plan.subsets))
        for own, env in zip(fleet.episodes, reference.envs, strict=True):
            contributions = [[s.contribution for s in e.lifecycle.slots] for e in (own, env.episode)]
            np.testing.assert_allclose(*np.array(contributions, dtype=np.float64), rtol=1e-9, atol=1e-9)
    assert max(evaluated) == 8  # all subsets of two columns and a seed
    assert evaluated[-1] == 1 + 4  # of four seeds and columns: each is switched once


def twice(envs: int) -> list[NDArray[np.int64]]:
    """Grow two columns that join in an order of each environment's own, at alphas up to 1, and are kept, beside a seed
    that learns in the stream. The second may replace the first."""
    steps = [(Op.GERMINATE, 0), (Op.ADVANCE, 0), (Op.GERMINATE, 1), (Op.ADVANCE, 1), (Op.ADVANCE, 0), (Op.GERMINATE, 2)]
    steps += [(Op.ADVANCE, 2), (Op.ADVANCE, 1), (Op.FOSSILIZE, 0), (Op.FOSSILIZE, 1), (Op.WAIT, 0)]

    def action(op: Op, which: int, env: int) -> NDArray[np.int64]:
        slot = (A_COLUMN, OTHER_COLUMN, A_SEED)[which if which == 2 else (which + env) % 2]
        if op is not Op.GERMINATE:
            return act(op, 0 if op is Op.WAIT else slot)
        blueprint = DENSE if which == 2 else SIZES[(env + which) % len(SIZES)]
        return act(op, slot, blueprint, 0, (env // 2 + which) % 3, 0)

    return [np.stack([action(op, which, e) for e in range(envs)]) for op, which in steps]


@both_backends
def test_columns_that_join_one_after_the_other_equal_the_reference(backend: Backend, results: Results) -> None:
    envs = 6
    reference, fleet = fleets(CONFIG, backend, envs)
    orders, learning = set(), set()
    for actions in twice(envs):
        for episode in (*fleet.episodes[::3], *(env.episode for env in reference.envs[::3])):
            for slot in episode.lifecycle.slots:
                slot.learns_alone = slot.stage is Stage.TRAINING  # as if the host overfitted
        reference.step(actions)
        fleet.step(actions)
        assert_same_params(fleet, reference, rtol=1e-8, atol=1e-8)
        for plan, _, _ in measured(fleet, reference, results, 1e-8):
            orders.add(tuple(s for s in plan.blended if s >= A_COLUMN))
            learning |= {strength for s, strength in plan.training.items() if s >= A_COLUMN}
    assert {(A_COLUMN, OTHER_COLUMN), (OTHER_COLUMN, A_COLUMN)} <= orders
    assert learning == {0.5, 1.0}
    assert 0 < sum(episode.lifecycle.replaced for episode in fleet.episodes) < envs


@both_backends
def test_the_smallest_networks_equal_the_reference(backend: Backend) -> None:
    """Hosts and columns of two to four units, synchronized after each epoch.

    A LayerNorm of two units returns almost exactly -1 and 1. Its gradient is what a cancellation leaves, so that
    rounding grows by a factor of 1e5 or more, and AdamW moves as far for a small gradient as for a large one.
    """
    config = replace(CONFIG, host_width=(2, 4), inner_steps=2)
    reference, fleet = fleets(config, backend, 8)
    assert {episode.host.width for episode in fleet.episodes} >= {2, 3}
    for actions in script(8):
        reference.step(actions)
        fleet.step(actions)
        assert_same_params(fleet, reference, rtol=1e-6, atol=1e-6)
        synchronize(fleet, reference)


@both_backends
def test_a_slot_that_is_used_again_keeps_nothing(backend: Backend) -> None:
    """A wide column is pruned, and a narrow one grows in its slot."""
    reference, fleet = fleets(CONFIG, backend, 2)
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
    fleet = SeedTrainingFleet(replace(CONFIG, backend=backend), 2, 0)
    fleet.set_topologies([(GrownSeed(A_COLUMN, SIZES[2], 0, 1.0),), ()])
    fleet.reset([3, 4])
    waits = np.stack([act(Op.WAIT)] * 2)
    for _ in range(4):
        fleet.step(waits)
    before = {name: values.copy() for name, values in seed(fleet, 0, A_COLUMN).params.items()}
    assert np.abs(before["out.w"]).max() > 0  # it has learnt
    break_seed(fleet, 0, A_COLUMN)
    step = fleet.step(waits)
    assert step.terminated.tolist() == [True, False]
    accuracies = fleet.episodes[0].accuracies
    assert accuracies[-1] == accuracies[-2]
    after = seed(fleet, 0, A_COLUMN)
    for name, values in before.items():
        np.testing.assert_array_equal(after.params[name], values)
        assert not after.first[name].any()
        assert not after.second[name].any()


def grown(backend: Backend, training: bool, broken: tuple[int, ...] = ()) -> tuple[list[Vectors], list[float]]:
    """Blend a column in; with `training`, let another column and a seed learn; set those in `broken` to NaN.

    Return what the host and the first column hold two epochs later, and the accuracy of each epoch.
    """
    fleet = SeedTrainingFleet(replace(CONFIG, backend=backend), 2, 0)
    fleet.reset([3, 4])
    script = [(Op.GERMINATE, A_COLUMN), (Op.ADVANCE, A_COLUMN), (Op.ADVANCE, A_COLUMN)]
    for slot in (OTHER_COLUMN, A_SEED):
        script += [(Op.GERMINATE, slot), (Op.ADVANCE, slot)] if training else [(Op.WAIT, 0)] * 2
    for op, slot in script:
        blueprint = DENSE if slot == A_SEED else SIZES[1]
        fleet.step(np.stack([act(op, slot, blueprint if op is Op.GERMINATE else 0, 0, 2, 0)] * 2))
    for slot in broken:
        break_seed(fleet, 0, slot)
    for _ in range(2):
        fleet.step(np.stack([act(Op.WAIT)] * 2))
    assert fleet.running
    return [host(fleet, 0), seed(fleet, 0, A_COLUMN)], fleet.episodes[0].accuracies


def same(a: list[Vectors], b: list[Vectors]) -> bool:
    pairs = [
        (mine[name], theirs[name])
        for one, other in zip(a, b, strict=True)
        for mine, theirs in zip(one[:3], other[:3], strict=True)
        for name in mine
    ]
    return len(pairs) > 40 and all(np.array_equal(x, y) for x, y in pairs)


@both_backends
@pytest.mark.parametrize("broken", [(), (OTHER_COLUMN,), (A_SEED, OTHER_COLUMN)], ids=["sound", "column", "both"])
def test_a_training_column_changes_no_bit_of_the_host(backend: Backend, broken: tuple[int, ...]) -> None:
    """Nor of the column that is part of its function, even if the other one is NaN."""
    alone, accuracies = grown(backend, training=False)
    beside, others = grown(backend, True, broken)
    assert same(alone, beside)
    assert accuracies == others
