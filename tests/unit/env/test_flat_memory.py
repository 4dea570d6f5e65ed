"""Memory does not grow over 1,000 episodes: nothing that an episode allocates outlives it."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import psutil
import pytest
import torch

from actors.config import EnvConfig
from actors.env.seed_fleet import SeedTrainingFleet
from actors.env.tasks import Sizes, Split, Task, TaskFamily, registry
from actors.policy.baselines import RandomPolicy
from actors.policy.state import PolicyState, StateSizes

torch.set_num_threads(1)
pytestmark = pytest.mark.timeout(400)
ENVS, WARM_UP, EPISODES = 32, 250, 1000
NO_STATE = PolicyState.zeros(StateSizes(), 0)
SHORT: dict[str, Any] = {"horizon_epochs": (2, 4), "inner_steps": (1, 2), "batch_size": 4, "budget_ratio": 40.0}
SHAPES = {"a_vector": (40,), "a_sequence": (2, 12), "an_image": (1, 8, 8)}
MOST_OBJECTS = 10_000
MIB = 2**20


@pytest.fixture(autouse=True)
def _small_tasks() -> Iterator[None]:
    for name, shape in SHAPES.items():

        def factory(rng: np.random.Generator, name: str = name, shape: tuple[int, ...] = shape) -> Task:
            def split(rows: int) -> Split:
                return Split(rng.standard_normal((rows, *shape)).astype(np.float32), rng.integers(0, 2, rows))

            return Task(name, 2, split(64), split(64), split(256), ("vector", "sequence", "image")[len(shape) - 1])

        kind = ("vector", "sequence", "image")[len(shape) - 1]
        registry.register(TaskFamily(name, "train", kind, "for a test", factory, Sizes(0, 0, 0)))  # type: ignore[arg-type]
    yield
    for name in SHAPES:
        registry._FAMILIES.pop(name)


class Memory(NamedTuple):
    resident: int  # bytes of the process
    tensors: int
    tensor_bytes: int
    objects: int  # tracked by the garbage collector


def memory() -> Memory:
    gc.collect()
    objects = gc.get_objects()
    tensors = [
        o for o in objects if type(o) in (torch.Tensor, torch.nn.Parameter)
    ]  # without the compiler's fake tensors
    return Memory(psutil.Process().memory_info().rss, len(tensors), sum(t.nbytes for t in tensors), len(objects))


def play(tasks: tuple[str, ...], episodes: int, early: float = 0.01) -> list[Memory]:
    """Play random episodes; reset ended ones, and some before their end. Measure memory every 100 episodes."""
    fleet = SeedTrainingFleet(EnvConfig(tasks=tasks, **SHORT), ENVS, 0)
    policy, rng = RandomPolicy(fleet.spaces), np.random.default_rng(0)
    seen, played, measured = fleet.reset(range(ENVS)), 0, []
    while played < episodes:
        noise = rng.uniform(size=(ENVS, 6))
        seen = fleet.step(policy.act(seen.obs, seen.blueprint_indices, seen.masks, NO_STATE, noise)[0].actions)
        again = seen.terminated | (rng.random(ENVS) < early)
        if again.any():
            seen = fleet.reset_envs({int(e): int(rng.integers(2**30)) for e in np.flatnonzero(again)})
        if (played + int(again.sum())) // 100 > played // 100:
            measured.append(memory())
        played += int(again.sum())
    return measured


def grown(measured: list[Memory]) -> Memory:
    """Return the growth from the maximum of the warm-up to the maximum of the last third."""
    first, last = measured[: len(measured) * WARM_UP // EPISODES + 1], measured[-len(measured) // 3 :]
    return Memory(*(max(part) - max(start) for start, part in zip(zip(*first), zip(*last), strict=True)))  # noqa: B905


def assert_flat(measured: list[Memory], resident_mib: float) -> None:
    more = grown(measured)
    assert more.resident < resident_mib * MIB, more
    assert more.tensors <= measured[0].tensors // 2, more
    assert more.tensor_bytes <= measured[0].tensor_bytes // 2, more
    assert more.objects < MOST_OBJECTS, more


@pytest.mark.parametrize(
    ("tasks", "episodes", "mib"),
    [
        pytest.param(("a_vector",), 500, 8, id="one kind"),
        pytest.param(("a_vector",), EPISODES, 8, id="one kind, longer", marks=pytest.mark.long),
        pytest.param(tuple(SHAPES), EPISODES, 24, id="mixed kinds", marks=pytest.mark.long),
    ],
)
def test_memory_does_not_grow_with_the_number_of_episodes(tasks: tuple[str, ...], episodes: int, mib: float) -> None:
    """Stacks of varying sizes fragment the allocator, so resident memory has a margin; tensors are counted exactly."""
    assert_flat(play(tasks, episodes), mib)
