"""A truncated episode is bootstrapped with Q of a sampled op or with its expectation, never with that of the likeliest.

Counted over many episodes that all end in the same state, and compared with the policy's distribution there.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray

from actors.policy.acting.policy import ActingPolicy
from actors.policy.network import FactoredRecurrentActorCritic
from actors.types.actions import ActionMasks
from tests.support.learning import toy
from tests.support.learning.toy import SPACES, random_masks, toy_network, toy_seed, toy_wave

COUNT = 400
LAST = np.linspace(-1.0, 1.0, SPACES.obs_size, dtype=np.float32)


class End(NamedTuple):
    """The distribution of ops after the last step, and the value of each."""

    probability: NDArray[np.float64]  # [ops]
    q: NDArray[np.float64]  # [ops], 0 where the probability is

    @property
    def likeliest(self) -> float:
        return float(self.q[self.probability.argmax()])


def end_of(network: FactoredRecurrentActorCritic, obs: NDArray[np.float32], masks: ActionMasks) -> End:
    """Act twice on the same observation, the second time with noise that covers the whole distribution."""
    many = ActionMasks(*(None if m is None else np.repeat(m[None], COUNT, 0) for m in masks))  # type: ignore[arg-type]
    observed = np.repeat(obs[None], COUNT, 0), np.full((COUNT, network.spaces.slots), -1)
    noise = np.full((COUNT, len(network.spaces.action.heads)), 0.5)
    noise[:, 0] = (np.arange(COUNT) + 0.5) / COUNT
    _, state = network.act(*observed, many, network.initial_state(COUNT), noise)
    decision, _ = network.act(*observed, many, state, noise)
    end = End(np.zeros(network.spaces.action.num_ops), np.zeros(network.spaces.action.num_ops))
    for op, log_prob, value in zip(decision.actions[:, 0], decision.log_probs[:, 0], decision.values, strict=True):
        end.probability[op], end.q[op] = np.exp(log_prob), value
    return end


def check(bootstrap: str, values: NDArray[np.float64], end: End) -> None:
    expected = float(end.probability @ end.q)
    assert end.probability.sum() == pytest.approx(1.0, abs=1e-4)
    assert end.probability.max() < 0.9
    assert abs(end.likeliest - expected) > 0.1  # the three ways to bootstrap differ here
    if bootstrap == "expected":
        np.testing.assert_allclose(values, expected, atol=1e-3)
        return
    shares = [float(np.isclose(values, q, atol=1e-3).mean()) for q in end.q]
    np.testing.assert_allclose(np.where(end.probability > 0, shares, 0.0), end.probability, atol=0.1)


@pytest.mark.parametrize("bootstrap", ["expected", "sampled"])
def test_waves_are_bootstrapped_as_the_policy_would_act(bootstrap: str, monkeypatch: pytest.MonkeyPatch) -> None:
    random = random_masks(np.random.default_rng(3))
    masks = ActionMasks(*(np.ones_like(m) for m in random if m is not None))
    monkeypatch.setattr(toy._ToyEnv, "look", lambda env: (LAST, np.full(SPACES.slots, -1), masks))
    network = toy_network(critic="q_op", bootstrap=bootstrap)
    episodes = toy_wave(ActingPolicy(network), [toy_seed(1, truncated=True, salt=i) for i in range(COUNT)])
    assert all(len(e) == 1 and e.truncated for e in episodes)
    check(bootstrap, np.array([e.bootstrap_value for e in episodes]), end_of(network, LAST, masks))
