"""What other machines are given: URLs with passwords, since they lack the environment variables, and code."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import actors
from actors.config import EnvConfig, GymConfig
from actors.errors import UserError
from deploy.config.schema import Config, RunConfig
from deploy.config.yaml import to_yaml
from deploy.launch.cluster import runtime_env
from deploy.launch.process_settings import actors_redis, with_passwords

CONFIG = replace(Config(), run=RunConfig(redis="redis://actor@queue:6379/0"))


@pytest.fixture(autouse=True)
def _no_passwords(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TAMIYO_REDIS_PASSWORD", "TAMIYO_ACTORS_REDIS_PASSWORD"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(f"{name}_FILE", raising=False)


def test_passwords_are_read_from_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert with_passwords(CONFIG) == CONFIG
    monkeypatch.setenv("TAMIYO_REDIS_PASSWORD_FILE", str(tmp_path / "actor.password"))
    with pytest.raises(UserError, match="TAMIYO_REDIS_PASSWORD_FILE"):
        with_passwords(CONFIG)
    (tmp_path / "actor.password").write_text("a/b@c\n")
    assert with_passwords(CONFIG).run.redis == "redis://actor:a%2Fb%40c@queue:6379/0"


def test_actors_have_their_own_user_and_password(monkeypatch: pytest.MonkeyPatch) -> None:
    run = RunConfig(redis="redis://learner@queue:6379/0", actors_redis="redis://actor@queue:6379/0")
    given = replace(Config(), run=run)
    monkeypatch.setenv("TAMIYO_REDIS_PASSWORD", "one")
    monkeypatch.setenv("TAMIYO_ACTORS_REDIS_PASSWORD", "two")
    known = with_passwords(given)
    assert known.run.redis == "redis://learner:one@queue:6379/0"
    # From the cluster's machines, and from the one that trains.
    assert known.run.actors_redis == actors_redis(known) == actors_redis(given) == "redis://actor:two@queue:6379/0"
    assert "two" not in to_yaml(known)
    assert actors_redis(CONFIG) == CONFIG.run.redis
    with pytest.raises(UserError, match=r"run\.actors_redis needs run\.redis"):
        RunConfig(actors_redis="redis://actor@queue:6379/0")


def test_ship_code_uploads_tamiyo_and_user_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_games").mkdir()
    for name in ("my_stripes.py", "my_games/__init__.py"):
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    config = Config(
        run=RunConfig(ship="code"),
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
        runtime_env(Config(run=RunConfig(ship="code"), env=EnvConfig(tasks=("nowhere_to_be_found:task",))))
