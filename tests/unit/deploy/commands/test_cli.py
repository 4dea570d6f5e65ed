"""The `tamiyo` command line: fast imports, error messages, and a flag for every configuration field."""

from __future__ import annotations

import dataclasses
import errno
import os
import re
from pathlib import Path
from typing import get_type_hints

import pytest

from actors.errors import UserError
from deploy import cli
from deploy.config.flags import SHORT, parse
from deploy.config.schema import PRESETS, Config
from deploy.config.yaml import overlay, to_yaml

OF_COMMANDS = ("--help", "--preset", "--config", "--resume", "--in-process", "--show-settings")


def test_the_help_shows_every_setting_on_four_screens(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["train", "--help"]) == 0
    text = capsys.readouterr().out
    assert len(text.splitlines()) <= 4 * 50
    assert all(len(line) <= 100 for line in text.splitlines())
    shown = re.findall(r"^  (--\S+)", text, re.MULTILINE)
    settings = [f"{s}.{f.name}" for s, cls in get_type_hints(Config).items() for f in dataclasses.fields(cls)]
    flags = [SHORT[name].replace("_", "-") if name in SHORT else f"--{name}" for name in settings]
    assert sorted(shown) == sorted([*OF_COMMANDS, *flags])
    assert cli.main(["actors", "--help"]) == 0
    assert "--resume" not in capsys.readouterr().out


INVALID = [
    (["train", "--learner.lrr", "3"], "unknown flag --learner.lrr; did you mean --learner.lr?"),
    (["train", "--learner.lr", "x"], "learner.lr is 'x': give a number"),
    (["train", "--env.prune", "maybe"], "env.prune is 'maybe': give true or false"),
    (["train", "--env.no_prune", "false"], "unknown argument 'false'"),
    (
        ["train", "--actors.count", "auto", "--actors.envs_per_actor", "999"],
        "the buffer of an actor holds 64 steps of each of at most 256",
    ),
    (["train", "--address", "ray://127.0.0.1:1", "--redis", "redis://x"], "run.root is 'runs': with a ray:// address"),
    (["train", "--env", "CartPole-v1", "--learner.batch_steps", "0"], "the segment would be too old"),
    (["train", "--env", "X", "--gym.kwargs", "a"], "gym.kwargs holds 'a': write name=value"),
    (["train", "--preset", "huge"], "unknown preset 'huge'"),
    (["train", "--preset"], "argument --preset: expected one argument"),
    (["train", "--task"], "--env.tasks needs a value"),
    (["train", "--config", "/nowhere.yaml"], "cannot read /nowhere.yaml"),
    (["train", "--resume", "/nowhere"], "run folder /nowhere does not exist"),
    (["train", "--redis", "localhost"], "use redis://host:port/0"),
    (["actors", "--resume", "x"], "unknown flag --resume"),
    (["actors"], "give --redis redis://HOST:6379/0"),
    (["trian"], "unknown command 'trian'; did you mean 'train'?"),
    (["learner", "--in-process"], "unknown flag --in_process"),
    (["report", "."], "is not a run folder (it has no metrics.jsonl)"),
    (["tasks", "moon"], "'moon', which is not a task; did you mean 'moons'?"),
    (["tasks", "cifar10", "--data_dir", "/nowhere"], "/nowhere has no folder cifar-10-batches-py"),
    (["episodes", "export", "RUN"], "write `tamiyo episodes export [RUN] --out DIR`"),
    (["episodes", "import", "--redis", "redis://x"], "give the files"),
    (["episodes", "import", "missing", "--redis", "redis://x"], "there is no file missing"),
    (["episodes", "import", ".", "--redis", "redis://x"], "holds no .episode files"),
    (["export", "/nowhere", "x.txt"], "does not end in .pt2 or .onnx"),
    (["export", "/nowhere", "/nowhere/x.pt2"], "folder /nowhere does not exist"),
    (["export", "/nowhere", "x.pt2", "--slots", "9"], "--slots is 9"),
    (["rollout", "/nowhere"], "no checkpoint at /nowhere"),
    (["rollout", "x", "--seed", "-1"], "--seed is -1"),
    (["rollout", "x", "--picture", "a.gif"], "give a file name that ends in .png or .svg"),
    (["rollout", "runs/x", "--policy", "gap"], "give either a checkpoint or --policy, not both"),
    (["rollout", "--policy", "sometimes"], "'sometimes' is not a rule: the rules are never, trial:"),
    (["health"], "no address given: pass one or set TAMIYO_HEALTH"),
    (["health", "localhost:1"], "is not a valid address"),
    (["grow", "/nowhere.py"], "script /nowhere.py does not exist"),
    (["train", "--in-process", "--redis", "redis://x"], "leave out --redis, --address and --spaces"),
    (["evaluate", "--also", "nameless"], "write NAME=PATH"),
    (["evaluate", "--seeds", "1"], "--seeds is 1: it must be at least 2"),
    (["evaluate", "--price", "2"], "--suite heldout has no use for --price"),
    (["evaluate", "--families", "spirals"], "is not in the suite heldout"),
    (["evaluate", "--tune", "--rules", "x.yaml"], "add --suite train"),
    (["evaluate", "--tune", "--suite", "train"], "--tune needs --rules FILE"),
    (["evaluate", "--rules", "none.yaml"], "cannot read none.yaml"),
    (["evaluate", "--suite", "practical", "--player", "column"], "no checkpoint at column"),
    (["evaluate", "--suite", "practical", "--scripts", "."], "clone it and name its folder with --scripts"),
    (["evaluate", "--suite", "practical", "--price", "-1"], "cannot be negative"),
    (["train", "--env", "external"], "--env external needs --spaces FILE.json: the spaces of your environment"),
]


@pytest.mark.parametrize(("args", "words"), INVALID, ids=[" ".join(args) for args, _ in INVALID])
def test_invalid_arguments_give_a_one_line_error_and_status_two(
    args: list[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(args) == 2
    assert not list(tmp_path.iterdir())
    out, err = capsys.readouterr()
    assert err.startswith("tamiyo: error: ")
    assert words in err
    assert err.count("\n") == 1
    assert out == "" or args[1] == "--in-process"  # the settings


def test_a_full_disk_and_a_folder_that_is_a_file_are_one_line_of_any_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(args: list[str]) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    (tmp_path / "file").write_text("")
    monkeypatch.setitem(cli.COMMANDS, "report", full)
    for command in (["report"], ["secrets", str(tmp_path / "file")]):
        assert cli.main(command) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("tamiyo: error: cannot write")
        assert line.endswith("free some space, or use another folder")


def test_flags_override_the_file_and_the_file_overrides_the_preset(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("learner: {lr: 5e-4, clip: 0.3}\nrun: {seed: 4}\n")
    args = ["--learner.lr", "1e-4", "--preset", "quick", "--config", str(path), "--redis", "redis://h:1/0"]
    config, resume, *_ = parse("train", args)
    changed = {"learner": {"lr": 1e-4, "clip": 0.3}, "run": {"seed": 4, "redis": "redis://h:1/0"}}
    assert config == overlay(PRESETS["quick"], changed)
    assert resume is None


@pytest.mark.parametrize(
    ("flags", "text", "preset"),
    [
        ([], "", "tamiyo"),
        (["--env", "CartPole-v1"], "", "general"),
        (["--env", "external", "--spaces", "s.json"], "", "general"),
        ([], "gym: {id: CartPole-v1}", "general"),
        ([], "external: {spaces: s.json}", "general"),
        (["--env", "a:B-v0", "--preset", "quick", "--gym.max_segment_steps", "2"], "", "quick"),
    ],
)
def test_the_environment_chooses_the_preset_unless_flags_do(
    tmp_path: Path, flags: list[str], text: str, preset: str
) -> None:
    (tmp_path / "mine.yaml").write_text(f"{text}\nlearner: {{lr: 5e-4}}\n")
    args = [*flags, "--config", str(tmp_path / "mine.yaml"), "--learner.clip", "0.3"]
    config = parse("train", args).config
    assert config.learner == dataclasses.replace(PRESETS[preset].learner, lr=5e-4, clip=0.3)
    assert (config.actors, config.queue) == (PRESETS[preset].actors, PRESETS[preset].queue)


def test_flags_accept_dashes_null_lists_and_booleans() -> None:
    words = (
        "--learner.max-seconds=null --learner.value_clip null --run.name none --env.tasks wine digits --run.dashboard"
    )
    config = parse("train", words.split()).config
    assert (config.learner.max_seconds, config.learner.value_clip) == (None, None)
    assert (config.run.name, config.env.tasks, config.run.dashboard) == ("none", ("wine", "digits"), True)


def test_a_resumed_run_keeps_its_settings_and_flags_override(tmp_path: Path) -> None:
    stored = overlay(PRESETS["quick"], {"run": {"seed": 77}})
    (tmp_path / "config.yaml").write_text(to_yaml(stored))
    config, resume, *_ = parse("train", ["--resume", str(tmp_path), "--learner.updates", "5"])
    assert (config, resume) == (overlay(stored, {"learner": {"updates": 5}}), tmp_path)
    with pytest.raises(UserError, match="mutually exclusive"):
        parse("train", ["--resume", str(tmp_path), "--preset", "quick"])


def test_usage_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 2
    assert cli.main(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(f"\n  {command}" in text for command in cli.COMMANDS)
    for command in cli.COMMANDS:
        assert cli.main([command, "--help"]) == 0


@pytest.mark.parametrize(
    ("words", "value"),
    [
        ("--env.prune", True),
        ("--env.prune true", True),
        ("--env.prune=false", False),
        ("--env.prune false --run.seed 3", False),
        ("--env.no-prune", False),
        ("--env.prune --env.no_prune", False),
    ],
)
def test_a_switch_takes_true_or_false_or_no_value(words: str, value: bool) -> None:
    assert parse("train", words.split()).config.env.prune is value
