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


def batches() -> list[Batch]:
    """Of unequal lengths, so that shapes differ from update to update."""
    found = []
    for salt in range(5):
        seeds = [toy_seed(1 + (3 * n + salt) % 7, truncated=n % 2 == 0, salt=n) for n in range(3)]
        found.append(make_batch(toy_wave(toy_network(), seeds), SPACES, chunk_length=3, burn_in=2))
    return found


def measure(process: psutil.Process) -> tuple[int, int]:
    """(bytes of resident memory, live tensors)."""
    gc.collect()
    tensors = sum(type(o) in (torch.Tensor, torch.nn.Parameter) for o in gc.get_objects())
    return process.memory_info().rss, tensors


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("updates", [50, pytest.param(10_000, marks=pytest.mark.long)])
def test_updates_leave_nothing_behind(updates: int) -> None:
    """After a tenth of them to warm up."""
    network = toy_network()
    config = LearnerConfig(state_stride=1, gamma=0.9, target_kl=10.0, chunk_length=3, burn_in=2)
    ppo, own, process = PPOUpdate(network, make_optimizer(network, 1e-4, 0.0), config), batches(), psutil.Process()
    for update in range(updates // 10):
        ppo(own[update % len(own)], update=update, version=update)
    before = measure(process)
    for update in range(updates):
        ppo(own[update % len(own)], update=update, version=update)
    after = measure(process)
    assert after[1] <= before[1]  # what tests before left may go meanwhile
    assert after[0] - before[0] < 8 * 2**20
