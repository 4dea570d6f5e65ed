"""The pieces of the objective, number by number, against plain loops."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from actors.config import ConfigError
from learner.config import LearnerConfig
from learner.ppo import losses
from learner.ppo.objective import entropy_coefficient

torch.set_num_threads(1)
RNG = np.random.default_rng(0)
RATIO = torch.from_numpy(np.exp(RNG.normal(0, 0.4, (40, 3))))
ADVANTAGES = torch.from_numpy(RNG.normal(0, 1, 40))
COUNTED = torch.from_numpy(RNG.random((40, 3)) < 0.6)
COUNTED[:, 2] &= COUNTED[:, 0]


def summed(ratio: Tensor, a: Tensor, counted: Tensor, clip: float, denominator: float) -> Tensor:
    return losses.policy_losses(ratio, a, counted, clip, denominator).sum()


def check_policy_loss(loss: Callable[..., Tensor]) -> None:
    total = 0.0
    for n in range(40):
        for k in range(3):
            if COUNTED[n, k]:
                r, a = float(RATIO[n, k]), float(ADVANTAGES[n])
                total += min(r * a, max(0.8, min(1.2, r)) * a)
    assert float(loss(RATIO, ADVANTAGES, COUNTED, 0.2, 7.0)) == pytest.approx(-total / 7.0, rel=1e-12)
    masked = RATIO.masked_fill(~COUNTED, torch.nan)
    assert float(loss(masked, ADVANTAGES, COUNTED, 0.2, 7.0)) == pytest.approx(-total / 7.0, rel=1e-12)


def clipped_always(ratio: Tensor, a: Tensor, counted: Tensor, clip: float, denominator: float) -> Tensor:
    clipped = ratio.clamp(1 - clip, 1 + clip) * a[:, None]
    return -clipped.masked_fill(~counted, 0.0).sum() / denominator


def never_clipped(ratio: Tensor, a: Tensor, counted: Tensor, clip: float, denominator: float) -> Tensor:
    return summed(ratio, a, counted, 1e9, denominator)


def optimistic(ratio: Tensor, a: Tensor, counted: Tensor, clip: float, denominator: float) -> Tensor:
    a = a[:, None]
    best = torch.maximum(ratio * a, ratio.clamp(1 - clip, 1 + clip) * a)
    return -best.masked_fill(~counted, 0.0).sum() / denominator


def uncounted_too(ratio: Tensor, a: Tensor, counted: Tensor, clip: float, denominator: float) -> Tensor:
    return summed(ratio, a, torch.ones_like(counted), clip, denominator)


def test_the_surrogate_is_the_clipped_one_over_counted_heads() -> None:
    check_policy_loss(summed)


@pytest.mark.parametrize("wrong", [clipped_always, never_clipped, optimistic, uncounted_too])
def test_a_wrong_surrogate_is_caught(wrong: Callable[..., Tensor]) -> None:
    with pytest.raises(AssertionError):
        check_policy_loss(wrong)


def test_a_clipped_head_has_no_gradient_and_its_neighbor_has() -> None:
    ratio = torch.tensor([[1.5, 1.1], [0.5, 0.9]], requires_grad=True)
    summed(ratio, torch.tensor([1.0, -1.0]), torch.ones(2, 2, dtype=torch.bool), 0.2, 1.0).backward()
    assert ratio.grad is not None
    assert ratio.grad.tolist() == [[0.0, -1.0], [0.0, 1.0]]


@pytest.mark.parametrize("clip", [None, 0.2])
def test_the_value_loss_is_half_the_larger_square(clip: float | None) -> None:
    values, old, returns = (torch.from_numpy(RNG.normal(0, 1, 30)) for _ in range(3))
    total = 0.0
    for v, o, r in zip(values.tolist(), old.tolist(), returns.tolist(), strict=True):
        near = o + max(-0.2, min(0.2, v - o))
        total += 0.5 * ((v - r) ** 2 if clip is None else max((v - r) ** 2, (near - r) ** 2))
    assert float(losses.value_loss(values, old, returns, clip, 3.0)) == pytest.approx(total / 3.0, rel=1e-12)


def test_the_entropy_bonus_sums_counted_heads() -> None:
    entropies = torch.rand(40, 3)
    expected = sum(float(entropies[n, k]) for n in range(40) for k in range(3) if COUNTED[n, k])
    assert float(losses.entropy_bonus(entropies, COUNTED, 2.0)) == pytest.approx(expected / 2.0, rel=1e-5)


def test_k3_estimates_the_kl_and_is_never_negative() -> None:
    """Weighted by the proximal probabilities, its mean is the KL from proximal to new, exactly."""
    p, q = torch.tensor([0.7, 0.2, 0.1]), torch.tensor([0.5, 0.25, 0.25])
    ratio = (q / p).log()
    terms = torch.stack([losses.k3(ratio[i : i + 1], torch.tensor([True])) for i in range(3)])
    assert bool((terms >= 0).all())
    assert float((p * terms).sum()) == pytest.approx(float((p * (p / q).log()).sum()), rel=1e-5)
    assert float(losses.k3(ratio, torch.zeros(3, dtype=torch.bool))) == 0.0
    assert float(losses.k3(torch.tensor([0.0, 50.0]), torch.tensor([True, False]))) == 0.0


def test_explained_variance_of_good_bad_and_flat_returns() -> None:
    returns = torch.tensor([1.0, 2.0, 4.0, 9.0])
    assert float(losses.explained_variance(returns, returns)) == 1.0
    assert float(losses.explained_variance(returns + 5.0, returns)) == pytest.approx(
        1.0, abs=1e-6
    )  # a shift is no error
    assert float(losses.explained_variance(torch.zeros(4), returns)) == pytest.approx(0.0, abs=1e-6)
    assert float(losses.explained_variance(-returns, returns)) == pytest.approx(-3.0, abs=1e-5)
    assert float(losses.explained_variance(torch.randn(4), torch.full((4,), 3.0))) == 0.0
    assert float(losses.explained_variance(torch.randn(1), torch.randn(1))) == 0.0
    assert float(losses.explained_variance(torch.zeros(0), torch.zeros(0))) == 0.0


def test_the_entropy_coefficient_falls_linearly_and_then_stays() -> None:
    config = LearnerConfig(entropy_start=0.05, entropy_end=0.005, entropy_anneal_updates=10)
    for update in range(25):
        expected = 0.005 if update >= 10 else 0.05 - 0.0045 * update
        assert entropy_coefficient(config, update) == pytest.approx(expected, rel=1e-12)
    constant = LearnerConfig(entropy_anneal_updates=0, entropy_end=0.02)
    assert {entropy_coefficient(constant, update) for update in (0, 5, 10**6)} == {0.02}
    assert math.isclose(entropy_coefficient(config, 0), 0.05)


def test_the_annealing_may_be_a_share_of_the_run() -> None:
    def middle_and_end(share: float) -> list[float]:
        config = LearnerConfig(updates=400, entropy_start=0.05, entropy_end=0.01, entropy_anneal_share=share)
        return [entropy_coefficient(config, update) for update in (100, 400)]

    assert middle_and_end(1.0) == pytest.approx([0.04, 0.01])
    assert middle_and_end(0.5) == pytest.approx([0.03, 0.01])
    assert middle_and_end(0.001) == pytest.approx([0.01, 0.01])
    for share in (0.0, 1.5):
        with pytest.raises(ConfigError, match="give a share above 0 and at most 1"):
            LearnerConfig(entropy_anneal_share=share)


@pytest.mark.parametrize("fields", [{}, {"entropy_anneal_share": 0.01}, {"entropy_anneal_updates": 0}])
def test_no_entropy_coefficient_is_below_its_floor(fields: dict[str, Any]) -> None:
    config = LearnerConfig(entropy_coef_min=0.02, **fields)
    coefficients = [entropy_coefficient(config, update) for update in range(250)]
    assert min(coefficients) == coefficients[-1] == 0.02
    with pytest.raises(ConfigError, match=r"entropy_coef_min is .*: it cannot be negative"):
        LearnerConfig(entropy_coef_min=-0.1)
