"""An episode depends on its seeds and actions only, not on other environments; test rows affect nothing."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from actors.config import ConfigError, EnvConfig
from actors.env.env import SeedTrainingEnv
from actors.env.tasks import DataFiles, Split, Task, registry
from actors.types.actions import Op
from tests.support.env.reference_env import ReferenceFleet
from tests.support.env.walks import TINY, act, random_legal, tiny_env


def test_an_unknown_task_is_rejected_when_the_environment_is_made() -> None:
    with pytest.raises(ConfigError, match="'nope', which is not a task: choose from breast_cancer"):
        tiny_env(tasks=("spirals", "nope"))


def test_all_tasks_are_drawn() -> None:
    env = tiny_env(tasks=("digits", "wine", "spirals"))
    names = [env.reset(seed=seed)[1]["task_id"] for seed in range(40)]
    assert {name: names.count(name) > 5 for name in names} == dict.fromkeys(("digits", "wine", "spirals"), True)


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
    honest = env.episode._minibatches
    env.episode._minibatches = lambda epoch: drawn.extend(honest(epoch).ravel()) or honest(epoch)  # type: ignore[method-assign, func-returns-value]
    for _ in range(10):
        env.step(act(Op.WAIT))
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


SETTINGS: dict[str, Any] = TINY | {"tasks": ("spirals", "wine"), "horizon_epochs": 8}


def fleet_trace(seeds: list[int], poison: int = -1) -> list[list[NDArray[Any]]]:
    """Return observations and rewards `[E]` of a fleet in which each environment follows its own fixed plan."""
    fleet = ReferenceFleet(EnvConfig(**SETTINGS), len(seeds), 0)
    seen = fleet.reset(seeds)
    out: list[list[NDArray[Any]]] = [[seen.obs[e]] for e in range(len(seeds))]
    running = [True] * len(seeds)
    for epoch in range(8):
        actions = np.stack([PLANS[seed][epoch] for seed in seeds])
        if epoch == 3 and poison >= 0:
            fleet.envs[poison].network.group.params["in.w"].data.fill_(float("nan"))
        seen = fleet.step(actions)
        for e in range(len(seeds)):
            if running[e]:
                out[e] += [seen.obs[e].copy(), seen.rewards[e].copy()]
                running[e] = not seen.terminated[e]
            else:
                assert seen.rewards[e] == 0
                np.testing.assert_array_equal(seen.obs[e], out[e][-2])
    return out


GROW = [act(Op.GERMINATE, 1, 3), act(Op.ADVANCE, 1), act(Op.ADVANCE, 1)]
PLANS = {
    11: [act(Op.WAIT)] * 8,
    12: [*GROW, *[act(Op.WAIT)] * 5],
    13: [*GROW, act(Op.WAIT), act(Op.PRUNE, 1), act(Op.GERMINATE, 0, 6), act(Op.ADVANCE), act(Op.WAIT)],
}


def test_an_environment_plays_the_same_episode_alone_and_in_a_fleet() -> None:
    together = fleet_trace([11, 12, 13])
    for e, seed in enumerate((11, 12, 13)):
        assert same(together[e], fleet_trace([seed])[0])
    assert not same(together[0], together[1])


def test_an_environment_that_ends_early_does_not_affect_the_others() -> None:
    together, broken = fleet_trace([11, 12, 13]), fleet_trace([11, 12, 13], poison=1)
    assert len(broken[1]) < len(together[1])
    assert same(together[0], broken[0])
    assert same(together[2], broken[2])
