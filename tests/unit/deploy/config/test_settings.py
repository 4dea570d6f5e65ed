"""Settings as YAML: overriding, error messages and round trips."""

from __future__ import annotations

import dataclasses
import io
from pathlib import Path

import pytest
from rich.console import Console

from actors.config import ActorsConfig, ConfigError, GymConfig
from actors.serving.external import ExternalConfig
from deploy.config.schema import PRESETS, Config
from deploy.config.yaml import from_yaml, overlay, summary, to_yaml, without_password
from learner.config import LearnerConfig

BASE = PRESETS["tamiyo"]


def write(folder: Path, text: str) -> Path:
    path = folder / "settings.yaml"
    path.write_text(text)
    return path


@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_yaml_round_trip(tmp_path: Path, preset: str) -> None:
    config = overlay(PRESETS[preset], {"run": {"root": "näher", "seed": 3}}).in_force
    for base in (BASE, overlay(BASE, {"learner": {"max_seconds": 1.0, "value_clip": None}})):
        assert from_yaml(write(tmp_path, to_yaml(config)), base) == config


def test_a_file_overrides_only_the_keys_it_contains(tmp_path: Path) -> None:
    path = write(tmp_path, "learner: {lr: 1e-3, value_clip: null, batch_episodes: 100}\nenv:\n  tasks: [wine]\nrun:\n")
    config = from_yaml(path, PRESETS["quick"])
    quick = PRESETS["quick"].learner
    assert config.learner == dataclasses.replace(quick, lr=1e-3, value_clip=None, batch_episodes=100)
    assert config.env.tasks == ("wine",)
    assert config.run == PRESETS["quick"].run
    assert from_yaml(write(tmp_path, ""), BASE) == BASE


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("learner: {lrr: 1}", "unknown key 'lrr' in section 'learner'; did you mean 'lr'?"),
        ("learnr: {lr: 1}", "unknown section 'learnr'; did you mean 'learner'?"),
        (
            "zzz: 1",
            "unknown section 'zzz'; choose one of run, env, gym, external, imitation, policy, actors, queue, learner",
        ),
        ("learner: {lr: true}", "learner.lr is true: give a number"),
        ("learner: {lr: .inf}", "learner.lr is inf: give a number below 2^63"),
        ("a: " + "[" * 1200, "is nested too deeply"),
        ("a: 2024-99-99", "is not valid YAML"),
        ("#" + " " * 2**24, "more than 16 MiB"),
        ("learner: {updates: null}", "learner.updates is null: give an integer"),
        ("actors: {count: many}", "actors.count is 'many': give an integer or auto"),
        ("actors: {count: auto, max_count: 0}", "actors.max_count is 0: it must be at least 1"),
        ("learner: {device: tpu}", "learner.device is 'tpu': give one of auto, cpu, cuda"),
        ("env: {tasks: wine}", "env.tasks is 'wine': give a list"),
        ("env: {tasks: [1]}", "env.tasks[0] is 1: give a string"),
        ("run: {dashboard: 1}", "run.dashboard is 1: give true or false"),
        (
            "actors: {count: 11, envs_per_actor: 30}\nlearner: {max_policy_lag: 4, batch_episodes: 64}",
            "11 actors x 30 environments run 330 episodes at once, but only 320 = (max_policy_lag + 1)",
        ),
        ("gym: {id: X, max_segment_steps: 1}\nimitation: {episodes: 4}", "pretraining needs seed hosts"),
        ("learner: 3", "section 'learner' must hold keys and values, not 3"),
        ("- a", "settings must be sections with keys"),
        ("learner: {lr: -1}", "learner.lr is -1.0: it must be positive"),
    ],
)
def test_errors_name_the_file_and_the_reason(tmp_path: Path, text: str, words: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(ConfigError) as refusal:
        from_yaml(path, BASE)
    assert words in str(refusal.value)
    assert str(path) in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_automatic_actor_count_is_bounded_by_policy_lag_and_max_count(tmp_path: Path) -> None:
    text = "actors: {count: auto, envs_per_actor: 8}\nlearner: {max_policy_lag: 4, batch_episodes: 64}"
    config = from_yaml(write(tmp_path, text), BASE)
    assert (config.actors.count, config.actors.at_least) == ("auto", 1)
    assert config.most_actors == 320 // 8
    assert from_yaml(write(tmp_path, to_yaml(config)), BASE) == config.in_force
    assert overlay(config, {"actors": {"max_count": 7}}).most_actors == 7
    assert overlay(PRESETS["general"], {"actors": {"count": "auto"}, "gym": {"id": "X"}}).most_actors == 8


def test_sections_that_python_leaves_out_follow_the_environment() -> None:
    gym, general = GymConfig(id="CartPole-v1"), PRESETS["general"]
    config = Config(gym=gym)
    assert config == dataclasses.replace(Config(), gym=gym) == dataclasses.replace(general, gym=gym)
    assert Config(external=ExternalConfig(spaces="s.json")).learner == general.learner
    one = ActorsConfig(count=1)
    assert Config(gym=gym, actors=one) == dataclasses.replace(general, gym=gym, actors=one)
    given = Config(gym=gym, learner=LearnerConfig(batch_steps=8192))
    assert (given.learner.gamma, given.queue) == (1.0, Config().queue)
    with pytest.raises(ConfigError, match="the segment would be too old"):  # preset tamiyo was chosen
        dataclasses.replace(BASE, gym=gym)


def shown(config: Config) -> str:
    console = Console(file=io.StringIO(), width=100, soft_wrap=True)
    console.print(summary(config))
    return console.file.getvalue()


@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_the_summary_is_five_lines_with_what_the_user_changed(preset: str) -> None:
    assert shown(PRESETS[preset]).splitlines()[0] == f"settings preset {preset}"
    changed = shown(overlay(PRESETS[preset], {"learner": {"target_kl": None, "total_steps": 5000}}))
    assert f"preset {preset}  learner.total_steps=5000  learner.target_kl=null\n" in changed
    assert "after 5000 steps" in changed
    many = overlay(PRESETS[preset], {"learner": {"lr": 7e-5, "gamma": 0.9, "clip": 0.3}, "run": {"seed": 3}})
    assert len(shown(many).splitlines()) == 5
    assert f"preset {preset}  " in shown(many)


@pytest.mark.parametrize(("core", "lr", "passes"), [("lstm", "0.00025", 1), ("feedforward", "0.0003", 10)])
def test_what_null_stands_for_is_recorded(core: str, lr: str, passes: int) -> None:
    written = to_yaml(overlay(BASE, {"policy": {"core": core}, "learner": {"target_kl": None}}))
    nulls = ("chunk_length: null  # whole episodes", "target_kl: null  # no stop")
    for line in (f"lr: {lr}", f"update_epochs: {passes}", *nulls):
        assert f"\n  {line}\n" in written
    assert "chunk_length: null  # whole segments" in to_yaml(
        overlay(PRESETS["general"], {"gym": {"id": "X"}, "learner": {"chunk_length": None, "burn_in": 0}})
    )


@pytest.mark.parametrize(
    ("url", "without"),
    [
        ("unix://:secret@/run/redis.sock", "unix:///run/redis.sock"),
        ("redis://user:secret@host:6379/0", "redis://user@host:6379/0"),
        ("redis://:secret@host:6379/0?a=b", "redis://host:6379/0?a=b"),
        ("redis://user:se\tcret@host:6379/0", "redis://user@host:6379/0"),
        ("redis://host:6379/0", "redis://host:6379/0"),
    ],
)
def test_urls_lose_only_their_password(url: str, without: str) -> None:
    """In files, and in the summary of the settings."""
    assert without_password(url) == without
    config = overlay(Config(), {"run": {"redis": url}})
    assert f"redis: {without}\n" in to_yaml(config)
    assert "secret" not in shown(config)
