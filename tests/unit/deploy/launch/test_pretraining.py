"""Pretraining by imitation: the demonstrations, the stored policy, and when it is skipped."""

from __future__ import annotations

import io
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from actors.config import EnvConfig, PolicyConfig
from actors.errors import UserError
from actors.policy.publish import architecture_hash
from deploy.config.schema import PRESETS, Config, ImitationConfig
from deploy.launch.imitation import teacher
from deploy.launch.imitation.pretraining import POLICY
from deploy.launch.imitation.teacher import demonstrate
from deploy.launch.prepare import open_run, pretrain
from learner.run.checkpoint import load_policy

ENV = EnvConfig(
    tasks=("spirals",), slots=2, host_width=(2, 8), horizon_epochs=8, inner_steps=2, device="cpu", rent_weight=4.0
)
RULES = ("fixed-column:same@3", "fixed-column:quad@-4")


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
    monkeypatch.setattr(teacher, "workers", threads)


@pytest.fixture
def config(tmp_path: Path) -> Config:
    own = ImitationConfig(episodes=64, hosts=16, passes=8, rules=RULES)
    policy = PolicyConfig(hidden_size=16, encoder_size=16, head_size=8)
    base = Config(env=ENV, policy=policy, imitation=own)
    return replace(base, run=replace(base.run, root=str(tmp_path / "runs"), name="taught", seed=3))


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
    for name, words in (
        ("fixed-column:huge@3", "is not a rule"),
        ("gap", "chooses from rules fixed-column"),
        ("fixed-column:same@1", "chooses at epoch 3"),
    ):
        with pytest.raises(UserError, match=words):
            open_run(replace(config, imitation=replace(config.imitation, rules=(name,))), None)
    assert not Path(config.run.root).exists()
    general = PRESETS["general"]
    with pytest.raises(UserError, match="pretraining needs seed hosts"):
        replace(general, gym=replace(general.gym, id="CartPole-v1"), imitation=config.imitation)
