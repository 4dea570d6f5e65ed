"""The total probability of a head's floors is bounded, and weights state the bound they were trained with."""

from __future__ import annotations

import json
from fractions import Fraction

import numpy as np
import pytest
import torch

from actors.config import ConfigError, PolicyConfig
from actors.policy.acting.policy import ActingPolicy
from actors.policy.network import FactoredRecurrentActorCritic
from actors.policy.publish import from_weights, to_weights
from actors.types.actions import ActionMasks, independent_spec
from actors.types.spaces import Spaces
from tests.support.learning.toy import toy_network


def decided(choices: int) -> FactoredRecurrentActorCritic:
    """Return an almost deterministic policy of one head, whose logits strongly favor the first choice."""
    spaces = Spaces.flat(independent_spec((choices,)), 3)
    network = FactoredRecurrentActorCritic(spaces, PolicyConfig(hidden_size=8, encoder_size=8, head_size=8))
    with torch.no_grad():
        network.heads.op[2].bias[0] = 1000.0
    return network


def acted(network: FactoredRecurrentActorCritic, acting: ActingPolicy | FactoredRecurrentActorCritic) -> float:
    """Return the probability of the preferred choice."""
    spec = network.spaces.action
    masks = ActionMasks.of_flat(spec, np.ones((1, spec.flat_size), dtype=np.bool_))
    noise, nowhere = np.zeros((1, 1)), np.zeros((1, 0), dtype=np.int64)
    obs = np.zeros((1, network.spaces.obs_size), np.float32)
    decision, _ = acting.act(obs, nowhere, masks, network.initial_state(1), noise, True)
    return float(np.exp(decision.log_probs[0, 0]))


@pytest.mark.parametrize("choices", [2, 5, 6, 104, 1000])
def test_in_gymnasium_the_best_choice_can_have_99_percent_for_any_number_of_choices(choices: int) -> None:
    """Floors are 0.002 per choice and 1% in total."""
    floor = min(Fraction(2, 1000), Fraction(1, 100) / choices)
    expected = float(1 - (choices - 1) * floor)
    assert expected > 0.99
    network = decided(choices)
    for acting in (network, ActingPolicy(network)):
        assert acted(network, acting) == pytest.approx(expected, abs=1e-6)


def test_weights_state_the_resolved_bound() -> None:
    for network, mass in ((decided(4), 0.01), (toy_network(), 0.5), (toy_network(floor_mass=0.05), 0.05)):
        weights = to_weights(network, 1, 1, 8)
        assert json.loads(weights.architecture)["policy"]["floor_mass"] == mass
        assert from_weights(weights).floor_mass == mass


@pytest.mark.parametrize("mass", [0.0, -0.1, 0.6])
def test_a_bound_out_of_range_is_refused(mass: float) -> None:
    with pytest.raises(ConfigError, match=r"policy\.floor_mass is"):
        PolicyConfig(floor_mass=mass)
