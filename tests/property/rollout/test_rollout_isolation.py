"""An environment's episode does not depend on the other environments, and records what happened."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from actors.policy.network import FactoredRecurrentActorCritic
from actors.policy.state import PolicyState
from actors.rollout import wave as rollout
from actors.rollout.recorder import Recorder
from actors.types.actions import ActionMasks
from actors.types.episode import Episode, RecurrentState
from actors.types.fleet_step import FleetStep
from tests.support.episodes import assert_alike, episodes_equal
from tests.support.learning import toy
from tests.support.learning.toy import POLICIES, SPACES, ToyFleet, toy_network, toy_seed, toy_wave

SEEDS = [toy_seed(n, truncated=i % 2 == 0, salt=i) for i, n in enumerate((6, 1, 9, 3, 7, 2))]
SEEDS.append(toy_seed(9, truncated=False, salt=6))  # terminates in the step that truncates another


def check_isolation(network: rollout.Policy) -> None:
    together = toy_wave(network, SEEDS, state_stride=2)
    assert [e.seed for e in together] == SEEDS
    for seed, episode in zip(SEEDS, together, strict=True):
        (alone,) = toy_wave(network, [seed], state_stride=2)
        assert_alike(episode, alone)


def check_truth(network: FactoredRecurrentActorCritic) -> None:
    """Compare with stepping one environment by hand: states before the steps, and the value after the last one."""
    together = toy_wave(network, SEEDS)
    for seed, episode in zip(SEEDS, together, strict=True):
        episode.validate()
        fleet = ToyFleet(1)
        seen, state = copy.deepcopy(fleet.reset([seed])), network.initial_state(1)
        assert not any(a.any() for a in episode.initial_state)
        for t in range(len(episode)):
            assert np.array_equal(episode.obs[t], seen.obs[0])
            for stored, true in zip(episode.states, state, strict=True):
                assert np.allclose(stored[:, t], true[:, 0].numpy(), atol=1e-6)
            decision, state = network.act(seen.obs, seen.blueprint_indices, seen.masks, state, np.zeros((1, 4)))
            assert episode.baseline_values[t] == pytest.approx(decision.baseline_values[0], rel=1e-5, abs=1e-5)
            if network.config.critic == "v":
                assert episode.values[t] == pytest.approx(decision.values[0], rel=1e-5, abs=1e-5)
            seen = copy.deepcopy(fleet.step(episode.actions[t : t + 1]))
            assert episode.rewards[t] == seen.rewards[0]
        assert episode.terminated == bool(seen.terminated[0]) != episode.truncated
        assert np.array_equal(episode.final_obs, seen.obs[0])
        assert np.array_equal(episode.final_masks, seen.masks.flat()[0])
        after = network.act(seen.obs, seen.blueprint_indices, seen.masks, state, np.zeros((1, 4)))[0].baseline_values[0]
        assert episode.bootstrap_value == pytest.approx(0.0 if episode.terminated else after, rel=1e-5, abs=1e-5)


@pytest.mark.parametrize("options", [*POLICIES, {"critic": "q_op", "bootstrap": "sampled"}])
def test_each_episode_equals_that_of_its_environment_alone(options: dict[str, str]) -> None:
    check_isolation(toy_network(**options))


@pytest.mark.parametrize("options", POLICIES)
def test_each_episode_records_what_happened(options: dict[str, str]) -> None:
    check_truth(toy_network(**options))


class Mixing:
    """A policy that mixes the states of all environments."""

    def __init__(self, network: FactoredRecurrentActorCritic) -> None:
        self.network, self.initial_state = network, network.initial_state

    def act(self, obs: Any, blueprint_indices: Any, masks: ActionMasks, state: PolicyState, *rest: Any) -> Any:
        mixed = PolicyState(*(0.9 * t + 0.1 * t.mean(1, keepdim=True) for t in state))
        return self.network.act(obs, blueprint_indices, masks, mixed, *rest)


def test_mixed_states_are_detected() -> None:
    with pytest.raises(AssertionError):
        check_isolation(Mixing(toy_network()))


def test_a_state_after_the_step_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    network, record = toy_network(), Recorder.record

    def late(self: Recorder, envs: Any, seen: FleetStep, decision: Any, state: PolicyState, version: int) -> None:
        _, after = network.act(seen.obs, seen.blueprint_indices, seen.masks, state, np.zeros((len(seen.obs), 4)))
        record(self, envs, seen, decision, after, version)

    monkeypatch.setattr(Recorder, "record", late)
    with pytest.raises(AssertionError):
        check_truth(network)


def test_an_early_end_does_not_change_the_other_rows_by_a_bit() -> None:
    """The number of environments is fixed; only the length of row 1 differs, one step or nine."""
    network = toy_network()
    early = toy_wave(network, SEEDS)
    late = toy_wave(network, [SEEDS[0], toy_seed(9, truncated=True, salt=77), *SEEDS[2:]])
    for row in (0, 2, 3, 4, 5, 6):
        named = early[row].episode_id  # ids are assigned in the order in which episodes end
        assert episodes_equal(early[row], dataclasses.replace(late[row], episode_id=named))


def test_shipped_arrays_are_copies() -> None:
    """Neither later writes of the fleet nor writes into one episode change another."""
    network = toy_network()
    fleet = ToyFleet(len(SEEDS))
    source = rollout.Provenance(0, 1, 1, run_seed=5)
    episodes = rollout.run_wave(fleet, network, SEEDS, source)
    kept = copy.deepcopy(episodes)
    fleet.obs[:], fleet.blueprints[:], fleet.masks.rest[:] = 9.0, 1, True
    rollout.run_wave(fleet, network, SEEDS, source)
    for array in arrays(episodes[0]):
        array[...] = 1
    assert all(episodes_equal(a, b) for a, b in zip(episodes[1:], kept[1:], strict=True))
    assert all(a.base is None or a.base.nbytes == a.nbytes for e in episodes for a in arrays(e))


def arrays(episode: Episode) -> list[NDArray[np.generic]]:
    found: list[NDArray[np.generic]] = []
    for f in dataclasses.fields(episode):
        value = getattr(episode, f.name)
        found += [value] if isinstance(value, np.ndarray) else []
        found += [value.h, value.c] if isinstance(value, RecurrentState) else []
    return found


def test_sampled_bootstraps_are_values_of_ops_as_often_as_the_policy_takes_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Counted over many episodes that end in the same state; never the value of the likeliest op alone."""
    count, heads = 400, len(SPACES.action.heads)
    obs, blueprints = np.linspace(-1.0, 1.0, SPACES.obs_size, dtype=np.float32), np.zeros(SPACES.slots, dtype=np.int64)
    legal = ActionMasks.all_legal(SPACES.action, count)
    one = ActionMasks(*(m[0] for m in legal if m is not None))
    monkeypatch.setattr(toy._ToyEnv, "look", lambda env: (obs, blueprints, one))
    network = toy_network(critic="q_op", bootstrap="sampled")
    episodes = toy_wave(network, [toy_seed(1, truncated=True, salt=i) for i in range(count)])
    found = np.array([e.bootstrap_value for e in episodes])
    noise = np.full((count, heads), 0.5)
    noise[:, 0] = (np.arange(count) + 0.5) / count  # covers the distribution of ops
    same = np.tile(obs, (count, 1)), np.tile(blueprints, (count, 1)), legal
    _, state = network.act(*same, network.initial_state(count), noise)
    decision, _ = network.act(*same, state, noise)
    shares = {float(v): float((decision.values == v).mean()) for v in np.unique(decision.values)}
    assert 0.1 < max(shares.values()) < 0.9
    for value, share in shares.items():
        assert np.isclose(found, value, atol=1e-3).mean() == pytest.approx(share, abs=0.1)
