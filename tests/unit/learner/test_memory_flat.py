"""Memory does not grow with updates."""

from __future__ import annotations

import gc

import psutil
import pytest
import torch

from learner.config import LearnerConfig
from learner.ppo.batch import Batch, make_batch
from learner.ppo.optimizer import make_optimizer
from learner.ppo.update import PPOUpdate
from tests.support.learning.toy import SPACES, toy_network, toy_seed, toy_wave

MB = 2**20


def batches() -> list[Batch]:
    """Of unequal lengths, so that shapes differ from update to update."""
    found = []
    for salt in range(5):
        seeds = [toy_seed(1 + (3 * n + salt) % 7, truncated=n % 2 == 0, salt=n) for n in range(3)]
        found.append(make_batch(toy_wave(toy_network(), seeds), SPACES, chunk_length=3, burn_in=2))
    return found


def growth(updates: int, ppo_type: type[PPOUpdate] = PPOUpdate) -> tuple[float, int]:
    """(megabytes of resident memory, live tensors) that `updates` more updates add, after a tenth to warm up."""
    network = toy_network()
    config = LearnerConfig(state_stride=1, gamma=0.9, target_kl=10.0, chunk_length=3, burn_in=2)
    ppo, own, process = ppo_type(network, make_optimizer(network, 1e-4, 0.0), config), batches(), psutil.Process()

    def measure() -> tuple[int, int]:
        gc.collect()
        tensors = sum(type(o) in (torch.Tensor, torch.nn.Parameter) for o in gc.get_objects())
        return process.memory_info().rss, tensors

    for update in range(updates // 10):
        ppo(own[update % len(own)], update=update, version=update)
    before = measure()
    for update in range(updates):
        ppo(own[update % len(own)], update=update, version=update)
    after = measure()
    return (after[0] - before[0]) / MB, after[1] - before[1]


def test_fifty_updates_leave_nothing_behind() -> None:
    megabytes, tensors = growth(50)
    assert tensors <= 0  # what tests before left may go meanwhile
    assert megabytes < 8


class Keeping(PPOUpdate):
    """Holds on to one small graph per update, the common leak."""

    def __call__(self, batch: Batch, update: int, version: int) -> dict[str, float]:
        metrics = super().__call__(batch, update, version)
        self.__dict__.setdefault("kept", []).append(torch.zeros(1, requires_grad=True) * metrics["kl"])
        return metrics


def test_a_leak_is_seen() -> None:
    _, tensors = growth(20, Keeping)
    assert tensors >= 20


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_memory_is_flat_over_ten_thousand_updates() -> None:
    megabytes, tensors = growth(10_000)
    assert tensors <= 0  # what tests before left may go meanwhile
    assert megabytes < 8
