"""The comparison at the end of a run: what it claims of environments that pay the same whatever one does, and how it
fails. The pool is one sampler in this process."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from actors.config import ActingConfig, ActorsConfig, GymConfig
from actors.errors import UserError
from actors.policy.baselines import RandomPolicy
from actors.rollout import sampler as sampling
from actors.rollout.sampler import StreamSampler, make_sampler
from actors.rollout.wave import Provenance
from actors.types.episode import EndReason
from deploy.config.schema import PRESETS, Config, RunConfig
from deploy.config.yaml import to_yaml
from deploy.launch import comparison
from deploy.launch.comparison import Comparison
from deploy.report.page import write_report
from tests.support.env import gym_envs

SOURCE = Provenance(0, 0, 1, 3)


def acting(env_id: str, *kwargs: str, width: int = 2, **settings: Any) -> ActingConfig:
    gym = GymConfig(id=env_id, kwargs=kwargs, max_segment_steps=16, **settings)
    return ActingConfig(gym=gym, actors=ActorsConfig(count=1, envs_per_actor=width))


class Pool:
    """Raises the error after some calls."""

    def __init__(self, acting: ActingConfig, error: Exception | None = None, calls: int = 0) -> None:
        self.sampler, self.error, self.calls = make_sampler(acting, 0, 3, None), error, calls
        self.played: list[str] = []

    def play(self, player: str, seeds: Sequence[int], deterministic: bool, stop: Any) -> list[dict[str, Any]]:
        if self.error is not None and len(self.played) == self.calls:
            raise self.error
        self.played.append(player)
        return self.sampler.play(RandomPolicy(self.sampler.spaces), SOURCE, seeds, deterministic)


def compare(
    folder: Path, config: ActingConfig, pool: Any, stop: bool = False, episodes: int = 5
) -> tuple[dict[str, Any], str, list[str]]:
    """Return what was written, the report's headline, and the notes."""
    run, notes = RunConfig(seed=3, reference_episodes=episodes), list[str]()
    settings = replace(PRESETS["general"], gym=config.gym, actors=config.actors, run=run)
    (folder / "config.yaml").write_text(to_yaml(settings))
    (folder / "metrics.jsonl").write_text(json.dumps({"update": 1, "reward_mean": 1.0}) + "\n")
    (folder / "episodes.jsonl").touch()
    Comparison(folder, settings, 1.0, notes.append, lambda: stop, pool and pool.play, 1).run()
    headline, _ = write_report(folder)
    return json.loads((folder / "references.json").read_text()), headline, notes


@pytest.mark.parametrize(("length", "cut_at"), [(7, 0), (39, 0), (130, 64), (0, 64)])
def test_a_constant_reward_makes_no_difference_at_any_length(
    length: int, cut_at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The learned policy's episodes counted in full, also where the random policy was cut."""
    monkeypatch.setattr(sampling, "MAX_PLAYED_STEPS", 50)
    config = acting("tests/Constant-v0", f"length={length}")
    references, said, notes = compare(tmp_path, config, Pool(config))
    gained = float(cut_at or length)
    assert references["learned"] == references["random"] == [gained] * 5
    assert (len(set(references["seeds"])), references["cut_at"]) == (5, cut_at)
    assert said.startswith("Learned does not beat random: +0.0 [0.0, 0.0] (95%, n=5 paired seeds)")
    assert ("Episodes were cut after 64 steps and count up to there." in said) == (cut_at > 0)
    assert notes[0].startswith("training is complete; comparing learned, random for 1:00 at most")


def test_a_simulator_that_allows_one_instance_is_compared(tmp_path: Path) -> None:
    gym_envs.Constant.living = 0
    config = acting("tests/Constant-v0", "length=5", "instances=1", width=1)
    pool = Pool(config)
    references, _, _ = compare(tmp_path, config, pool)
    assert references["random"] == [5.0] * 5
    after = cast("StreamSampler", pool.sampler).sample(RandomPolicy(pool.sampler.spaces), SOURCE)
    assert [len(e) for e in after if e.end_reason is not EndReason.CUT] == [5] * len(after)


def test_episodes_of_a_comparison_follow_their_seeds() -> None:
    """In environments of its own or between two samples, in any width and order."""
    seeds = [5, 3, 11, 2, 7]

    def results(width: int, seeds: Sequence[int], samples_before: int = 0) -> list[dict[str, Any]]:
        made = make_sampler(acting("tests/Scripted-v0", width=width), 0, 3, None)
        policy = RandomPolicy(made.spaces)
        for _ in range(samples_before):
            made.sample(policy, SOURCE)
        return made.play(policy, SOURCE, seeds, False)

    alone = results(1, seeds)
    assert [r["seed"] for r in alone] == seeds
    assert alone == results(2, seeds[::-1], samples_before=1)[::-1] == results(8, seeds)
    assert len({r["return"] for r in alone}) == 5


def test_a_comparison_that_cannot_be_made_says_why_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the report is written."""
    config = acting("tests/Constant-v0", "length=5")
    pool = Pool(config)
    cases: list[tuple[str, Pool | None, dict[str, Any]]] = [
        ("run.reference_episodes is 0", pool, {"episodes": 0}),
        ("programs outside of the run play its environment", None, {}),
        ("it was interrupted", pool, {"stop": True}),
        ("an episode could not be played", Pool(config, UserError("an episode could not be played")), {}),
        ("RuntimeError: lost its connection", Pool(config, RuntimeError("lost\nits connection")), {}),
    ]
    for why, given, options in cases:
        references, said, _ = compare(tmp_path, config, given, **options)
        assert references["why_none"].startswith(why)
        assert said.startswith(f"No comparison: {why}")
        assert "\n" not in said
    assert not pool.played
    monkeypatch.setattr(comparison, "LEAST_S", 0.0)
    monkeypatch.setattr(comparison, "SHARE", 0.0)
    assert "too few episodes were complete" in compare(tmp_path, config, pool)[1]


def test_a_comparison_that_ends_early_has_the_pairs_that_are_complete(tmp_path: Path) -> None:
    config = acting("tests/Constant-v0", "length=5")
    references, said, _ = compare(tmp_path, config, Pool(config, TimeoutError(), calls=3))
    assert len(references["seeds"]) == len(references["tasks"]) == len(references["learned"]) == 2
    assert "n=2 paired seeds" in said


def test_hosts_keep_their_comparison_if_the_example_episode_fails(tmp_path: Path) -> None:
    def play(player: str, seeds: Sequence[int], greedy: bool, stop: Callable[[], bool]) -> list[dict[str, Any]]:
        if greedy:
            raise RuntimeError("no memory")
        gained = 3.0 * (player == "learned")
        return [{"seed": s, "task": "wine", "return": s % 7 + gained, "doublings": [s]} for s in seeds]

    config, notes = Config(run=RunConfig(reference_episodes=8), actors=ActorsConfig(envs_per_actor=2)), list[str]()
    Comparison(tmp_path, config, 1.0, notes.append, lambda: False, play, 1).run()
    references = json.loads((tmp_path / "references.json").read_text())
    assert references["tasks"] == ["wine"] * 8
    assert np.subtract(references["learned"], references["random"]).tolist() == [3.0] * 8
    assert references["never_grow"] == references["random"]
    assert notes[-1].startswith("no example episode: RuntimeError: no memory")
