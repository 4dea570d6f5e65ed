"""Memory does not grow with updates."""

from __future__ import annotations

import gc

import psutil
import pytest
import torch

from tests.support.learning.batches import toy_batch, toy_ppo


def measure(process: psutil.Process) -> tuple[int, int]:
    """(bytes of resident memory, live tensors)."""
    gc.collect()
    tensors = sum(type(o) in (torch.Tensor, torch.nn.Parameter) for o in gc.get_objects())
    return process.memory_info().rss, tensors


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("updates", [50, pytest.param(10_000, marks=pytest.mark.long)])
def test_updates_leave_nothing_behind(updates: int) -> None:
    """After a tenth of them to warm up."""
    ppo, process = toy_ppo(1e-4, chunk_length=3, burn_in=2), psutil.Process()
    # Of unequal lengths, so that shapes differ from update to update.
    own = [toy_batch([1 + (3 * n + first) % 7 for n in range(3)], 3, 2) for first in range(5)]
    for update in range(updates // 10):
        ppo(own[update % len(own)], update=update, version=update)
    before = measure(process)
    for update in range(updates):
        ppo(own[update % len(own)], update=update, version=update)
    after = measure(process)
    assert after[1] <= before[1]  # what tests before left may go meanwhile
    assert after[0] - before[0] < 8 * 2**20
