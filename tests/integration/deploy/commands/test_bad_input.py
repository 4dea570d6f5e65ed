"""User errors: each gives one clear line on stderr and exit status 2, and changes no files."""

from __future__ import annotations

import socket
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


def complaint(capfd: pytest.CaptureFixture[str], *args: str) -> str:
    """Run a command that must exit with 2, and return its one line on stderr."""
    assert main(list(args)) == 2
    lines = capfd.readouterr().err.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("tamiyo: error: ")
    return lines[0]


@pytest.fixture(autouse=True)
def restored_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Restore variables that commands set for Ray, and run outside the repository."""
    for name in ("RAY_AUTH_TOKEN", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "RAY_USAGE_STATS_ENABLED"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)


def test_an_unknown_key_is_reported(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.yaml").write_text("learner: {learning_rate: 0.1}\n")
    line = complaint(capfd, "train", "--config", "mine.yaml")
    assert "unknown key 'learning_rate' in section 'learner'" in line
    assert "mine.yaml" in line
    assert "unknown flag --learner.lrr; did you mean --learner.lr?" in complaint(capfd, "train", "--learner.lrr", "1")
    assert "a host has at most 8 slots of both kinds" in complaint(capfd, "train", "--env.slots", "9")
    assert list(tmp_path.iterdir()) == [tmp_path / "mine.yaml"]


@pytest.mark.parametrize(
    ("env", "words"),
    [
        (
            "tests.support.env.gym_envs:tests/Whole-v0",
            "takes Box actions of whole numbers: only Discrete, MultiDiscrete",
        ),
        ("CartPole-v8", "there is no Gymnasium environment 'CartPole-v8'; did you mean CartPole-v1?"),
    ],
)
def test_an_unusable_environment_is_reported(
    env: str, words: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert words in complaint(capfd, "train", "--env", env)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("command", ["train", "learner", "actors"])
def test_an_unreachable_redis_server_is_reported(
    command: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as bound:  # bound and not listening: nobody answers, and nobody else gets the port
        bound.bind(("127.0.0.1", 0))
        url = f"redis://127.0.0.1:{bound.getsockname()[1]}/0"
        line = complaint(capfd, command, *small(tmp_path / "runs", "lost"), "--redis", url)
    assert url in line


@pytest.mark.parametrize("command", ["learner", "actors"])
def test_a_missing_redis_url_is_reported(command: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert "--redis redis://HOST:6379/0" in complaint(capfd, command, *small(tmp_path / "runs", "lost"))


def test_a_port_in_use_is_reported(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as busy:
        busy.bind(("127.0.0.1", 0))
        busy.listen()
        port = busy.getsockname()[1]
        line = complaint(capfd, "train", *small(tmp_path, "ported", run__metrics_port=port))
    assert f"run.metrics_port is {port}, but that port is in use" in line


def test_an_existing_run_is_not_overwritten(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    kept = tmp_path / "runs" / "mine" / "checkpoints" / "update_00000007.safetensors"
    kept.parent.mkdir(parents=True)
    kept.write_bytes(b"precious")
    (kept.parents[1] / "config.yaml").write_text("run: {seed: 4}\n")
    line = complaint(capfd, "train", *small(tmp_path / "runs", "mine"))
    assert "already holds a run" in line
    assert "--resume" in line
    assert kept.read_bytes() == b"precious"
    assert (kept.parents[1] / "config.yaml").read_text() == "run: {seed: 4}\n"


def test_resuming_a_folder_that_is_not_a_run_is_rejected(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert "run folder nowhere does not exist" in complaint(capfd, "train", "--resume", "nowhere")
    (tmp_path / "empty").mkdir()
    assert "it has no config.yaml" in complaint(capfd, "train", "--resume", "empty")


def test_a_checkpoint_outside_a_run_folder_cannot_be_resumed(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "policy.safetensors").write_bytes(b"precious")
    line = complaint(capfd, "train", "--resume", str(tmp_path / "policy.safetensors"))
    assert "is not in the checkpoints folder of a run" in line
    assert "--init-from" in line


def test_an_unknown_task_and_an_unwritable_folder_are_rejected(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert "cannot write to" in complaint(capfd, "train", *small(tmp_path / "file", "x"))
    line = complaint(capfd, "train", *small(tmp_path / "runs", "x", env__tasks="nope"))
    assert "'nope', which is not a task: choose from breast_cancer, cassini" in line


def run_folder(root: Path, config: Config) -> Path:
    """Create the folder of a run with one checkpoint."""
    folder = root / "runs" / "mine"
    network = FactoredRecurrentActorCritic(seed_spaces(config.env.total_slots), config.policy)
    optimizer = make_optimizer(network, 1e-3, 0.0)
    save_checkpoint(folder / "checkpoints", network, optimizer, LearnerProgress(update=1), (), 8, 3)
    (folder / "config.yaml").write_text(to_yaml(config))
    return folder


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--policy.hidden_size", "64"], "the checkpoint's architecture differs from the configuration"),
        (["--env.slots", "2"], "the checkpoint's architecture differs from the configuration"),
        (["--env.tasks", "nope"], "'nope', which is not a task: choose from breast_cancer, cassini"),
        (["--learner.device", "cuda"], "PyTorch finds no CUDA device: use auto or cpu"),
    ],
)
def test_resuming_with_incompatible_settings_changes_nothing(
    flags: list[str], words: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    if "cuda" in flags and torch.cuda.is_available():
        pytest.skip("a CUDA device is here")
    folder = run_folder(tmp_path, Config())
    before = {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    assert words in complaint(capfd, "train", "--resume", str(folder), *flags)
    assert {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()} == before


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


def test_a_run_is_not_resumed_in_another_environment(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """CartPole-v0 has the same spaces."""
    general = PRESETS["general"]
    trained = replace(general, gym=replace(general.gym, id="gymnasium:CartPole-v1"))
    folder = run_folder(tmp_path, trained)
    for other, name in (("CartPole-v0", "CartPole-v0"), ("", "the seed-training environment")):
        said = complaint(capfd, "train", "--resume", str(folder), "--env", other)
        assert f"{folder} has trained in CartPole-v1, not in {name}: resume it without --env" in said
    with pytest.raises(UserError, match="architecture"):  # the next check: this checkpoint is of seed hosts
        open_run(replace(trained, gym=replace(trained.gym, id="CartPole-v1")), folder)


def test_a_run_without_updates_can_be_restarted_with_other_settings(tmp_path: Path) -> None:
    config = replace(Config(), run=replace(Config().run, root=str(tmp_path), name="mine"))
    folder, network = tmp_path / "mine", FactoredRecurrentActorCritic(seed_spaces(2), config.policy)
    save_checkpoint(folder / "checkpoints", network, make_optimizer(network, 1e-3, 0.0), LearnerProgress(), (), 8, 3)
    assert open_run(config, None) == folder
    assert not list_checkpoints(folder / "checkpoints")


def test_a_damaged_checkpoint_is_reported(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = run_folder(tmp_path, Config())
    path = folder / "checkpoints" / "generation_00001_update_00000001.safetensors"
    path.write_bytes(b"\x00" * 64)
    line = complaint(capfd, "train", "--resume", str(folder))
    assert "generation_00001_update_00000001.safetensors is not a readable checkpoint" in line
    assert path.exists()
