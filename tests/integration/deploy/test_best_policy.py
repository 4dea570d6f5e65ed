"""The best policy of a run that gets worse later is kept, and used unless the newest is asked for."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

import tamiyo
from actors.config import ActingConfig, ActorsConfig, GymConfig
from actors.policy.baselines import RandomPolicy
from actors.policy.saved import BEST
from actors.rollout.sampler import make_sampler
from actors.rollout.wave import Provenance
from actors.types.weights import WeightSet
from actors.workers.rollout_worker import PolicyEvaluation
from deploy.cli import main
from deploy.commands import serve
from deploy.commands.serve_flags import ServeFlags
from deploy.config.flags import parse
from deploy.launch import best_policy
from deploy.launch.best_policy import BestPolicy
from learner.ppo.update import PPOUpdate
from learner.run.checkpoint import load_checkpoint
from tests.support.env import gym_envs
from tests.support.launching import rows

pytestmark = pytest.mark.integration
FLAGS = [
    *("--env", "tests/Paying-v0", "--actors.envs_per_actor", "2", "--run.evaluate_every", "1"),
    *("--learner.batch_episodes", "2", "--learner.batch_steps", "20"),
    *("--run.reference_episodes", "0", "--gym.max_segment_steps", "16", "--learner.minibatches", "1"),
    *("--learner.chunk_length", "16", "--learner.burn_in", "0"),
]
GOOD = (3, 4)  # updates after which the policy takes the action that pays


class Paying(gymnasium.Env[Any, Any]):
    """Five steps, each of which pays the number of its action."""

    observation_space = spaces.Box(0.0, 1.0, (1,), np.float32)
    action_space: spaces.Discrete = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.left = 5
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.left -= 1
        return np.zeros(1, np.float32), float(action), self.left == 0, False, {}


gymnasium.register("tests/Paying-v0", Paying)


@pytest.fixture
def steered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the preferred action after each update."""
    update: Callable[..., dict[str, float]] = PPOUpdate.__call__

    def steered(ppo: PPOUpdate, batch: Any, number: int, version: int) -> dict[str, float]:
        metrics = update(ppo, batch, number, version)
        bias = dict(ppo.network.named_parameters())["heads.op.2.bias"]
        with torch.no_grad():
            bias.copy_(torch.tensor([0.0, 9.0] if number + 1 in GOOD else [9.0, 0.0]))
        return metrics

    monkeypatch.setattr(PPOUpdate, "__call__", steered)
    monkeypatch.setattr(best_policy, "EPISODES", 3)
    monkeypatch.setattr(best_policy, "SHARE", 1.0)  # an evaluation after each update, however long it takes


@pytest.mark.usefixtures("steered")
def test_a_run_that_gets_worse_keeps_its_best_policy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, root = tmp_path / "r", ["--run.root", str(tmp_path), "--run.name", "r"]
    assert main(["train", "--in-process", *FLAGS, *root, "--learner.updates", "6"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "update 3: mean return 5.0 (95% interval 5.0 to 5.0) of 3 evaluation episodes, the best so far" in printed
    assert f"the best policy is that of update 4: tamiyo play {run}" in printed
    lines = rows(run / "evaluations.jsonl")
    assert {row["update"]: row["return_mean"] for row in lines} == {u: 5.0 * (u in GOOD) for u in range(1, 7)}
    assert load_checkpoint(run / BEST).progress.update == 4  # of equal ones, the later
    assert main(["train", "--in-process", "--resume", str(run), "--learner.updates", "8"]) == 0
    assert [row["update"] for row in rows(run / "evaluations.jsonl")] == list(range(1, 9))

    newest = load_checkpoint(run).progress
    assert newest.update == 8
    versions = load_checkpoint(run / BEST).weights.version, newest.version
    for latest, file, action in ((False, BEST, 1), (True, "update_00000008.safetensors", 0)):
        assert tamiyo.load_policy(run, latest=latest).act([0.0]) == action
        capsys.readouterr()
        assert main(["play", str(run), "--episodes", "4", *["--latest"] * latest]) == 0
        assert f"{file}: 4 episodes, mean return {5.0 * action} " in capsys.readouterr().out
        assert serve._source(ServeFlags(checkpoint=run, latest=latest)).version == versions[latest]


def test_evaluations_take_a_tenth_of_the_time_and_survive_faults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, notes = [100.0], list[str]()
    monkeypatch.setattr(best_policy.time, "monotonic", lambda: now[0])
    config = parse("train", FLAGS).config
    best = BestPolicy(tmp_path, config, notes.append)
    faulty = PolicyEvaluation(WeightSet(0, 1, "", "{}", 1, {}), [], "it gave NaN")
    update = dict.fromkeys(("policy_version", "update", "episodes_trained", "env_steps", "elapsed_s"), 1.0)
    assert not best.due
    best.after_update(update)
    assert best.due
    assert best.began() == 10.0  # seconds that it may take
    now[0] += 2.0
    for _ in range(2):
        best.take(faulty)
    assert notes == ["no evaluation: it gave NaN; evaluations are tried again"]
    assert not (tmp_path / BEST).exists()
    best.after_update(update)
    now[0] += 17.9
    assert not best.due
    now[0] += 0.2
    assert best.due
    assert not BestPolicy(tmp_path, parse("train", []).config, notes.append).due


def test_a_line_that_was_cut_off_costs_neither_the_best_policy_nor_the_next_line(tmp_path: Path) -> None:
    whole, cut = '{"update": 1, "return_mean": 5.0}', '{"update": 2, "return_me'
    (tmp_path / BEST).write_bytes(b"kept")
    (tmp_path / best_policy.EVALUATIONS).write_text(f"{whole}\n{cut}")
    worse = PolicyEvaluation(WeightSet(3, 1, "", "{}", 1, {}), [{"return": 1.0}, {"return": 3.0}], "")
    for _ in range(2):
        BestPolicy(tmp_path, parse("train", FLAGS).config, print).take(worse)
    assert (tmp_path / BEST).read_bytes() == b"kept"
    lines = (tmp_path / best_policy.EVALUATIONS).read_text().splitlines()
    assert lines[:2] == [whole, cut]
    assert [json.loads(line)["return_mean"] for line in lines[2:]] == [2.0, 2.0]


def test_an_evaluation_that_takes_too_long_is_given_up() -> None:
    endless = GymConfig(id=f"{gym_envs.__name__}:tests/Constant-v0", kwargs=("length=0",))
    sampler = make_sampler(ActingConfig(gym=endless, actors=ActorsConfig(envs_per_actor=2)), 0, 0, None)
    policy, asked = RandomPolicy(sampler.spaces), itertools.count()
    with pytest.raises(TimeoutError, match="2 of 2 episodes have not ended"):
        sampler.play(policy, Provenance(0, 0, 1, 0), [1, 2], True, lambda: next(asked) == 5)
    assert next(asked) == 6
    sampler.sample(policy, Provenance(0, 0, 1, 0))  # training continues
    sampler.close()
