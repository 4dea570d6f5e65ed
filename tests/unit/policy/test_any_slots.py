"""A checkpoint runs with any number of slots, is equivariant under their permutation, and its heads are conditioned."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from actors.config import PolicyConfig
from actors.errors import UserError
from actors.policy.network import FactoredRecurrentActorCritic
from actors.policy.publish import architecture_hash, from_weights, to_weights
from actors.rollout import wave as rollout
from actors.types.actions import ActionMasks, ActionSpec, Head
from actors.types.episode import EndReason
from actors.types.fleet_step import FleetStep
from actors.types.spaces import Spaces
from learner.config import LearnerConfig
from learner.ppo.batch import make_batch
from learner.ppo.optimizer import make_optimizer
from learner.ppo.update import PPOUpdate
from learner.run.checkpoint import LearnerProgress, load_policy, save_checkpoint
from tests.support.learning.toy import POLICIES, SPACES, toy_network


def inputs(slots: int, count: int = 5) -> tuple[NDArray[np.float32], NDArray[np.int64], ActionMasks]:
    rng = np.random.default_rng(slots)
    spaces = SPACES.with_slots(slots)
    masks = ActionMasks(
        np.ones((count, 3), np.bool_), np.ones((count, 3, slots), np.bool_), np.ones((count, 3, slots, 5), np.bool_)
    )
    masks.slot[:, 2, 0] = slots == 1  # type: ignore[index]
    obs = rng.standard_normal((count, spaces.obs_size)).astype(np.float32)
    return obs, rng.integers(-1, 4, (count, slots)), masks


@pytest.mark.parametrize("options", POLICIES)
def test_a_checkpoint_trained_with_two_slots_runs_with_one_to_eight(options: dict[str, str], tmp_path: Path) -> None:
    network = toy_network(**options)
    save_checkpoint(tmp_path, network, make_optimizer(network, 1e-3, 0.0), LearnerProgress(), (), 1, 1)
    for slots in range(1, 9):
        policy = load_policy(tmp_path, slots)
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
    assert masks.slot is not None
    their_masks = ActionMasks(masks.op, moved(masks.slot, order, 2), moved(masks.rest, order, 2))
    noise = np.full((5, 4), 0.5)
    ours, state = policy.act(obs, blueprints, masks, policy.initial_state(5), noise, deterministic=True)
    given = (shuffled, moved(blueprints, order, 1), their_masks, policy.initial_state(5), noise)
    theirs, their_state = policy.act(*given, deterministic=True)
    assert (np.array(order)[theirs.actions[:, 1]] == ours.actions[:, 1]).all()
    others = [0, 2, 3]
    assert (ours.actions[:, others] == theirs.actions[:, others]).all()
    assert np.allclose(ours.log_probs, theirs.log_probs, atol=1e-6)
    assert np.allclose(ours.values, theirs.values, atol=1e-5)
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(state, their_state, strict=True))


def test_a_flat_encoder_is_not_equivariant_and_has_a_fixed_number_of_slots() -> None:
    """The control experiment without the shared encoder."""
    network = toy_network(encoder="flat")
    obs, blueprints, masks = inputs(2)
    swapped = np.concatenate([obs[:, :4], obs[:, 7:], obs[:, 4:7]], 1)
    noise, state = np.full((5, 4), 0.5), network.initial_state(5)
    ours, _ = network.act(obs, blueprints, masks, state, noise)
    theirs, _ = network.act(swapped, moved(blueprints, [1, 0], 1), masks, state, noise)
    assert not np.allclose(ours.values, theirs.values, atol=1e-3)
    with pytest.raises(UserError, match="only run with the 2 slots they were trained with"):
        from_weights(to_weights(network, 0, 0, 1), spaces=SPACES.with_slots(3))


def test_the_architecture_hash_depends_on_everything_that_weights_depend_on() -> None:
    config = PolicyConfig()
    same = {architecture_hash(SPACES.with_slots(s), config) for s in range(1, 9)}
    assert len(same) == 1
    flat = PolicyConfig(encoder="flat")
    assert len({architecture_hash(SPACES.with_slots(s), flat) for s in range(1, 9)}) == 8
    assert architecture_hash(SPACES, PolicyConfig(initial_log_std=-1.0)) in same
    for changes in (
        {"hidden_size": 64},
        {"core": "feedforward"},
        {"critic": "q_op"},
        {"probability_floor": 0.0},
        {"floor_mass": 0.1},
    ):
        assert architecture_hash(SPACES, PolicyConfig(**changes)) not in same  # type: ignore[arg-type]
    assert architecture_hash(dataclasses.replace(SPACES, base_size=9), config) not in same


def test_incompatible_weights_are_refused_with_the_reason() -> None:
    weights = to_weights(toy_network(), 0, 0, 1)
    with pytest.raises(UserError, match="other observations or actions"):
        from_weights(weights, spaces=dataclasses.replace(SPACES, base_size=9))
    with pytest.raises(UserError, match=r"policy.core feedforward \(it was lstm\)"):
        from_weights(weights, config=dataclasses.replace(toy_network().config, core="feedforward"))


BANDIT = Spaces(
    ActionSpec((Head("op", ("PRUNE", "FOSSILIZE")), Head("slot", ("0", "1"))), ((True, True), (True, True))), 1, 2, 2, 1
)


class Bandit:
    """Episodes of one step with one legal op, not observed. PRUNE of slot 0 or FOSSILIZE of slot 1 earns 1, else -1."""

    env_id, spaces, num_envs = "bandit", BANDIT, 64

    def reset(self, seeds: Sequence[int]) -> FleetStep:
        self.ops = np.array([seed % 2 for seed in seeds])
        return self._show(np.zeros(self.num_envs, np.float32), ended=False)

    def step(self, actions: NDArray[np.int64]) -> FleetStep:
        return self._show(np.where(actions[:, 1] == self.ops, 1.0, -1.0).astype(np.float32), ended=True)

    def task_ids(self) -> tuple[str, ...]:
        return ("bandit",) * self.num_envs

    def timelines(self) -> tuple[Any, ...]:
        return ()

    def _show(self, rewards: NDArray[np.float32], ended: bool) -> FleetStep:
        n = self.num_envs
        obs = np.tile(np.array([0, 1, 0, 0, 1], np.float32), (n, 1))  # each slot's features identify it
        op = np.stack([self.ops == 0, self.ops == 1], 1)
        masks = ActionMasks(op, np.ones((n, 2, 2), np.bool_), np.ones((n, 2, 2, 0), np.bool_))
        ends = np.full(n, ended)
        reasons = (EndReason.ENVIRONMENT if ended else None,) * n
        return FleetStep(obs, np.full((n, 2), -1), masks, rewards, ends, ends & False, reasons, ({},) * n)


def learn_bandit(heads: str, updates: int = 20) -> float:
    """Return the mean reward of the greedy policy over both ops, after PPO training."""
    torch.set_num_threads(1)
    torch.manual_seed(3)
    policy = PolicyConfig(hidden_size=16, encoder_size=16, head_size=16, heads=heads, probability_floor=0.0)  # type: ignore[arg-type]
    network = FactoredRecurrentActorCritic(BANDIT, policy)
    config = LearnerConfig(
        state_stride=1, lr=1e-2, update_epochs=2, target_kl=0.2, entropy_start=0.01, entropy_end=0.01
    )
    ppo = PPOUpdate(network, make_optimizer(network, 1e-2, 0.0), config)
    fleet = Bandit()
    source = rollout.Provenance(0, 0, 1, run_seed=0)

    def play(seeds: Sequence[int], deterministic: bool) -> list[Any]:
        return rollout.run_wave(fleet, network, seeds, source, deterministic)

    for update in range(updates):
        ppo(make_batch(play([update * 64 + e for e in range(64)], False), BANDIT), update, 0)
    return float(np.mean([e.undiscounted_return for e in play(range(64), True)]))


def test_ops_with_opposite_best_slots_need_conditioned_heads() -> None:
    assert learn_bandit("conditioned") > 0.95
    assert learn_bandit("independent") < 0.1
