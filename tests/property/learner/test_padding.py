"""Padded entries are never read."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from learner.config import LearnerConfig
from learner.ppo import gae as gae_module
from learner.ppo import targets as targets_module
from learner.ppo.batch import Batch, make_batch
from learner.ppo.gae import Advantages
from learner.ppo.optimizer import make_optimizer
from learner.ppo.update import PPOUpdate
from tests.support.learning.toy import POLICIES, SPACES, toy_network, toy_seed, toy_wave

CONFIG = LearnerConfig(state_stride=1, gamma=0.95, update_epochs=2, minibatches=2, target_kl=10.0)
LENGTHS = (2, 9, 6, 1, 9)
Estimate = Callable[..., Advantages]


def batch(**options: Any) -> Batch:
    seeds = [toy_seed(n, truncated=i % 2 == 0, salt=i) for i, n in enumerate(LENGTHS)]
    return make_batch(toy_wave(toy_network(**options), seeds), SPACES)


def over_nan(estimate: Estimate) -> Estimate:
    """`estimate`, given rewards and values with NaN at the padding."""

    def filled(rewards: Tensor, values: Tensor, valid: Tensor, *rest: Any) -> Advantages:
        rewards, values = (t.masked_fill(~valid, torch.nan) for t in (rewards, values))
        return estimate(rewards, values, valid, *rest)

    return filled


def without_bootstrap(clean: Batch) -> Batch:
    """NaN as the value after the end of episodes that terminated."""
    return clean._replace(bootstrap_value=torch.where(clean.terminated, torch.nan, clean.bootstrap_value))


def outcome(b: Batch, **options: Any) -> tuple[dict[str, float], list[Tensor], list[Tensor]]:
    """Metrics, last gradients, and weights and statistics after one update."""
    network = toy_network(**options)
    metrics = PPOUpdate(network, make_optimizer(network, 1e-3, 1e-2), CONFIG)(b, update=0, version=0)
    gradients = [p.grad.clone() for p in network.parameters() if p.grad is not None]
    return metrics, gradients, [t.clone() for t in network.state_dict().values()]


def check_inert(estimate: Estimate = gae_module.gae, **options: Any) -> None:
    clean = batch(**options)
    metrics, gradients, after = outcome(copy.deepcopy(clean), **options)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(targets_module, "gae", over_nan(estimate))
        dirty_metrics, dirty_gradients, dirty_after = outcome(without_bootstrap(clean), **options)
    assert metrics == dirty_metrics
    assert len(gradients) == len(dirty_gradients) > 10
    assert all(torch.equal(a, b) for a, b in zip(gradients, dirty_gradients, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(after, dirty_after, strict=True))
    assert all(bool(t.isfinite().all()) for t in after)
    assert metrics["skipped_steps"] == 0
    assert any(bool((g != 0).any()) for g in gradients)


@pytest.mark.parametrize("options", POLICIES)
def test_padding_full_of_nan_changes_neither_loss_nor_gradients_nor_statistics(options: dict[str, str]) -> None:
    check_inert(**options)


def gae_over_padding(
    rewards: Tensor, values: Tensor, valid: Tensor, terminated: Tensor, bootstrap: Tensor, gamma: float, lam: float
) -> Advantages:
    return gae_module.gae(rewards, values, torch.ones_like(valid), terminated, bootstrap, gamma, lam)


def sloppy_gae(
    rewards: Tensor, values: Tensor, valid: Tensor, terminated: Tensor, bootstrap: Tensor, gamma: float, lam: float
) -> Advantages:
    """Zeroes padding by multiplying with the mask, which keeps a NaN."""
    return gae_module.gae(rewards * valid, values * valid, torch.ones_like(valid), terminated, bootstrap, gamma, lam)


@pytest.mark.parametrize("wrong", [gae_over_padding, sloppy_gae])
def test_advantages_that_read_padding_are_caught(wrong: Estimate) -> None:
    with pytest.raises(AssertionError):
        check_inert(wrong)
