"""User errors: each gives one clear line on stderr and exit status 2, and changes no files."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from actors.errors import UserError
from actors.policy.network import FactoredRecurrentActorCritic
from actors.policy.saved import CheckpointKey
from actors.slots.spaces import seed_spaces
from deploy.cli import main
from deploy.config.schema import PRESETS, Config
from deploy.config.yaml import to_yaml
from deploy.launch.prepare import open_run
from learner.ppo.optimizer import make_optimizer
from learner.run.checkpoint import LearnerProgress, list_checkpoints, load_checkpoint, save_checkpoint
from tests.support.launching import small

pytestmark = pytest.mark.integration
Complaint = Callable[..., str]


@pytest.fixture(autouse=True)
def restored_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Restore variables that commands set for Ray, and run outside the repository."""
    for name in ("RAY_AUTH_TOKEN", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "RAY_USAGE_STATS_ENABLED"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def complaint(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Complaint:
    """Run a command that must exit with 2 and change no file. Returns its one line on stderr."""

    def files() -> dict[Path, bytes]:
        return {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}

    def command(*args: str) -> str:
        before = files()
        assert main(list(args)) == 2
        assert files() == before
        (line,) = capfd.readouterr().err.splitlines()
        assert line.startswith("tamiyo: error: ")
        return str(line)

    return command


def save(folder: Path, config: Config, progress: LearnerProgress) -> None:
    network = FactoredRecurrentActorCritic(seed_spaces(config.env.total_slots), config.policy)
    save_checkpoint(folder / "checkpoints", network, make_optimizer(network, 1e-3, 0.0), progress, (), 8, 3)


def run_folder(root: Path, config: Config) -> Path:
    folder = root / "runs" / "mine"
    save(folder, config, LearnerProgress(update=1))
    (folder / "config.yaml").write_text(to_yaml(config))
    return folder


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--env.slots", "9"], "a host has at most 8 slots of both kinds"),
        (["--env", "tests.support.env.gym_envs:tests/Whole-v0"], "takes Box actions of whole numbers: only Discrete"),
        (["--env", "CartPole-v8"], "there is no Gymnasium environment 'CartPole-v8'; did you mean CartPole-v1?"),
        (["--env.tasks", "nope"], "'nope', which is not a task: choose from breast_cancer, cassini"),
        (["--run.root", "mine.yaml"], "cannot write to"),
        (["--resume", "empty"], "it has no config.yaml"),
        (["--resume", "mine.yaml"], "is not in the checkpoints folder of a run"),
        (["--run.name", "mine"], "already holds a run: continue it with --resume"),
        (["--resume", "runs/mine", "--policy.hidden_size", "64"], "the checkpoint's architecture differs from the"),
        (["--resume", "runs/mine", "--learner.device", "cuda"], "PyTorch finds no CUDA device: use auto or cpu"),
    ],
)
def test_train_refuses_in_one_line(flags: list[str], words: str, tmp_path: Path, complaint: Complaint) -> None:
    if "cuda" in flags and torch.cuda.is_available():
        pytest.skip("a CUDA device is here")
    (tmp_path / "mine.yaml").write_text("learner: {learning_rate: 0.1}\n")
    (tmp_path / "empty").mkdir()
    if {"mine", "runs/mine"} & {*flags}:
        run_folder(tmp_path, Config())
    assert words in complaint("train", *flags)


@pytest.mark.parametrize("command", ["train", "learner", "actors"])
def test_unreachable_servers_and_used_ports_are_reported(command: str, tmp_path: Path, complaint: Complaint) -> None:
    with socket.socket() as bound:  # bound and not listening: nobody answers, and nobody else gets the port
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]
        url = f"redis://127.0.0.1:{port}/0"
        assert url in complaint(command, *small(tmp_path / "runs", "lost"), "--redis", url)
        if command == "train":
            bound.listen()
            line = complaint("train", *small(tmp_path / "runs", "ported", run__metrics_port=port))
            assert f"run.metrics_port is {port}, but that port is in use" in line


def test_a_run_can_be_resumed_from_an_earlier_checkpoint(tmp_path: Path) -> None:
    """This also works if the newest checkpoint is damaged, as its error message advises."""
    folder = run_folder(tmp_path, Config())
    good = list_checkpoints(folder / "checkpoints")[0]
    (folder / "checkpoints" / "generation_00004_update_00000009.safetensors").write_bytes(b"\x00" * 64)
    with pytest.raises(UserError, match=r"update_00000009.* is not a readable checkpoint"):
        open_run(Config(), folder)
    assert open_run(Config(), good) == folder
    newest = load_checkpoint(folder)
    assert (newest.progress.update, newest.progress.generation, newest.ancestors) == (1, 5, (CheckpointKey(0, 1),))


def test_a_run_is_not_resumed_in_another_environment_of_the_same_spaces(tmp_path: Path, complaint: Complaint) -> None:
    general = PRESETS["general"]
    trained = replace(general, gym=replace(general.gym, id="gymnasium:CartPole-v1"))
    folder = run_folder(tmp_path, trained)
    said = complaint("train", "--resume", str(folder), "--env", "CartPole-v0")
    assert f"{folder} has trained in CartPole-v1, not in CartPole-v0: resume it without --env" in said
    with pytest.raises(UserError, match="architecture"):  # the next check: this checkpoint is of seed hosts
        open_run(replace(trained, gym=replace(trained.gym, id="CartPole-v1")), folder)


def test_a_run_without_updates_can_be_restarted_with_other_settings(tmp_path: Path) -> None:
    config = replace(Config(), run=replace(Config().run, root=str(tmp_path), name="mine"))
    save(tmp_path / "mine", config, LearnerProgress())
    assert open_run(config, None) == tmp_path / "mine"
    assert not list_checkpoints(tmp_path / "mine" / "checkpoints")
