"""An episode depends on its seeds and actions only; test rows affect nothing."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from actors.env.env import SeedTrainingEnv
from actors.env.tasks import DataFiles, Split, Task, registry
from tests.support.env.walks import WAIT, random_legal, tiny_env


def trace(env: SeedTrainingEnv, seed: int, walk_seed: int = 0, epochs: int = 12) -> list[NDArray[Any]]:
    """Return all observations and rewards of an episode with random legal actions."""
    rng = np.random.default_rng(walk_seed)
    seen, info = env.reset(seed=seed)
    out = [seen["obs"], seen["blueprint_indices"], info["action_mask"]]
    for _ in range(epochs):
        seen, reward, terminated, _, info = env.step(random_legal(rng, env))
        out += [seen["obs"], seen["blueprint_indices"], info["action_mask"], np.array(reward)]
        if terminated:
            break
    return out


def same(a: list[NDArray[Any]], b: list[NDArray[Any]]) -> bool:
    return len(a) == len(b) and all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("name", ["digits", "spirals", "wine"])
def test_an_episode_depends_on_seeds_and_actions_only(name: str) -> None:
    first = trace(tiny_env(5, tasks=(name,)), 9)
    used = tiny_env(5, tasks=(name,))
    trace(used, 8, walk_seed=3, epochs=7)
    np.random.seed(0)  # noqa: NPY002 (the global generator must not be used)
    assert same(first, trace(used, 9))
    assert not same(first, trace(tiny_env(6, tasks=(name,)), 9))
    assert not same(first, trace(tiny_env(5, tasks=(name,)), 10))


def test_minibatches_cover_the_training_rows_and_wrap() -> None:
    env = tiny_env(tasks=("wine",), inner_steps=3, batch_size=32)
    env.reset(seed=0)
    rows = len(env.episode.task.train)
    drawn: list[int] = []
    for _ in range(10):
        drawn += env.episode.plan_epoch(*env.episode.growth.read(WAIT)).data.rows.ravel().tolist()
        env.step(WAIT)
    assert len(drawn) == 10 * 96
    passes = [drawn[i : i + rows] for i in range(0, len(drawn) - rows + 1, rows)]
    assert all(sorted(p) == list(range(rows)) for p in passes)
    assert passes[0] != passes[1]


def test_test_rows_affect_no_episode(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = registry.find_family("spirals")

    def poisoned(rng: np.random.Generator) -> Task:
        made = honest.make(rng, DataFiles())
        return dataclasses.replace(made, test=Split(np.full_like(made.test.x, np.nan), made.test.y))

    env = tiny_env()
    clean = trace(env, 2)
    accuracy = env.test_accuracy()
    monkeypatch.setitem(registry._FAMILIES, "spirals", dataclasses.replace(honest, factory=poisoned))
    env = tiny_env()
    assert same(clean, trace(env, 2))
    assert env.test_accuracy() != accuracy  # which does read them
