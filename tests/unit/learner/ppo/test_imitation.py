"""Imitation minimizes the loss that it documents, and the policy then acts like its demonstrations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from actors.policy.baselines import rule_output
from actors.policy.network import FactoredRecurrentActorCritic
from actors.policy.state import PolicyState, StateSizes
from actors.rollout.wave import Policy, Provenance, run_wave
from actors.types.actions import ActionMasks
from actors.types.episode import Episode
from learner.ppo.imitation import imitate
from tests.support.learning.toy import CORES, SPACES, SPEC, ToyFleet, toy_network, toy_seed, toy_wave

HEADS = range(len(SPEC.heads))
SLOT = 1  # slots are a set: which of them is the last one cannot be learned


class Teacher:
    """The last legal choice of every head that matters; what it carries is no network's state."""

    def initial_state(self, batch: int) -> PolicyState:
        return PolicyState.zeros(StateSizes(h=(1, 3)), batch)

    def act(self, obs: Any, blueprint_indices: Any, masks: ActionMasks, state: PolicyState, *rest: Any) -> Any:
        actions = np.zeros((len(obs), len(SPEC.heads)), dtype=np.int64)
        for head in HEADS:
            legal = SPEC.split(masks.in_force(SPEC, actions))[head]
            last = legal.shape[1] - 1 - legal[:, ::-1].argmax(1)
            actions[:, head] = np.where(SPEC.relevance_table[actions[:, 0], head], last, 0)
        return rule_output(SPACES, actions, masks), state


def played(policy: Policy, count: int, salt: int = 0, deterministic: bool = False) -> list[Episode]:
    seeds = [toy_seed(3 + k % 7, truncated=False, salt=salt + k) for k in range(count)]
    source = Provenance(version=0, generation=0, state_stride=2, run_seed=5)
    return run_wave(ToyFleet(count), policy, seeds, source, deterministic)


def relevant(episode: Episode, t: int) -> list[int]:
    return [h for h in HEADS if SPEC.relevance[int(episode.actions[t, 0])][h]]


def unforced(episode: Episode) -> list[int]:
    """Steps at which something else was legal."""
    split = [SPEC.split(masks) for masks in episode.masks]
    return [t for t, own in enumerate(split) if any(own[h].sum() > 1 for h in relevant(episode, t))]


@pytest.mark.parametrize("core", CORES)
def test_nats_are_those_that_the_policy_recorded_itself(core: str) -> None:
    """Episodes that a network acted carry its log-probs, step by step: another way to the same number."""
    network = toy_network(core=core)
    episodes = toy_wave(network, [toy_seed(5 + k, truncated=False, salt=k) for k in range(10)])
    steps, last = unforced(episodes[-1]), episodes[-1]
    assert 0 < len(steps) < len(last)
    recorded = [sum(float(last.log_probs[t, h]) for h in relevant(last, t)) for t in steps]
    assert imitate(network, episodes, passes=0).before == pytest.approx(-np.mean(recorded), rel=1e-4)


@pytest.mark.parametrize("core", [pytest.param(c, marks=[] if c == "lstm" else [pytest.mark.long]) for c in CORES])
def test_a_policy_does_what_it_was_shown(core: str) -> None:
    network = toy_network(core=core, probability_floor=0.001)
    result = imitate(network, played(Teacher(), 120), passes=20, lr=1e-2)
    assert result.after < 0.4 * result.before
    assert result.agreement > 0.95
    as_shown = []
    for episode in played(network, 20, salt=500, deterministic=True):  # states that nobody has shown it
        for t in unforced(episode):
            legal, heads = SPEC.split(episode.masks[t]), [h for h in relevant(episode, t) if h != SLOT]
            as_shown += [episode.actions[t, h] == np.flatnonzero(legal[h])[-1] for h in heads]
    assert np.mean(as_shown) > 0.9


def test_the_critic_is_scaled_to_what_demonstrations_brought() -> None:
    """Returns to go by a loop; the last tenth of the episodes has no part in them."""
    network = FactoredRecurrentActorCritic(SPACES, toy_network().config)
    episodes, gamma = played(Teacher(), 40), 0.9
    returns = []
    for episode in episodes[:36]:
        to_go = 0.0
        for reward in episode.rewards[::-1]:
            to_go = float(reward) + gamma * to_go
            returns.append(to_go)
    imitate(network, episodes, passes=0, gamma=gamma)
    scale = network.value_normalizer
    assert (float(scale.mean), float(scale.std)) == pytest.approx((np.mean(returns), np.std(returns)), rel=1e-5)


def test_one_demonstration_is_too_few() -> None:
    with pytest.raises(ValueError, match="too few"):
        imitate(toy_network(), played(Teacher(), 1), passes=1)
