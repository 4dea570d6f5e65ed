"""`HeadScorer` and its gradient, compared with the definition in float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from actors.policy.distribution import HeadScorer

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
