"""A run's first lesson: who demonstrates, what is kept, and when there is none."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from actors.config import EnvConfig, PolicyConfig
from actors.errors import UserError
from deploy.config import PRESETS, Config, ImitationConfig
from deploy.evaluation import suite, tune
from deploy.evaluation.schedules import KINDS, NEVER, Schedule
from deploy.imitation import POLICY, demonstrate, demonstrators
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


def test_demonstrations_are_what_the_schedules_do(config: Config) -> None:
    """Most of them by the periodic schedule of the nearest rent weight; seeds are the run's, and never the same."""
    shares = demonstrators(config)
    assert shares[0] == (0.6, replace(PERIODIC, start=2))
    assert {s.kind for _, s in shares[1:-1]} == {"gradient"}
    assert shares[-1][1] == replace(NEVER, start=2)
    assert sum(share for share, _ in shares) == pytest.approx(1.0)
    episodes = demonstrate(config)
    assert len(episodes) == len({e.seed for e in episodes}) == 64
    germinated = np.array([e.actions[e.actions[:, 0] == 1][:1, 2].tolist() or [0] for e in episodes])[:, 0]
    by = {blueprint: float(np.mean(germinated == blueprint)) for blueprint in (0, 2, 3)}
    assert by[2] == pytest.approx(0.6, abs=0.2)
    assert by[3] == pytest.approx(0.8 / 3, abs=0.2)
    assert by[0] == pytest.approx(0.4 / 3, abs=0.15)  # never
    begun = {int(np.flatnonzero(e.actions[:, 0] == 1)[0]) for e in episodes if (e.actions[:, 0] == 1).any()}
    assert begun == {2}  # all look on for two epochs first
    again = demonstrate(config)
    assert [e.seed for e in again] == [e.seed for e in episodes]
    assert all(np.array_equal(a.actions, b.actions) for a, b in zip(again, episodes, strict=True))


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
    assert found[0][1].kind == "periodic"
    assert {s.kind for _, s in found} == set(KINDS)
