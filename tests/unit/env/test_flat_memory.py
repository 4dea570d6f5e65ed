"""Memory does not grow over 1,000 episodes: nothing that an episode allocates outlives it."""

from __future__ import annotations

import gc
from typing import Any, NamedTuple

import numpy as np
import psutil
import pytest
import torch

from actors.config import EnvConfig
from actors.env.seed_fleet import SeedTrainingFleet
from tests.support.env.fleets import random_actions

pytestmark = pytest.mark.timeout(400)
ENVS, EPISODES = 32, 1000
SHORT: dict[str, Any] = {"horizon_epochs": (2, 4), "inner_steps": (1, 2), "batch_size": 4, "budget_ratio": 40.0}


class Memory(NamedTuple):
    resident: int  # bytes of the process
    tensors: int
    tensor_bytes: int
    objects: int  # tracked by the garbage collector


def memory() -> Memory:
    gc.collect()
    objects = gc.get_objects()
    tensors = [o for o in objects if type(o) is torch.Tensor]  # without the compiler's fake tensors
    return Memory(psutil.Process().memory_info().rss, len(tensors), sum(t.nbytes for t in tensors), len(objects))


def play(tasks: tuple[str, ...], episodes: int) -> list[Memory]:
    """Play random episodes; reset ended ones, and some before their end. Measure memory every 100 episodes."""
    fleet = SeedTrainingFleet(EnvConfig(tasks=tasks, **SHORT), ENVS, 0)
    rng = np.random.default_rng(0)
    seen, played, measured = fleet.reset(range(ENVS)), 0, []
    while played < episodes:
        seen = fleet.step(random_actions(fleet, seen, rng.uniform(size=(ENVS, 6))))
        again = seen.terminated | (rng.random(ENVS) < 0.01)
        if again.any():
            seen = fleet.reset_envs({int(e): int(rng.integers(2**30)) for e in np.flatnonzero(again)})
        played += int(again.sum())
        if played // 100 > len(measured):
            measured.append(memory())
    return measured


@pytest.mark.parametrize(
    ("tasks", "episodes", "mib"),
    [
        pytest.param(("wine",), 500, 8, id="one kind"),
        pytest.param(("wine", "wave_forms", "digits_image"), EPISODES, 24, id="mixed kinds", marks=pytest.mark.long),
    ],
)
def test_memory_does_not_grow_with_the_number_of_episodes(tasks: tuple[str, ...], episodes: int, mib: float) -> None:
    """Stacks of varying sizes fragment the allocator, so resident memory has a margin; tensors are counted exactly."""
    measured = play(tasks, episodes)
    first, last = measured[: len(measured) // 4 + 1], measured[-len(measured) // 3 :]  # warm-up, and the last third
    more = Memory(*(max(part) - max(start) for start, part in zip(zip(*first), zip(*last), strict=True)))  # noqa: B905
    assert more.resident < mib * 2**20
    assert more.tensors <= measured[0].tensors // 2
    assert more.tensor_bytes <= measured[0].tensor_bytes // 2
    assert more.objects < 10_000
