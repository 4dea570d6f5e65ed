"""Pretraining by imitation: the demonstrations, the stored policy, and when it is skipped."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from sklearn.linear_model import Ridge
from sklearn.preprocessing import StandardScaler

from actors.config import EnvConfig, PolicyConfig
from actors.errors import UserError
from actors.policy.publish import architecture_hash
from deploy.config.schema import PRESETS, Config, ImitationConfig
from deploy.evaluation import suite, tune
from deploy.evaluation.play import play
from deploy.evaluation.schedules import NEVER, Schedule, Scheduled
from deploy.launch.prepare import open_run, pretrain
from deploy.launch.pretraining import POLICY, demonstrate, demonstrators, expected_gain
from learner.checkpoint import load_policy

ENV = EnvConfig(tasks=("spirals",), slots=2, horizon_epochs=8, inner_steps=2, device="cpu", rent_weight=4.0)
PERIODIC = Schedule("periodic", 0, 1, 1, 2, 1, 2, 0, 1)


def told(config: Config, run_dir: Path) -> tuple[Config, str]:
    out = io.StringIO()
    return pretrain(config, run_dir, Console(file=out, width=200)), out.getvalue()


@pytest.fixture
def config(tmp_path: Path) -> Config:
    kinds = {"periodic": {"0": tune.Winner(NEVER, 0.0, 1), "5": tune.Winner(PERIODIC, 0.0, 1)}}
    schedules = tmp_path / "schedules.json"
    tune.Tuned(tune.rules(suite.protocol(ENV, 5.0)), 1, ("spirals",), kinds, {}).save(schedules)
    own = ImitationConfig(episodes=64, passes=8, schedules=str(schedules))
    policy = PolicyConfig(hidden_size=16, encoder_size=16, head_size=8)
    base = Config(env=ENV, policy=policy, imitation=own)
    return replace(base, run=replace(base.run, root=str(tmp_path / "runs"), name="taught", seed=3))


def test_demonstrations_grow_with_the_probability_given_by_the_expected_gain(config: Config) -> None:
    """Compare with scikit-learn's ridge regression on the gains measured by the evaluation code."""
    env = replace(config.env, tasks=("spirals", "moons"), horizon_epochs=16, inner_steps=16)
    asked = replace(config, env=env, imitation=replace(config.imitation, episodes=64, temperature=2.0))
    schedules = {"periodic": {"5": tune.Winner(replace(PERIODIC, blueprint=3), 0.0, 1)}}
    rules = suite.protocol(env, env.rent_weight)
    tune.Tuned(tune.rules(rules), 1, env.tasks, schedules, {}).save(Path(asked.imitation.schedules))
    plans = demonstrators(asked)
    assert plans == [NEVER, replace(PERIODIC, blueprint=3, start=2)]  # it looks on for two epochs first
    episodes = demonstrate(asked)
    assert len({e.seed for e in episodes}) == len(episodes) == 64
    gains: list[float] = []
    seen: list[Any] = []
    grown: list[bool] = []
    for task in env.tasks:
        shown = [e for e in episodes if e.task_id == task]
        assert len(shown) == 32
        worth = []
        for plan in plans:
            rows = play(lambda spaces, p=plan: Scheduled(spaces, [p] * 32, 16), suite.on_family(rules, task),
                        asked.run.seed, [e.seed for e in shown], read_test=False)  # fmt: skip
            worth.append(np.array([row.objective(env.rent_weight) for row in rows]))
        gains += (worth[1] - worth[0]).tolist()
        begun = [np.flatnonzero(e.actions[:, 0] == 1) for e in shown]
        assert {int(epochs[0]) for epochs in begun if epochs.size} <= {2}
        grown += [bool(epochs.size) for epochs in begun]
        seen += [e.obs[2] for e in shown]
    x = StandardScaler().fit_transform(np.array(seen, np.float64)).clip(-4, 4)
    x = x[:, np.array(seen).std(0) > 1e-6]
    told = Ridge(alpha=0.01 * 64, fit_intercept=False).fit(x, np.array(gains) - np.mean(gains)).predict(x)
    chance = 1.0 / (1.0 + np.exp(-(told + np.mean(gains)) / 2.0))
    spread = np.sqrt((chance * (1.0 - chance)).sum())
    assert sum(grown) == pytest.approx(chance.sum(), abs=2.5 * spread)
    surprise = -np.log(np.where(grown, chance, 1.0 - chance)).sum()  # of each host, not of all together
    by_task = demonstrate(replace(asked, imitation=replace(asked.imitation, odds="task")))
    for k, task in enumerate(env.tasks):
        mean = 1.0 / (1.0 + np.exp(-np.mean(gains[32 * k : 32 * k + 32]) / 2.0))
        often = np.mean([(e.actions[:, 0] == 1).any() for e in by_task if e.task_id == task])
        assert often == pytest.approx(mean, abs=2.5 * np.sqrt(mean * (1.0 - mean) / 32) + 0.02)
    usual = -(chance * np.log(chance) + (1.0 - chance) * np.log(1.0 - chance)).sum()
    assert surprise == pytest.approx(usual, abs=2.5 * np.sqrt(64) * 0.5)


def test_the_expected_gain_recovers_a_linear_signal_from_noise() -> None:
    rng = np.random.default_rng(0)
    seen = rng.standard_normal((4000, 6)).astype(np.float32)
    seen[:, 5] = 1.0  # says nothing
    truth = 2.0 * seen[:, 0] - seen[:, 3] + 0.5
    told = expected_gain(seen, truth + 8.0 * rng.standard_normal(4000))
    assert np.sqrt(np.mean((told - truth) ** 2)) < 0.5
    assert expected_gain(seen[:, 5:], np.arange(4000.0)) == pytest.approx(1999.5)  # nothing seen: the mean


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


def test_settings_without_tuned_schedules_are_rejected_before_anything_is_written(config: Config) -> None:
    other = replace(config, env=replace(config.env, horizon_epochs=9))
    with pytest.raises(UserError, match="was tuned for another horizon_epochs"):
        open_run(other, None)
    assert not Path(config.run.root).exists()
    general = PRESETS["general"]
    with pytest.raises(UserError, match="pretraining needs seed hosts"):
        replace(general, gym=replace(general.gym, id="CartPole-v1"), imitation=config.imitation)


def test_the_shipped_schedules_match_the_default_settings() -> None:
    raw = json.loads(tune.SCHEDULES.read_text())
    assert raw["configurations"] >= 50
    found = demonstrators(Config(imitation=ImitationConfig(episodes=32)))
    assert [s.kind for s in found] == ["periodic", "periodic"]
    assert found[0] == NEVER
