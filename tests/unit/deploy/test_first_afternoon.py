"""What a new user does first: an environment in the working directory, a policy that plays in it, a video."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.envs.classic_control.cartpole import CartPoleEnv
from gymnasium.spaces.utils import flatten
from gymnasium.utils.env_checker import check_env
from PIL import Image, ImageSequence

import tamiyo
from actors.config import GymConfig, PolicyConfig
from actors.errors import UserError
from actors.gym.make import gym_converter
from actors.policy.network import FactoredRecurrentActorCritic
from deploy.cli import main
from deploy.commands.play import episode_seeds
from deploy.report.numbers import number
from learner.ppo.optimizer import make_optimizer
from learner.run.checkpoint import LearnerProgress, save_checkpoint

EXAMPLES = Path(__file__).parents[3] / "examples"
SMALL = PolicyConfig(hidden_size=12, encoder_size=10, head_size=8)


@pytest.fixture(autouse=True)
def in_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Work where the `tamiyo` command of a user does: in the folder of the environments, which is not on the path."""
    monkeypatch.chdir(EXAMPLES)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p not in ("", str(EXAMPLES))])


def run_in(folder: Path, env_id: str) -> Path:
    """A run folder with an untrained policy."""
    torch.manual_seed(1)
    network = FactoredRecurrentActorCritic(gym_converter(GymConfig(id=env_id)).spaces, SMALL)
    save_checkpoint(folder, network, make_optimizer(network, 1e-3, 0.0), LearnerProgress(), (), 8, 1)
    (folder / "config.yaml").write_text(f"gym: {{id: '{env_id}'}}\n")
    return folder


@pytest.mark.parametrize(("module", "name", "size"), [("warehouse", "Warehouse", 22), ("catch", "Catch", 50)])
def test_an_example_is_found_in_the_working_directory_and_obeys_gymnasium(module: str, name: str, size: int) -> None:
    assert gym_converter(GymConfig(id=f"{module}:{name}-v0")).spaces.obs_size == size
    check_env(getattr(importlib.import_module(module), name)(), skip_render_check=True)


def one_by_one(policy: tamiyo.LoadedPolicy, seed: int) -> float:
    """The return of an episode that is played without the samplers and kernels of actors."""
    env, total, over = policy.make_env(), 0.0, False
    obs, _ = env.reset(seed=seed)
    policy.reset()
    while not over:
        obs, reward, over, _, _ = env.step(policy.act(obs))
        total += reward
    return total


def rows_of_the_ball(frames: Any) -> list[int]:
    """In each frame the first row of 16 pixels that is bright."""
    return [int(np.argmax(frame.max(axis=1) > 128)) // 16 for frame in frames]


def test_a_loaded_policy_keeps_its_state_until_it_is_reset(tmp_path: Path) -> None:
    policy = tamiyo.load_policy(run_in(tmp_path, "warehouse:Warehouse-v0"))
    network, env, values = policy.network, policy.make_env(), list[float]()
    for _ in range(2):
        (obs, info), state = env.reset(seed=3), None
        policy.reset()
        for _ in range(9):
            flat = flatten(env.observation_space, obs).astype(np.float32)  # Gymnasium's own
            legal = tamiyo.ActionMasks.of_flat(network.spaces.action, info["action_mask"].astype(bool)[None])
            noise = np.zeros((1, 1))
            chosen, state = network.act(flat[None], np.zeros((1, 0), np.int64), legal, state, noise, deterministic=True)
            action = policy.act(obs, info["action_mask"])
            assert info["action_mask"][action]
            assert action == chosen.actions[0, 0]
            assert policy.answer is not None
            assert policy.answer.value == pytest.approx(float(chosen.values[0]), abs=1e-6)
            values.append(policy.answer.value)
            obs, *_, info = env.step(action)
    assert values[:9] == values[9:]
    assert len(set(values)) > 5


def test_a_checkpoint_outside_its_run_takes_flat_observations(tmp_path: Path) -> None:
    (checkpoint,) = run_in(tmp_path / "run" / "checkpoints", "catch:Catch-v0").glob("*.safetensors")
    policy = tamiyo.load_policy(checkpoint.rename(tmp_path / checkpoint.name))
    assert policy.act([0.0] * 50) in range(3)
    assert policy.act(np.zeros(50), [0, 1, 0]) == 1
    for given, refused in (
        ([np.zeros(49)], "has 49 features: give 50"),
        ([np.zeros(50), [0, 1]], "has 2 entries: give 3"),
    ):
        with pytest.raises(tamiyo.PolicyError, match=refused):
            policy.act(*given)
    with pytest.raises(UserError, match="make yours yourself"):
        policy.make_env()


def test_play_prints_the_return_and_films_an_episode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run, video = run_in(tmp_path, "catch:Catch-v0"), tmp_path / "catch.gif"
    assert main(["play", str(run), "--episodes", "12", "--video", str(video)]) == 0
    line, filmed = capsys.readouterr().out.splitlines()
    returns = [one_by_one(tamiyo.load_policy(run), seed) for seed in episode_seeds(0, 12)]
    assert f"12 episodes, mean return {number(float(np.mean(returns)), sign='-')} (95% interval " in line
    with Image.open(video) as film:
        assert (film.size, film.n_frames) == ((80, 160), 10)  # rows of the ball, the first one included
        frames = [np.asarray(frame.convert("L")) for frame in ImageSequence.Iterator(film)]
    assert rows_of_the_ball(frames) == list(range(10))  # the ball falls a row a frame
    assert f"{video}: 10 frames" in filmed
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    assert main(["play", str(run), "--video", str(tmp_path / "catch.mp4")]) == 2
    assert "pip install 'tamiyo[video]'" in capsys.readouterr().err
    still = run_in(tmp_path / "still", "warehouse:Warehouse-v0")
    assert main(["play", str(still), "--episodes", "2", "--video", str(video)]) == 2
    assert "Warehouse-v0 does not render rgb_array: leave --video out" in capsys.readouterr().err


def test_an_mp4_has_the_frames_of_the_episode(tmp_path: Path) -> None:
    from imageio_ffmpeg import get_ffmpeg_exe

    # imageio starts ffmpeg by a fork, which gRPC of other tests would disturb: it has a process of its own.
    video, run = tmp_path / "catch.mp4", run_in(tmp_path, "catch:Catch-v0")
    command = [sys.executable, "-m", "deploy.cli", "play", str(run), "--episodes", "2", "--video", str(video)]
    subprocess.run(command, check=True)
    read = [get_ffmpeg_exe(), "-i", str(video), "-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
    found = subprocess.run(read, capture_output=True, check=True)
    frames = np.frombuffer(found.stdout, np.uint8).reshape(-1, 160, 80, 3)
    assert b"Video: h264" in found.stderr
    assert rows_of_the_ball(frames[..., 0]) == list(range(10))


class Unpainted(CartPoleEnv):
    """Says that it renders, and does not."""

    def __init__(self, render_mode: str | None = None, blank: bool = False) -> None:
        super().__init__(render_mode=render_mode)
        self.blank = blank

    def render(self) -> Any:
        if not self.blank:
            raise NotImplementedError


gymnasium.register("tests/Unpainted-v0", Unpainted)


@pytest.mark.parametrize(("blank", "reason"), [("True", "rendered a NoneType"), ("False", "cannot be rendered: Not")])
def test_an_environment_that_does_not_render_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], blank: str, reason: str
) -> None:
    run = run_in(tmp_path, "tests/Unpainted-v0")
    (run / "config.yaml").write_text(f"gym: {{id: tests/Unpainted-v0, kwargs: [blank={blank}]}}\n")
    assert main(["play", str(run), "--episodes", "2", "--video", str(tmp_path / "v.gif")]) == 2
    (refused,) = capsys.readouterr().err.splitlines()
    assert f"tests/Unpainted-v0 {reason}" in refused
