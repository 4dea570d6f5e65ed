"""What the learner computes for a shipped step is what the actor computed when it took it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from actors.codec import decode_episode, encode_episode
from actors.policy.acting.policy import ActingPolicy
from actors.policy.network import FactoredRecurrentActorCritic
from actors.policy.state import PolicyState
from actors.types.actions import ActionMasks
from actors.types.episode import Episode
from learner.ppo.batch import Batch, make_batch
from tests.support.learning.batches import evaluate_batch
from tests.support.learning.toy import POLICIES, SPACES, toy_network, toy_seed, toy_wave

LENGTHS = (1, 2, 5, 8, 11)
Change = Callable[[FactoredRecurrentActorCritic, Batch], Batch]


def shipped(network: FactoredRecurrentActorCritic) -> list[Episode]:
    """Episodes of unequal lengths and both kinds of end, after a trip through the codec."""
    seeds = [toy_seed(n, truncated=i % 2 == 0, salt=i) for i, n in enumerate(LENGTHS)]
    return [decode_episode(encode_episode(e)) for e in toy_wave(ActingPolicy(network), seeds)]


def largest_differences(
    network: FactoredRecurrentActorCritic, episodes: list[Episode], chunk: int, change: Change | None
) -> tuple[float, float]:
    """Of log-probs, and of values in units of the return's deviation, step by step against the episodes."""
    batch = make_batch(episodes, SPACES, chunk)
    learning = copy.deepcopy(network)
    if change is not None:
        batch = change(learning, batch)
    with torch.no_grad():
        out = evaluate_batch(learning, batch)
    values, baselines = (learning.value_normalizer.denormalize(v) for v in (out.values, out.baseline_values))
    acted = {
        name: np.concatenate([getattr(e, name) for e in episodes])
        for name in ("log_probs", "values", "baseline_values")
    }
    of_values = max(
        float(np.abs(ours - theirs).max())
        for ours, theirs in ((values.numpy(), acted["values"]), (baselines.numpy(), acted["baseline_values"]))
    )
    worst_log_prob = float(np.abs(out.log_probs.numpy() - acted["log_probs"]).max())
    return worst_log_prob, of_values / float(network.value_normalizer.std)


OPTIONS = [*POLICIES, {"heads": "independent"}, {"encoder": "flat"}, {"num_layers": 3}]


@pytest.mark.parametrize("options", OPTIONS)
def test_the_learner_reproduces_every_step_from_chunks_at_every_offset(options: dict[str, Any]) -> None:
    network = toy_network(**options)
    episodes = shipped(network)
    assert sum(float(e.log_probs.min()) < -0.7 for e in episodes) > 1  # the policy is far from trivial
    assert any(not e.masks.all() for e in episodes)
    for chunk in range(1, max(LENGTHS) + 1):  # a chunk of length L starts at offset L, so every offset occurs
        assert max(largest_differences(network, episodes, chunk, None)) < 1e-5


def post_step_states(network: FactoredRecurrentActorCritic, batch: Batch) -> Batch:
    """The state after each chunk's first step."""
    parts = batch.obs, batch.blueprint_indices
    obs, blueprints = (t.index_select(0, torch.from_numpy(batch.first_steps)) for t in parts)
    with torch.no_grad():
        encoded = network.encoder(obs, blueprints)
        return batch._replace(state=network.core.step(encoded.core_input, batch.state).state)


CHANGES: dict[str, Change] = {
    "all is legal": lambda n, b: b._replace(masks=torch.ones_like(b.masks)),
    "zeroed states": lambda n, b: b._replace(state=PolicyState(*map(torch.zeros_like, b.state))),
    "states after the step": post_step_states,
    "without memory": lambda n, b: b._replace(state=b.state._replace(cells=torch.zeros_like(b.state.cells))),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_learner_that_sees_something_else_is_caught(change: str) -> None:
    network = toy_network(core="lstm+memory")
    assert largest_differences(network, shipped(network), 3, CHANGES[change])[0] > 1e-3


def test_the_deterministic_policy_takes_the_likeliest_legal_choice_head_by_head() -> None:
    network, rng = toy_network(), np.random.default_rng(0)
    state = network.initial_state(5)
    masks = ActionMasks(*(np.ones((5, *s), dtype=np.bool_) for s in ((3,), (3, 2), (3, 2, 5))))
    obs, blueprints = rng.standard_normal((5, SPACES.obs_size)).astype(np.float32), rng.integers(-1, 4, (5, 2))
    greedy, _ = network.act(obs, blueprints, masks, state, np.full((5, 4), 0.999), deterministic=True)
    for _ in range(40):
        sampled, _ = network.act(obs, blueprints, masks, state, rng.random((5, 4)))
        assert (greedy.log_probs[:, 0] >= sampled.log_probs[:, 0]).all()
        same_op = greedy.actions[:, 0] == sampled.actions[:, 0]
        assert (greedy.log_probs[same_op, 1] >= sampled.log_probs[same_op, 1]).all()
