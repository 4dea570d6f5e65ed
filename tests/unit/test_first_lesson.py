"""A run's first lesson: who demonstrates, what is kept, and when there is none."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from actors.config import EnvConfig, PolicyConfig
from actors.errors import UserError
from deploy.config import PRESETS, Config, ImitationConfig
from deploy.evaluation import suite, tune
from deploy.evaluation.play import play
from deploy.evaluation.schedules import KINDS, NEVER, Schedule, Scheduled
from deploy.imitation import POLICY, best, demonstrate, demonstrators
from deploy.launch import first_lesson, open_run
from learner.checkpoint import load_policy

ENV = EnvConfig(tasks=("spirals",), slots=2, horizon_epochs=8, inner_steps=2, device="cpu", rent_weight=4.0)
PERIODIC = Schedule("periodic", 0, 1, 1, 2, 1, 2, 0, 1)
GRADIENT = replace(PERIODIC, kind="gradient", blueprint=3)


def told(config: Config, run_dir: Path) -> tuple[Config, str]:
    out = io.StringIO()
    return first_lesson(config, run_dir, Console(file=out, width=200)), out.getvalue()


@pytest.fixture
def config(tmp_path: Path) -> Config:
    kinds = {kind: {"5": tune.Winner(GRADIENT, 0.0, 1)} for kind in KINDS}
    kinds["periodic"] = {"0": tune.Winner(NEVER, 0.0, 1), "5": tune.Winner(PERIODIC, 0.0, 1)}
    schedules = tmp_path / "schedules.json"
    tune.Tuned(tune.rules(suite.protocol(ENV, 5.0)), 1, ("spirals",), kinds, {}).save(schedules)
    own = ImitationConfig(episodes=64, passes=8, schedules=str(schedules))
    policy = PolicyConfig(hidden_size=16, encoder_size=16, head_size=8)
    base = Config(env=ENV, policy=policy, imitation=own)
    return replace(base, run=replace(base.run, root=str(tmp_path / "runs"), name="taught", seed=3))


@pytest.mark.parametrize("rent_weight", [0.0, 40.0])
def test_demonstrations_are_by_the_schedule_that_serves_each_task_best(config: Config, rent_weight: float) -> None:
    """As an evaluation's own play finds, of the same hosts; no seed comes twice."""
    env = replace(config.env, tasks=("spirals", "moons"), rent_weight=rent_weight, horizon_epochs=16, inner_steps=16)
    asked = replace(config, env=env, imitation=replace(config.imitation, episodes=64))
    wide = replace(PERIODIC, blueprint=3, seeds=2)
    kinds = {kind: {"5": tune.Winner(wide, 0.0, 1)} for kind in KINDS}
    rules = suite.protocol(env, rent_weight)
    tune.Tuned(tune.rules(rules), 1, env.tasks, kinds, {}).save(Path(asked.imitation.schedules))
    plans = demonstrators(asked)
    late = replace(wide, start=2)  # all look on for two epochs first
    assert plans == [NEVER, late, late, late, replace(late, seeds=1)]
    episodes = demonstrate(asked)
    assert len({e.seed for e in episodes}) == len(episodes) == 64
    grown: dict[str, int] = {}
    for task in env.tasks:
        shown = [e for e in episodes if e.task_id == task]
        assert len(shown) == 32
        worth = []
        for plan in (plans[0], plans[1], plans[4]):
            own = [e.seed for e in shown]
            rows = play(lambda spaces, p=plan: Scheduled(spaces, [p] * 32, 16), suite.on_family(rules, task),
                        asked.run.seed, own, read_test=False)  # fmt: skip
            worth.append(np.mean([row.gain - rent_weight * row.rent for row in rows]))
        most = {int((e.actions[:, 0] == 1).sum()) for e in shown}
        assert most == {(0, 2, 1)[int(np.argmax(worth))]}
        begun = {int(np.flatnonzero(e.actions[:, 0] == 1)[0]) for e in shown if (e.actions[:, 0] == 1).any()}
        assert begun <= {2}
        grown[task] = max(most)
    assert grown["moons"] == 0 or rent_weight == 0.0
    assert grown["spirals"] > 0 or rent_weight > 0.0


def test_what_is_shown_is_best_on_average() -> None:
    def played(*objective: float) -> list[Any]:
        return [SimpleNamespace(telemetry={"objective": x}) for x in objective]

    steady, lucky_once, equal = played(1.0, 1.0, 1.0), played(9.0, -4.0, -4.0), played(3.0, 0.0, 0.0)
    assert best([lucky_once, steady, equal]) is steady


def test_demonstrations_are_the_same_for_the_same_run_seed(config: Config) -> None:
    asked = replace(config, imitation=replace(config.imitation, episodes=32))
    first, again = demonstrate(asked), demonstrate(asked)
    assert [e.seed for e in again] == [e.seed for e in first]
    assert all(np.array_equal(a.actions, b.actions) for a, b in zip(again, first, strict=True))


def test_a_new_run_begins_with_what_it_was_shown_and_no_other_does(config: Config) -> None:
    run_dir = open_run(config, None)
    begun, said = told(config, run_dir)
    assert Path(begun.run.init_from) == (run_dir / POLICY).absolute()
    assert load_policy(begun.run.init_from).config == config.policy
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


def test_what_nobody_tuned_for_is_refused_before_anything_is_written(config: Config) -> None:
    other = replace(config, env=replace(config.env, horizon_epochs=9))
    with pytest.raises(UserError, match="was tuned for another horizon_epochs"):
        open_run(other, None)
    assert not Path(config.run.root).exists()
    general = PRESETS["general"]
    with pytest.raises(UserError, match="schedules grow seed hosts"):
        replace(general, gym=replace(general.gym, id="CartPole-v1"), imitation=config.imitation)


def test_the_schedules_that_come_with_the_package_are_for_the_usual_settings() -> None:
    raw = json.loads(tune.SCHEDULES.read_text())
    assert raw["configurations"] >= 50
    found = demonstrators(Config(imitation=ImitationConfig(episodes=32)))
    assert found[0] == NEVER
    assert {s.kind for s in found[1:]} == set(KINDS)
