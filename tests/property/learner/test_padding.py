"""Property 4: what padding holds is never read."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from actors.policy.state import PolicyState
from learner.config import LearnerConfig
from learner.ppo import gae as gae_module
from learner.ppo import targets as targets_module
from learner.ppo import update as update_module
from learner.ppo.batching import Batch, make_batch
from learner.ppo.chunks import Chunks
from learner.ppo.gae import Advantages
from learner.ppo.optimizer import make_optimizer
from learner.ppo.update import PPOUpdate
from tests.support.toy import POLICIES, SPACES, toy_network, toy_seed, toy_wave

CONFIG = LearnerConfig(state_stride=1, gamma=0.95, update_epochs=2, minibatches=2, target_kl=10.0)
LENGTHS = (2, 9, 6, 1, 9)


def batch(**options: Any) -> Batch:
    seeds = [toy_seed(n, truncated=i % 2 == 0, salt=i) for i, n in enumerate(LENGTHS)]
    return make_batch(toy_wave(toy_network(**options), seeds), SPACES)


def filled(clean: Batch) -> Batch:
    """NaN, or numbers out of range, wherever nothing was recorded."""
    hole = ~clean.valid

    def fill(t: Tensor, value: float | bool) -> Tensor:
        return torch.where(hole.view(*hole.shape, *[1] * (t.dim() - 2)), torch.tensor(value, dtype=t.dtype), t)

    return clean._replace(
        obs=fill(clean.obs, torch.nan),
        blueprint_indices=fill(clean.blueprint_indices, 999),
        actions=fill(clean.actions, 999),
        log_probs=fill(clean.log_probs, torch.nan),
        masks=fill(clean.masks, False),
        forced=fill(clean.forced, False),
        rewards=fill(clean.rewards, torch.nan),
        version=fill(clean.version, -7),
        bootstrap_value=torch.where(clean.terminated, torch.nan, clean.bootstrap_value),
        states=PolicyState(*(torch.where(hole[None, :, :, None], torch.nan, t) for t in clean.states)),
    )


def outcome(b: Batch, **options: Any) -> tuple[dict[str, float], list[Tensor], list[Tensor]]:
    """Metrics, last gradients, and weights and statistics after one update."""
    network = toy_network(**options)
    metrics = PPOUpdate(network, make_optimizer(network, 1e-3, 1e-2), CONFIG)(b, update=0, version=0)
    gradients = [p.grad.clone() for p in network.parameters() if p.grad is not None]
    return metrics, gradients, [t.clone() for t in network.state_dict().values()]


def check_inert(**options: Any) -> None:
    clean = batch(**options)
    metrics, gradients, after = outcome(copy.deepcopy(clean), **options)
    dirty_metrics, dirty_gradients, dirty_after = outcome(filled(clean), **options)
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
def test_advantages_that_read_padding_are_caught(
    wrong: Callable[..., Advantages], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(targets_module, "gae", wrong)
    with pytest.raises(AssertionError):
        check_inert()


def test_statistics_that_read_padding_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    make = update_module.PPOUpdate.__call__

    def with_padding(self: PPOUpdate, b: Batch, update: int, version: int) -> dict[str, float]:
        metrics = make(self, b, update, version)
        self.network.encoder.update_normaliser(b.obs.flatten(0, 1))
        return metrics

    monkeypatch.setattr(PPOUpdate, "__call__", with_padding)
    with pytest.raises(AssertionError):
        check_inert()


def test_chunks_that_read_padding_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Multiplying what padding holds by zero is reading it."""
    cut = update_module.cut

    def touching(b: Batch, *arguments: int) -> Chunks:
        chunks = cut(b, *arguments)
        return chunks._replace(obs=chunks.obs + 0.0 * b.obs.mean())

    monkeypatch.setattr(update_module, "cut", touching)
    with pytest.raises(AssertionError):
        check_inert()
