"""Pretraining by imitation: the demonstrations, the stored policy, and when it is skipped."""

from __future__ import annotations

import io
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from actors.codec import encode_episode
from actors.config import EnvConfig, PolicyConfig
from actors.env.seed_fleet import SeedTrainingFleet
from actors.errors import UserError
from actors.policy.publish import from_weights
from actors.policy.saved import TRAINED, read_weights
from actors.rollout.episode_files import write_bytes
from actors.rollout.wave import Provenance, run_wave
from actors.types.episode import EndReason
from deploy.config.schema import Config, ImitationConfig
from deploy.imitation import teacher
from deploy.imitation.pretraining import POLICY
from deploy.imitation.teacher import demonstrate
from deploy.launch.prepare import open_run, pretrain
from learner.run.checkpoint import load_network

SMALL = {"slots": 2, "host_width": (2, 8), "horizon_epochs": 8, "inner_steps": 2}
ENV = EnvConfig(tasks=("spirals",), device="cpu", points_per_doubling=4.0, **SMALL)  # type: ignore[arg-type]


def told(config: Config, run_dir: Path) -> tuple[Config, str]:
    out = io.StringIO()
    return pretrain(config, run_dir, Console(file=out, width=200)), out.getvalue()


@pytest.fixture(autouse=True)
def threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """In place of a pool of processes, which each need seconds to start."""
    monkeypatch.setattr(teacher, "workers", ThreadPoolExecutor)


@pytest.fixture
def config(tmp_path: Path) -> Config:
    own = ImitationConfig(episodes=64, hosts=16)
    policy = PolicyConfig(hidden_size=16, encoder_size=16, head_size=8)
    base = Config(env=ENV, policy=policy, imitation=own)
    return replace(base, run=replace(base.run, root=str(tmp_path / "runs"), name="taught", seed=3))


@pytest.mark.long
def test_demonstrations_are_the_same_for_the_same_run_seed(config: Config) -> None:
    asked = replace(config, imitation=replace(config.imitation, episodes=32))
    first, again = demonstrate(asked, 2), demonstrate(asked, 2)
    assert [e.seed for e in again] == [e.seed for e in first]
    assert all(np.array_equal(a.actions, b.actions) for a, b in zip(again, first, strict=True))


def test_only_a_new_run_starts_from_the_pretrained_policy(config: Config) -> None:
    run_dir = open_run(config, None)
    begun, said = told(config, run_dir)
    assert Path(begun.run.init_from) == (run_dir / POLICY).absolute()
    assert load_network(begun.run.init_from).config.hidden_size == config.policy.hidden_size
    assert "imitated 64 episodes" in said
    kept = (run_dir / POLICY).read_bytes()
    assert told(config, run_dir) == (begun, "")  # kept, not made again
    assert (run_dir / POLICY).read_bytes() == kept
    without = replace(config, imitation=replace(config.imitation, episodes=0))
    elsewhere = replace(config, run=replace(config.run, init_from="a"))
    for other in (without, elsewhere):
        assert told(other, run_dir) == (other, "")
    (run_dir / "checkpoints" / "generation_00001_update_00000001.safetensors").write_bytes(kept)
    assert told(config, run_dir) == (config, "")  # it has trained: nothing to begin with
    keeping = replace(config, learner=replace(config.learner, prior_coef=1.0))
    assert told(keeping, run_dir)[0].run.init_from == begun.run.init_from  # but what it began with is its prior


def write_demonstrations(config: Config, folder: Path, count: int) -> list[Path]:
    """Write episodes of the packaged policy in the environment of a run as files; the last one is cut."""
    fleet, weights = SeedTrainingFleet(config.env, count, 5), read_weights(TRAINED)
    source = Provenance(weights.version, weights.generation, state_stride=3, run_seed=5)
    episodes = run_wave(fleet, from_weights(weights, spaces=fleet.spaces), range(count), source)
    folder.mkdir()
    for n, episode in enumerate(episodes):
        end = {"terminated": False, "truncated": True, "end_reason": EndReason.CUT} if n == count - 1 else {}
        named = replace(episode, episode_id=f"other/actor/0/{n}", **end)
        write_bytes(folder / f"{n:02}.episode", encode_episode(named))
    return sorted(folder.iterdir())


@pytest.mark.long
def test_demonstrations_from_files_are_imitated_alone_or_beside_the_teachers(config: Config, tmp_path: Path) -> None:
    files = write_demonstrations(config, tmp_path / "files", 41)
    own = replace(config.imitation, files=(str(tmp_path / "files"), str(files[0])), episodes=0)
    alone = replace(config, imitation=own)
    begun, said = told(alone, open_run(alone, None))
    assert begun.run.init_from.endswith(POLICY)
    assert "40 demonstrations from files" in said
    assert f"{files[40]}: refused: it was cut: a demonstration is a whole episode" in " ".join(said.split())
    assert "imitated 40 episodes" in said
    before, after = re.search(r"loss ([\d.]+) > ([\d.]+) nats", said).groups()
    assert float(after) < 0.95 * float(before)

    both = replace(config, imitation=replace(own, episodes=32), run=replace(config.run, name="both"))
    assert "imitated 72 episodes" in told(both, open_run(both, None))[1]


def test_files_that_cannot_be_imitated_are_refused_before_a_run_starts(config: Config, tmp_path: Path) -> None:
    write_demonstrations(replace(config, env=replace(ENV, slots=1)), tmp_path / "other", 2)
    asked = replace(config, imitation=replace(config.imitation, files=(str(tmp_path / "other"),), episodes=0))
    with pytest.raises(UserError, match=r"has 0 usable episodes.*00.episode: refused: .*its spaces are"):
        open_run(asked, None)
    missing = replace(config, imitation=replace(config.imitation, files=(str(tmp_path / "none"),)))
    with pytest.raises(UserError, match="there is no file"):
        open_run(missing, None)
    assert not (tmp_path / "runs").exists()
