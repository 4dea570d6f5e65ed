"""Pretraining by imitation: the demonstrations, the stored policy, and when it is skipped."""

from __future__ import annotations

import io
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from rich.console import Console
from sklearn.linear_model import Ridge
from sklearn.preprocessing import StandardScaler

from actors.config import EnvConfig, PolicyConfig
from actors.env.blueprints.family import blueprint_choices, blueprint_index
from actors.errors import UserError
from actors.policy.publish import architecture_hash
from actors.rules.schedule import NEVER, Scheduled, fixed_column
from deploy.config.schema import PRESETS, Config, ImitationConfig
from deploy.evaluation import suite
from deploy.evaluation.play import play
from deploy.launch import pretraining
from deploy.launch.prepare import open_run, pretrain
from deploy.launch.pretraining import POLICY, Demonstration, demonstrate, demonstrators, expected
from learner.run.checkpoint import load_policy

ENV = EnvConfig(
    tasks=("spirals",), slots=2, host_width=(2, 8), horizon_epochs=8, inner_steps=2, device="cpu", rent_weight=4.0
)
RULES = ("fixed-column:same@3", "fixed-column:quad@1")


def told(config: Config, run_dir: Path) -> tuple[Config, str]:
    out = io.StringIO()
    return pretrain(config, run_dir, Console(file=out, width=200)), out.getvalue()


@contextmanager
def threads(jobs: int) -> Iterator[ThreadPoolExecutor]:
    """In place of a pool of processes, which each need seconds to start."""
    with ThreadPoolExecutor(jobs) as pool:
        yield pool


@pytest.fixture(autouse=True)
def fast_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pretraining, "workers", threads)


@pytest.fixture
def config(tmp_path: Path) -> Config:
    own = ImitationConfig(episodes=64, passes=8, rules=RULES)
    policy = PolicyConfig(hidden_size=16, encoder_size=16, head_size=8)
    base = Config(env=ENV, policy=policy, imitation=own)
    return replace(base, run=replace(base.run, root=str(tmp_path / "runs"), name="taught", seed=3))


def test_rules_are_demonstrated_in_proportion_to_what_they_are_expected_to_gain(config: Config) -> None:
    """Compare with scikit-learn's ridge regression on gains and rents measured by the evaluation code."""
    env = replace(config.env, tasks=("spirals", "moons"), horizon_epochs=12, inner_steps=16, rent_weight=(0.25, 8.0))
    asked = replace(config, env=env, imitation=replace(config.imitation, temperature=2.0))
    plans = demonstrators(asked)
    columns = [fixed_column(blueprint_index(f"column_{size}"), 3) for size in ("same", "quad")]
    assert plans == [NEVER, *columns]  # it looks on for three epochs first
    episodes = demonstrate(asked)
    assert len({e.seed for e in episodes}) == len(episodes) == 64
    by_task = [[e for e in episodes if e.task_id == task] for task in env.tasks]
    rules = suite.protocol(env, 1.0)
    measured = []
    for task, shown in zip(env.tasks, by_task, strict=True):
        assert len(shown) == 32
        own = replace(suite.on_family(rules, task), host_width=env.host_width)
        seeds = [e.seed for e in shown]
        rows = [play(lambda spaces, p=p: Scheduled(spaces, p), own, 3, seeds, read_test=False) for p in plans]
        measured.append([[(r.gain - b.gain, r.rent - b.rent) for r, b in zip(x, rows[0], strict=True)] for x in rows])
    worth = np.concatenate(measured, 1)  # [plans, N, 2]
    shown = [e for own in by_task for e in own]
    seen = np.array([e.obs[min(3, len(e) - 1)] for e in shown], np.float64)
    x = StandardScaler().fit_transform(seen).clip(-4, 4)[:, seen.std(0) > 1e-6]
    y = np.moveaxis(worth[1:], 0, 2).reshape(64, -1)
    fitted = Ridge(alpha=0.01 * 64, fit_intercept=False).fit(x, y - y.mean(0)).predict(x) + y.mean(0)
    price = np.array([e.telemetry["rent_weight"] for e in shown])[:, None]
    assert price.max() > 2 * price.min()
    value = np.concatenate([np.zeros((64, 1)), fitted[:, :2] - price * fitted[:, 2:]], 1) / 2.0
    chance = np.exp(value) / np.exp(value).sum(1, keepdims=True)
    grown = [e.actions[e.actions[:, 0] == 1] for e in shown]
    chosen = np.array([0 if not len(a) else 1 + ("same", "quad").index(_size(a[0])) for a in grown])
    counts = np.bincount(chosen, minlength=3)
    spread = np.sqrt((chance * (1.0 - chance)).sum(0))
    assert (np.abs(counts - chance.sum(0)) <= 2.5 * spread + 1e-9).all()
    surprise = -np.log(chance[np.arange(64), chosen]).sum()  # of each host, not of all together
    usual = -(chance * np.log(chance)).sum()
    assert surprise == pytest.approx(usual, abs=2.5 * np.sqrt(64) * 0.5)


def _size(action: NDArray[np.int64]) -> str:
    return blueprint_choices()[action[2]].removeprefix("column_")


def test_with_odds_by_task_the_mean_gain_decides(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """Made-up episodes: on the first task only the second rule gains, on the second task nothing does."""

    def wave(*args: Any) -> list[Demonstration]:
        env, plan, seeds = args[2:]
        gains = 50.0 * (env.tasks == ("spirals",)) * (plan.start == 4) - 50.0 * (env.tasks == ("moons",))
        episode = SimpleNamespace(obs=np.zeros((8, 3), np.float32), plan=plan, task=env.tasks[0])
        return [Demonstration(episode, 0.0 if plan == NEVER else gains, 0.0, 1.0)] * len(seeds)  # type: ignore[arg-type]

    monkeypatch.setattr(pretraining, "_wave", wave)
    monkeypatch.setattr(pretraining, "workers", lambda jobs: nullcontext(SimpleNamespace(map=map)))
    own = replace(config.imitation, odds="task", rules=("fixed-column:same@3", "fixed-column:same@4"))
    shown = demonstrate(replace(config, env=replace(config.env, tasks=("spirals", "moons")), imitation=own))
    starts = {(e.task, e.plan.start if e.plan != NEVER else -1) for e in shown}  # type: ignore[attr-defined]
    assert starts == {("spirals", 4), ("moons", -1)}


def test_the_expectation_recovers_a_linear_signal_from_noise() -> None:
    rng = np.random.default_rng(0)
    seen = rng.standard_normal((4000, 6)).astype(np.float32)
    seen[:, 5] = 1.0  # says nothing
    truth = np.stack([2.0 * seen[:, 0] - seen[:, 3] + 0.5, seen[:, 1] - 3.0], 1)
    told = expected(seen, truth + 8.0 * rng.standard_normal((4000, 2)))
    assert np.sqrt(np.mean((told - truth) ** 2)) < 0.5
    assert expected(seen[:, 5:], np.arange(4000.0)[:, None]) == pytest.approx(1999.5)  # nothing seen: the mean


@pytest.mark.long
def test_demonstrations_are_the_same_for_the_same_run_seed(config: Config) -> None:
    asked = replace(config, imitation=replace(config.imitation, episodes=32))
    first, again = demonstrate(asked), demonstrate(asked)
    assert [e.seed for e in again] == [e.seed for e in first]
    assert all(np.array_equal(a.actions, b.actions) for a, b in zip(again, first, strict=True))


def test_only_a_new_run_starts_from_the_pretrained_policy(config: Config) -> None:
    run_dir = open_run(config, None)
    begun, said = told(config, run_dir)
    assert Path(begun.run.init_from) == (run_dir / POLICY).absolute()
    policy = load_policy(begun.run.init_from)
    assert architecture_hash(policy.spaces, policy.config) == architecture_hash(policy.spaces, config.policy)
    assert "imitated 64 episodes" in said
    kept = (run_dir / POLICY).read_bytes()
    assert told(config, run_dir) == (begun, "")  # kept, not made again
    assert (run_dir / POLICY).read_bytes() == kept
    without = replace(config, imitation=replace(config.imitation, episodes=0))
    elsewhere = replace(config, run=replace(config.run, init_from="a"))
    for other in (without, elsewhere):
        assert told(other, run_dir) == (other, "")
    (run_dir / "checkpoints" / "update_00000001.safetensors").write_bytes(kept)
    assert told(config, run_dir) == (config, "")  # it has trained: nothing to begin with
    keeping = replace(config, learner=replace(config.learner, prior_start=1.0))
    assert told(keeping, run_dir)[0].run.init_from == begun.run.init_from  # but what it began with is its prior


def test_rules_that_cannot_be_imitated_are_rejected_before_anything_is_written(config: Config) -> None:
    for name, words in (("fixed-column:huge@3", "is not a rule"), ("gap", "only never, periodic and fixed-column")):
        with pytest.raises(UserError, match=words):
            open_run(replace(config, imitation=replace(config.imitation, rules=(name,))), None)
    assert not Path(config.run.root).exists()
    general = PRESETS["general"]
    with pytest.raises(UserError, match="pretraining needs seed hosts"):
        replace(general, gym=replace(general.gym, id="CartPole-v1"), imitation=config.imitation)
