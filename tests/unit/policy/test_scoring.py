"""`HeadScorer` and its gradient, compared with the definition in float64; the floors of a head have a bounded total."""

from __future__ import annotations

import json
from fractions import Fraction

import numpy as np
import pytest
import torch
from torch import Tensor

from actors.config import ConfigError, PolicyConfig
from actors.policy.acting.policy import ActingPolicy
from actors.policy.distribution import HeadScorer
from actors.policy.network import FactoredRecurrentActorCritic
from actors.policy.publish import from_weights, to_weights
from actors.types.actions import ActionMasks, independent_spec
from actors.types.spaces import Spaces
from tests.support.learning.toy import toy_network

SIZES = (3, 1, 5, 2)
N = 40


def case() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    noise = torch.Generator().manual_seed(0)
    logits = 3.0 * torch.randn(N, sum(SIZES), generator=noise)
    masks = torch.rand(N, sum(SIZES), generator=noise) < 0.6
    actions = torch.stack([torch.randint(0, n, (N,), generator=noise) for n in SIZES], 1)
    offsets = torch.tensor([0, *torch.tensor(SIZES).cumsum(0).tolist()[:-1]])
    masks.scatter_(1, actions + offsets, True)
    return logits.requires_grad_(), masks, actions, torch.rand(N, len(SIZES), generator=noise) < 0.7


def by_definition(
    logits: Tensor, masks: Tensor, actions: Tensor, relevant: Tensor, floor: float, mass: float
) -> tuple[Tensor, Tensor]:
    """Head by head in float64: q = (1 - k f) p + f over k legal choices, with f at most mass / k."""
    log_probs, entropies = [], []
    for k, (own, mask) in enumerate(zip(logits.double().split(SIZES, 1), masks.split(SIZES, 1), strict=True)):
        p, legal = own.masked_fill(~mask, -torch.inf).softmax(-1), mask.sum(-1, keepdim=True).double()
        share = (mass / legal).clamp(max=floor)
        q = torch.where(mask, (1 - legal * share) * p + share, 1.0)
        log_prob = q.log().gather(1, actions[:, k : k + 1]).squeeze(1)
        entropy = -(q * q.log()).sum(-1) / legal.squeeze(-1).clamp(min=2).log()
        log_probs.append(torch.where(relevant[:, k], log_prob, 0.0))
        entropies.append(torch.where(relevant[:, k], entropy, 0.0))
    return torch.stack(log_probs, 1), torch.stack(entropies, 1)


# 0.2 exceeds 1 / (2 k) for five legal choices, where the bound applies.
@pytest.mark.parametrize(("floor", "mass"), [(0.0, 0.5), (0.002, 0.5), (0.2, 0.5), (0.02, 0.01), (0.02, 0.1)])
def test_scores_and_gradients_are_those_of_the_definition(floor: float, mass: float) -> None:
    logits, masks, actions, relevant = case()
    weights = torch.randn(2, N, len(SIZES), generator=torch.Generator().manual_seed(1))
    results = []
    for score in (by_definition, HeadScorer(SIZES)):
        out = score(logits, masks, actions, relevant, floor, mass)
        (grad,) = torch.autograd.grad((torch.stack(list(out)) * weights).sum(), logits)
        results.append([*out, grad])
    for expected, actual in zip(*results, strict=True):
        torch.testing.assert_close(actual.double(), expected.double(), rtol=1e-4, atol=1e-5)
    assert bool((results[1][2][~masks] == 0).all())  # illegal choices have no gradient


def test_an_irrelevant_head_without_legal_choices_has_zero_scores_and_gradients() -> None:
    logits, masks, actions, relevant = case()
    masks[3, 3:4], relevant[3, 1] = False, False
    log_probs, entropies = HeadScorer(SIZES)(logits, masks, actions, relevant, 0.002)
    assert float(log_probs[3, 1].detach()) == float(entropies[3, 1].detach()) == 0.0
    (grad,) = torch.autograd.grad(log_probs.sum() + entropies.sum(), logits)
    assert bool(grad.isfinite().all())


@pytest.mark.parametrize("floor", [0.0, 0.002])
def test_a_choice_of_vanishing_probability_keeps_a_finite_gradient(floor: float) -> None:
    logits = torch.tensor([[0.0, -300.0, 5.0]], requires_grad=True)
    masks, actions, relevant = torch.ones(1, 3, dtype=torch.bool), torch.tensor([[1]]), torch.tensor([[True]])
    log_probs, entropies = HeadScorer((3,))(logits, masks, actions, relevant, floor)
    (grad,) = torch.autograd.grad(log_probs.sum() + entropies.sum(), logits)
    assert bool(grad.isfinite().all())
    if floor == 0.0:
        assert float(grad[0, 1]) == pytest.approx(1.0)


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
