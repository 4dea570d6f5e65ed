"""What callers may leave out: masks, state and noise of a step, and the width of the heads."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from actors.config import PolicyConfig
from actors.policy.network import FactoredRecurrentActorCritic, MaskTensors
from actors.types.actions import ActionMasks, independent_spec
from actors.types.spaces import Spaces
from learner.ppo.batch import make_batch
from tests.support.learning.toy import SPACES, toy_network


def flat_network() -> FactoredRecurrentActorCritic:
    torch.manual_seed(0)
    return FactoredRecurrentActorCritic(Spaces.flat(independent_spec([3, 2]), 4), PolicyConfig(hidden_size=8))


@pytest.mark.parametrize("make", [toy_network, flat_network])
def test_a_step_needs_only_an_observation(make: type) -> None:
    network: FactoredRecurrentActorCritic = make()
    spaces, rng = network.spaces, np.random.default_rng(0)
    obs = rng.standard_normal((5, spaces.obs_size)).astype(np.float32)
    blueprints = rng.integers(-1, max(1, spaces.num_blueprints), (5, spaces.slots))
    masks, state = ActionMasks.all_legal(spaces.action, 5), network.initial_state(5)
    assert masks.flat().all()
    torch.manual_seed(1)
    noise = torch.rand(5, len(spaces.action.heads), dtype=torch.float64)
    for deterministic in (False, True):
        torch.manual_seed(1)
        chosen, after = network.act(obs, blueprints, deterministic=deterministic)
        expected, expected_after = network.act(obs, blueprints, masks, state, noise.numpy(), deterministic)
        for own, other in zip([*chosen, *after], [*expected, *expected_after], strict=True):
            np.testing.assert_array_equal(own, other)
    inputs = torch.from_numpy(obs), torch.from_numpy(blueprints)
    torch_masks = MaskTensors.from_masks(masks, state.h.device)
    torch.manual_seed(1)
    step, expected_step = network.step(*inputs), network.step(*inputs, torch_masks, state, noise)
    assert torch.equal(step.actions, expected_step.actions)
    assert torch.equal(step.log_probs, expected_step.log_probs)


def test_a_flat_mask_of_conditioned_heads_is_refused() -> None:
    with pytest.raises(ValueError, match="which slots are legal"):
        ActionMasks.of_flat(SPACES.action, np.ones((1, 10), dtype=np.bool_))


def test_a_batch_without_episodes_is_refused() -> None:
    with pytest.raises(ValueError, match="a batch without episodes: give at least one"):
        make_batch([], SPACES)
