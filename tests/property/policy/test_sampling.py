"""Actions are sampled with their probabilities, and illegal ones never."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.policy.distribution import choose, masked_log_probs
from actors.types.actions import ActionMasks
from tests.support.examples import examples
from tests.support.learning.toy import SPACES, SPEC, toy_network

ALMOST_ONE = float(np.nextafter(1.0, 0.0))


cases = st.lists(st.tuples(st.floats(-8, 8, width=32), st.booleans()), min_size=1, max_size=6).filter(
    lambda choices: any(legal for _, legal in choices)
)


@settings(max_examples=examples(40), deadline=None)
@given(cases)
def test_shares_of_the_noise_equal_the_probabilities(choices: list[tuple[float, bool]]) -> None:
    """Over a fine grid of noise, in order: the inverse of the cumulative distribution is monotonic."""
    legal = torch.tensor([legal for _, legal in choices])
    table = masked_log_probs(torch.tensor([x for x, _ in choices]), legal)
    count = 4000
    noise = (torch.arange(count, dtype=torch.float64) + 0.5) / count
    picked = choose(table.expand(count, -1), noise, False)
    frequency = torch.bincount(picked, minlength=len(choices)) / count
    assert bool((frequency[~legal] == 0).all())
    assert torch.allclose(frequency, table.exp(), atol=1.5 / count)
    assert bool((picked.diff() >= 0).all())


@settings(max_examples=examples(60), deadline=None)
@given(cases, st.sampled_from([0.0, 5e-324, 0.5, ALMOST_ONE]))
def test_no_noise_selects_an_illegal_choice(choices: list[tuple[float, bool]], noise: float) -> None:
    legal = torch.tensor([legal for _, legal in choices])
    table = masked_log_probs(torch.tensor([x for x, _ in choices]), legal)
    picked = int(choose(table, torch.tensor(noise, dtype=torch.float64), False))
    assert bool(legal[picked])
    assert bool(legal[int(choose(table, torch.tensor(noise, dtype=torch.float64), True))])


def test_frequencies_of_joint_actions_match_their_log_probs() -> None:
    network, count = toy_network(), 20_000
    rng = np.random.default_rng(0)
    masks = ActionMasks(*(np.ones((count, *shape), dtype=np.bool_) for shape in ((3,), (3, 2), (3, 2, 5))))
    masks.rest[:, 1, 0, 1] = masks.rest[:, 2, 1, 4] = False  # kind b where PLANT has slot 0; fast where CUT has slot 1
    obs = np.tile(rng.standard_normal(SPACES.obs_size).astype(np.float32), (count, 1))
    blueprints = np.tile(rng.integers(-1, 4, SPACES.slots), (count, 1))
    decision, _ = network.act(obs, blueprints, masks, network.initial_state(count), rng.random((count, 4)))
    actions, where, times = np.unique(decision.actions, axis=0, return_index=True, return_counts=True)
    probability = np.exp(decision.log_probs[where].sum(1, dtype=np.float64))
    assert len(actions) == 1 + (2 + 3) * 2 + (2 + 1)
    expected = probability * count
    assert abs(expected.sum() - count) < 0.02 * count  # actions that were not sampled have little probability
    assert ((times - expected) ** 2 / expected)[expected > 5].sum() < 3 * len(actions)  # chi-square, far in the tail
    for action, row in zip(actions, where, strict=True):
        irrelevant = ~SPEC.relevance_table[action[0]]
        assert (action[irrelevant] == 0).all()
        assert (decision.log_probs[row][irrelevant] == 0).all()
