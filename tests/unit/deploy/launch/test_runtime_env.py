"""The code that a run uploads to a cluster."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import actors
from actors.config import EnvConfig, GymConfig
from actors.errors import UserError
from deploy.config.schema import Config, RunConfig
from deploy.launch.cluster import runtime_env

CODE = RunConfig(ship="code")


def test_ship_code_uploads_tamiyo_and_user_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_stripes.py").write_text("")
    (tmp_path / "my_games").mkdir()
    (tmp_path / "my_games" / "__init__.py").write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    config = Config(
        run=CODE,
        env=EnvConfig(tasks=("digits", "my_stripes:task")),
        gym=GymConfig(id="my_games.snake:Snake-v0", wrappers=("my_games.wrap:Wrap",), max_segment_steps=1),
    )
    modules = runtime_env(config)["py_modules"]
    assert modules[0] == str(Path(actors.__file__).parent)
    assert {Path(m).name for m in modules} == {"actors", "learner", "deploy", "tamiyo.py", "my_stripes.py", "my_games"}
    assert all(Path(m).exists() for m in modules)
    assert runtime_env(replace(config, run=RunConfig())) == {}  # the image contains everything


def test_a_missing_user_module_is_reported() -> None:
    with pytest.raises(UserError, match="'nowhere_to_be_found'"):
        runtime_env(Config(run=CODE, env=EnvConfig(tasks=("nowhere_to_be_found:task",))))
