"""A checkpoint runs with any number of slots, whose order and whose number of empty ones do not matter; its heads are
conditioned."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from actors.config import PolicyConfig
from actors.errors import UserError
from actors.policy.network import ActOutput
from actors.policy.publish import architecture_hash, from_weights, to_weights
from actors.policy.state import PolicyState
from actors.types.actions import ActionMasks
from learner.ppo.optimizer import make_optimizer
from learner.run.checkpoint import LearnerProgress, load_network, save_checkpoint
from tests.support.learning.toy import POLICIES, SPACES, toy_network


def inputs(slots: int, count: int = 5) -> tuple[NDArray[np.float32], NDArray[np.int64], ActionMasks]:
    rng = np.random.default_rng(slots)
    spaces = SPACES.with_slots(slots)
    masks = ActionMasks(
        np.ones((count, 3), np.bool_), np.ones((count, 3, slots), np.bool_), np.ones((count, 3, slots, 5), np.bool_)
    )
    masks.slot[:, 2, 0] = slots == 1
    obs = rng.standard_normal((count, spaces.obs_size)).astype(np.float32)
    return obs, rng.integers(-1, 4, (count, slots)), masks


@pytest.mark.parametrize("options", POLICIES)
def test_a_checkpoint_trained_with_two_slots_runs_with_one_to_eight(options: dict[str, str], tmp_path: Path) -> None:
    network = toy_network(**options)
    save_checkpoint(tmp_path, network, make_optimizer(network, 1e-3, 0.0), LearnerProgress(), (), 1, 1)
    for slots in range(1, 9):
        policy = load_network(tmp_path, slots)
        assert policy.spaces.action.num_slots == slots
        state, seen = policy.initial_state(5), set()
        for step in range(4):
            obs, blueprints, masks = inputs(slots)
            noise = np.random.default_rng(step).random((5, 4))
            decision, state = policy.act(obs, blueprints, masks, state, noise)
            assert np.isfinite(decision.log_probs).all()
            seen |= set(decision.actions[:, 1].tolist())
        assert max(seen) < slots
        assert slots == 1 or len(seen) > 1


def assert_alike(ours: tuple[ActOutput, PolicyState], theirs: tuple[ActOutput, PolicyState]) -> None:
    (decision, state), (other, other_state) = ours, theirs
    np.testing.assert_array_equal(decision.actions, other.actions)
    np.testing.assert_allclose(decision.log_probs, other.log_probs, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(decision.values, other.values, rtol=1e-5, atol=1e-5)
    for mine, its in zip(state, other_state, strict=True):
        torch.testing.assert_close(mine, its, rtol=1e-5, atol=1e-6)


def moved(t: NDArray[Any], order: list[int], axis: int) -> NDArray[Any]:
    return np.ascontiguousarray(np.take(t, order, axis))


@pytest.mark.parametrize("heads", ["conditioned", "independent"])
@pytest.mark.parametrize("slots", [2, 5, 8])
def test_permuting_slots_permutes_only_the_choice_of_slot(slots: int, heads: str) -> None:
    policy = from_weights(to_weights(toy_network(heads=heads), 0, 0, 1), spaces=SPACES.with_slots(slots))
    order = [int(n) for n in np.random.default_rng(slots).permutation(slots)]
    obs, blueprints, masks = inputs(slots)
    masks.op[:, 0] = False  # leaves only ops that act on a slot
    base, per_slot = obs[:, :4], obs[:, 4:].reshape(5, slots, 3)
    shuffled = np.concatenate([base, moved(per_slot, order, 1).reshape(5, -1)], 1)
    their_masks = ActionMasks(masks.op, moved(masks.slot, order, 2), moved(masks.rest, order, 2))
    noise = np.full((5, 4), 0.5)
    start = policy.initial_state(5)
    ours = policy.act(obs, blueprints, masks, start, noise, deterministic=True)
    theirs = policy.act(shuffled, moved(blueprints, order, 1), their_masks, start, noise, deterministic=True)
    theirs[0].actions[:, 1] = np.array(order)[theirs[0].actions[:, 1]]
    assert_alike(ours, theirs)


def test_further_empty_slots_change_no_decision() -> None:
    few, many = (from_weights(to_weights(toy_network(), 0, 0, 1), spaces=SPACES.with_slots(slots)) for slots in (2, 5))
    obs, blueprints, masks = inputs(2)
    wider = ActionMasks(masks.op, np.zeros((5, 3, 5), np.bool_), np.zeros((5, 3, 5, 5), np.bool_))
    wider.slot[:, :, :2], wider.rest[:, :, :2] = masks.slot, masks.rest
    empty = np.random.default_rng(0).standard_normal((5, 9)).astype(np.float32)
    noise = np.random.default_rng(1).random((5, 4))
    given = (np.concatenate([obs, empty], 1), np.pad(blueprints, ((0, 0), (0, 3)), constant_values=-1), wider)
    ours = few.act(obs, blueprints, masks, few.initial_state(5), noise)
    assert_alike(ours, many.act(*given, many.initial_state(5), noise))


def test_the_architecture_hash_depends_on_everything_that_weights_depend_on() -> None:
    config = PolicyConfig()
    same = {architecture_hash(SPACES.with_slots(s), config) for s in range(1, 9)}
    assert len(same) == 1
    flat = PolicyConfig(encoder="flat")
    assert len({architecture_hash(SPACES.with_slots(s), flat) for s in range(1, 9)}) == 8
    assert architecture_hash(SPACES, PolicyConfig(initial_log_std=-1.0)) in same
    for changes in ({"hidden_size": 64}, {"critic": "q_op"}, {"probability_floor": 0.0}):
        assert architecture_hash(SPACES, PolicyConfig(**changes)) not in same
    assert architecture_hash(dataclasses.replace(SPACES, base_size=9), config) not in same


def test_incompatible_weights_are_refused_with_the_reason() -> None:
    weights, flat = (to_weights(toy_network(encoder=encoder), 0, 0, 1) for encoder in ("slots", "flat"))
    with pytest.raises(UserError, match="only run with the 2 slots they were trained with"):
        from_weights(flat, spaces=SPACES.with_slots(3))
    with pytest.raises(UserError, match="other observations or actions"):
        from_weights(weights, spaces=dataclasses.replace(SPACES, base_size=9))
    with pytest.raises(UserError, match=r"policy.core feedforward \(it was lstm\)"):
        from_weights(weights, config=dataclasses.replace(toy_network().config, core="feedforward"))


@pytest.mark.parametrize("heads", ["conditioned", "independent"])
def test_slots_are_chosen_given_the_op_where_heads_are_conditioned(heads: str) -> None:
    network, likeliest = toy_network(heads=heads), []
    obs, blueprints, masks = inputs(2)
    for op in (1, 2):
        masks.op[:], masks.slot[:] = np.eye(3, dtype=np.bool_)[op], True
        given = (obs, blueprints, masks, network.initial_state(5), np.full((5, 4), 0.5))
        likeliest.append(network.act(*given, deterministic=True)[0].log_probs[:, 1])
    assert np.allclose(*likeliest) == (heads == "independent")
