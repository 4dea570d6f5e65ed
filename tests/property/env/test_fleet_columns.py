"""Columns in fleets: equal to the reference, contributions by subtraction, and no effect on the host in TRAINING."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from actors.blueprints.family import COLUMNS, blueprint_index
from actors.blueprints.vector import MLP_BLUEPRINTS
from actors.config import EnvConfig
from actors.env.episode.epoch import EpochPlan, EpochResult
from actors.env.episode.host_episode import HostEpisode
from actors.env.seed_fleet import SeedTrainingFleet
from actors.slots.lifecycle import EMBARGO_EPOCHS
from actors.slots.stage import Stage
from actors.types.actions import Op
from tests.support.env.fleets import (
    BACKENDS,
    Backend,
    assert_same_params,
    break_params,
    seed,
    started_pair,
    synchronize,
)
from tests.support.env.walks import act

both_backends = pytest.mark.parametrize("backend", BACKENDS)
CONFIG = EnvConfig(tasks=("spirals",), host_width=(6, 24), horizon_epochs=14, inner_steps=2, budget_ratio=60.0)
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
    reference, fleet = started_pair(replace(CONFIG, backend=backend), range(envs))
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
    config = replace(CONFIG, host_width=(2, 4))
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
    reference, fleet = started_pair(replace(CONFIG, backend=backend), range(2))
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
