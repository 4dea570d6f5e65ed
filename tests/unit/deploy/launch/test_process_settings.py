"""Settings of processes: URLs with passwords for machines that lack the environment variables."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from actors.errors import UserError
from deploy.config.schema import Config, RunConfig
from deploy.config.yaml import to_yaml
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
    monkeypatch.setenv("TAMIYO_REDIS_PASSWORD", "one")
    monkeypatch.setenv("TAMIYO_ACTORS_REDIS_PASSWORD", "two")
    known = with_passwords(replace(Config(), run=run))
    assert known.run.redis == "redis://learner:one@queue:6379/0"
    assert known.run.actors_redis == "redis://actor:two@queue:6379/0"
    for config in (known, replace(Config(), run=run)):  # from the cluster's machines, and from the one that trains
        assert actors_redis(config) == "redis://actor:two@queue:6379/0"
    assert "two" not in to_yaml(known)
    assert actors_redis(CONFIG) == CONFIG.run.redis
    with pytest.raises(UserError, match=r"run\.actors_redis needs run\.redis"):
        RunConfig(actors_redis="redis://actor@queue:6379/0")
