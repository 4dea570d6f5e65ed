"""A run that continues from its checkpoint makes the same update as one that never stopped."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from actors.policy.network import FactoredRecurrentActorCritic
from actors.policy.publish import from_weights
from learner.config import LearnerConfig
from learner.ppo.batch import Batch, make_batch
from learner.ppo.optimizer import make_optimizer
from learner.ppo.update import PPOUpdate
from learner.run.checkpoint import (
    Checkpoint,
    LearnerProgress,
    list_checkpoints,
    load_checkpoint,
    load_network,
    restore_optimizer,
    save_checkpoint,
)
from tests.support.learning.toy import SPACES, toy_network, toy_seed, toy_wave

CONFIG = LearnerConfig(
    state_stride=2, gamma=0.97, update_epochs=2, minibatches=3, entropy_anneal_updates=5, target_kl=10.0, lr=1e-2
)
Restored = tuple[FactoredRecurrentActorCritic, torch.optim.Optimizer, int]


def batch(salt: int, config: LearnerConfig) -> Batch:
    seeds = [toy_seed(n, truncated=n % 2 == 0, salt=salt + n) for n in (3, 8, 5, 1, 6)]
    episodes = toy_wave(toy_network(), seeds, state_stride=2)
    return make_batch(episodes, SPACES, config.chunk_length, config.burn_in)


def train(
    network: FactoredRecurrentActorCritic,
    optimizer: torch.optim.Optimizer,
    first: int,
    last: int,
    config: LearnerConfig = CONFIG,
) -> dict[str, float]:
    ppo = PPOUpdate(network, optimizer, config, seed=4)
    metrics: dict[str, float] = {}
    for update in range(first, last):
        metrics = ppo(batch(100 * update, config), update, version=update)
    return metrics


def check_resume(folder: Path, restore: Callable[[Checkpoint], Restored], config: LearnerConfig = CONFIG) -> None:
    """Two updates, a checkpoint, new objects, one more update; beside a run that never stopped."""
    network = toy_network()
    optimizer = make_optimizer(network, CONFIG.lr)
    train(network, optimizer, 0, 2, config)
    path = save_checkpoint(folder, network, optimizer, LearnerProgress(update=2, version=2), ("run/a/0/1",), 2, keep=3)
    torch.manual_seed(12345)  # a new process starts elsewhere
    other, other_optimizer, update = restore(load_checkpoint(path))
    expected = train(network, optimizer, 2, 3, config)
    actual = train(other, other_optimizer, update, update + 1, config)
    torch.testing.assert_close(network.state_dict(), other.state_dict(), rtol=0, atol=0)
    torch.testing.assert_close(optimizer.state_dict()["state"], other_optimizer.state_dict()["state"], rtol=0, atol=0)
    assert actual == expected


def restore(checkpoint: Checkpoint) -> Restored:
    network = from_weights(checkpoint.weights).train()
    optimizer = make_optimizer(network, CONFIG.lr)
    restore_optimizer(optimizer, network, checkpoint.moments)
    return network, optimizer, checkpoint.progress.update


def without_moments(checkpoint: Checkpoint) -> Restored:
    network, _, update = restore(checkpoint)
    return network, make_optimizer(network, CONFIG.lr), update


def without_the_counter(checkpoint: Checkpoint) -> Restored:
    """Minibatches and the entropy coefficient would start over."""
    network, optimizer, _ = restore(checkpoint)
    return network, optimizer, 0


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"chunk_length": 4, "burn_in": 2},
        {"objective": "decoupled"},
        {"precision": "bf16", "chunk_length": 2, "burn_in": 4},
    ],
)
def test_the_next_update_is_equal_to_the_bit(options: dict[str, Any], tmp_path: Path) -> None:
    check_resume(tmp_path, restore, replace(CONFIG, **options))


@pytest.mark.parametrize("wrong", [without_moments, without_the_counter])
def test_a_resume_that_forgets_something_is_caught(wrong: Callable[[Checkpoint], Restored], tmp_path: Path) -> None:
    with pytest.raises(AssertionError):
        check_resume(tmp_path, wrong)


def test_a_checkpoint_holds_what_it_was_given_and_old_ones_go(tmp_path: Path) -> None:
    network = toy_network()
    optimizer = make_optimizer(network, 1e-3, 0.0)
    consumed = ("run/a/1/0", "run/a/1/1")
    for update in range(5):
        progress = LearnerProgress(update, update + 3, generation=2, episodes_trained=9, env_steps=50, elapsed_s=1.5)
        save_checkpoint(tmp_path / "checkpoints", network, optimizer, progress, consumed, 4, keep=2)
    kept = [f"generation_00002_update_0000000{update}.safetensors" for update in (3, 4)]
    assert [p.name for p in list_checkpoints(tmp_path / "checkpoints")] == kept
    newest = load_checkpoint(tmp_path)  # a run folder
    assert (newest.progress, newest.consumed) == (progress, consumed)
    assert (newest.weights.version, newest.weights.generation, newest.weights.state_stride) == (7, 2, 4)
    assert not newest.moments  # the optimizer has not stepped
    assert not list(tmp_path.glob("**/*.partial"))
    policy = load_network(tmp_path)
    assert not policy.training
    assert all(torch.equal(t, policy.state_dict()[n]) for n, t in network.state_dict().items())
