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
    worst_log_prob = worst_value = 0.0
    steps = [(row, t) for row, e in enumerate(episodes) for t in range(len(e))]
    assert len(steps) == len(values)
    for step, (row, t) in enumerate(steps):
        log_prob = torch.from_numpy(episodes[row].log_probs[t])
        worst_log_prob = max(worst_log_prob, float((out.log_probs[step] - log_prob).abs().max()))
        scale = float(network.value_normalizer.std)
        for ours, acted in ((values, episodes[row].values), (baselines, episodes[row].baseline_values)):
            worst_value = max(worst_value, abs(float(ours[step]) - float(acted[t])) / scale)
    return worst_log_prob, worst_value


OPTIONS = [*POLICIES, {"heads": "independent"}, {"encoder": "flat"}, {"num_layers": 3}]


@pytest.mark.parametrize("options", OPTIONS)
def test_the_learner_reproduces_every_step_from_chunks_at_every_offset(options: dict[str, Any]) -> None:
    network = toy_network(**options)
    episodes = shipped(network)
    assert sum(float(e.log_probs.min()) < -0.7 for e in episodes) > 1  # the policy is far from trivial
    assert any(not e.masks.all() for e in episodes)
    for chunk in range(1, max(LENGTHS) + 1):  # a chunk of length L starts at offset L, so every offset occurs
        log_prob, value = largest_differences(network, episodes, chunk, None)
        assert log_prob < 1e-5
        assert value < 1e-5


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
    """`deterministic` is argmax in order, so each chosen log-prob is the largest that the learner finds there."""
    network = toy_network()
    episodes = shipped(network)
    state = network.initial_state(len(episodes))
    ones = [np.ones((len(episodes), *s), dtype=np.bool_) for s in ((3,), (3, 2), (3, 2, 5))]
    masks = ActionMasks(*ones)
    first, blueprints = (np.stack([getattr(e, name)[0] for e in episodes]) for name in ("obs", "blueprint_indices"))
    noise = np.full((len(episodes), 4), 0.999)
    greedy, _ = network.act(first, blueprints, masks, state, noise, deterministic=True)
    for draw in range(40):
        noise = np.random.default_rng(draw).random((len(episodes), 4))
        sampled, _ = network.act(first, blueprints, masks, state, noise)
        assert (greedy.log_probs[:, 0] >= sampled.log_probs[:, 0]).all()
        same_op = greedy.actions[:, 0] == sampled.actions[:, 0]
        assert (greedy.log_probs[same_op, 1] >= sampled.log_probs[same_op, 1]).all()
