"""Encoder `flat` and action spaces without op and slot, as Gymnasium environments need them."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from actors.config import PolicyConfig
from actors.policy.network import FactoredRecurrentActorCritic
from actors.types.actions import ActionMasks, ActionSpec, forced_steps, independent_spec, relevant_heads
from actors.types.spaces import Spaces
from tests.support.learning.sequences import SequenceBatch, evaluate
from tests.support.learning.toy import toy_network

SIZES = (4, 2, 3)
SPACES = Spaces.flat(independent_spec(SIZES), 5)
SMALL = PolicyConfig(hidden_size=12, encoder_size=10, head_size=8, probability_floor=0.02)


def network(spaces: Spaces = SPACES) -> FactoredRecurrentActorCritic:
    torch.manual_seed(0)
    made = FactoredRecurrentActorCritic(spaces, SMALL)
    with torch.no_grad():
        for p in made.parameters():
            p.add_(0.5 * torch.randn_like(p))
    return made


def test_every_head_of_an_independent_spec_is_always_relevant() -> None:
    spec = independent_spec(SIZES)
    assert (spec.sizes, spec.offsets, spec.rest_size) == (SIZES, (0, 4, 6), 5)
    actions = np.array([[3, 1, 2], [0, 0, 0]])
    assert relevant_heads(spec, actions).all()
    masks = np.ones((2, 9), dtype=np.bool_)
    masks[1] = False
    masks[1, [0, 4, 6]] = True
    assert forced_steps(spec, actions, masks).tolist() == [False, True]
    assert (ActionMasks.of_flat(spec, masks).in_force(spec, actions) == masks).all()
    assert Spaces.from_json(SPACES.to_json()) == SPACES
    assert independent_spec([2]).names == ("action",)


def test_a_flat_mask_of_conditioned_heads_is_refused() -> None:
    with pytest.raises(ValueError, match="which slots are legal"):
        ActionMasks.of_flat(toy_network().spaces.action, np.ones((1, 10), dtype=np.bool_))


def joint(spec: ActionSpec) -> np.ndarray:
    return np.array(list(itertools.product(*map(range, spec.sizes))))


@pytest.mark.parametrize("sizes", [SIZES, (7,), (2, 5)])
def test_joint_probabilities_are_the_product_of_masked_softmaxes(sizes: tuple[int, ...]) -> None:
    """Compared with exponentials over legal choices in float64, with floors; illegal choices have probability 0."""
    spec = independent_spec(sizes)
    made = network(Spaces.flat(spec, 5))
    rng = np.random.default_rng(1)
    flat = rng.random(spec.flat_size) < 0.6
    flat[list(spec.offsets)] = True
    actions = joint(spec)
    count = len(actions)
    obs = torch.from_numpy(rng.standard_normal((1, 1, 5)).astype(np.float32)).repeat(count, 1, 1)
    sequence = SequenceBatch(
        obs,
        torch.zeros(count, 1, 0, dtype=torch.long),
        torch.from_numpy(actions)[:, None],
        torch.from_numpy(np.tile(flat, (count, 1, 1))),
        torch.ones(count, 1, dtype=torch.bool),
        made.initial_state(count),
    )
    with torch.no_grad():
        out = evaluate(made, sequence)
        logits = [
            t[0].double().numpy()
            for t in made.heads(made.norm(out.hidden), torch.zeros(count, 0, 10), torch.zeros(1, 3))
        ]
    expected = np.ones(count)
    for head, (table, legal) in enumerate(zip(logits, spec.split(flat), strict=True)):
        weights = np.where(legal, np.exp(table), 0.0)
        share = min(0.02, 0.01 / legal.sum())  # all floors of a head take at most 1%
        own = np.where(legal, (1 - legal.sum() * share) * weights / weights.sum() + share, 0.0)
        expected *= own[actions[:, head]]
    assert np.allclose(out.log_probs.double().sum(-1).exp().numpy(), expected, rtol=1e-4, atol=1e-9)
    assert expected.sum() == pytest.approx(1.0)
