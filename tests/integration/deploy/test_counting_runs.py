"""A run of each preset: what was trained on is what the actors drew, counted without the ledger.

The seeds of an actor's episodes are a function of the run's seed and the actor's index, so that they can be drawn once
more here. The learner's end is `episodes.jsonl`. `COUNTING_RUN_S` sets how long each run trains.
"""

from __future__ import annotations

import itertools
import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from actors.rollout.sampler import EpisodeSeeds
from tests.support.launching import rows, tamiyo

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.long]

TRAIN_S = int(os.environ.get("COUNTING_RUN_S", "300"))
RUNS = {
    "quick": ["--preset", "quick"],
    "tamiyo": ["--preset", "tamiyo"],
    "research": ["--preset", "research", "--imitation.episodes", "0", "--learner.prior_coef", "0"],
    "general": ["--env", "CartPole-v1", "--run.evaluate_every", "0"],  # an evaluation drops unfinished episodes
}


def drawn_seeds(actor: int, run_seed: int, per_wave: int, times: int) -> Iterator[int]:
    """The seeds of an actor's episodes in the order in which it ships them."""
    seeds = EpisodeSeeds(run_seed, actor, None)
    while True:
        for seed in seeds.draw(per_wave, generation=1):
            yield from itertools.repeat(seed, times)


@pytest.mark.timeout(TRAIN_S + 600)
@pytest.mark.parametrize("preset", RUNS)
def test_all_episodes_that_were_drawn_are_trained_on(tmp_path: Path, preset: str) -> None:
    limits = ["--learner.max_seconds", str(TRAIN_S), "--learner.updates", "1000000", "--run.reference_episodes", "2"]
    with tamiyo(tmp_path, "train", *RUNS[preset], *limits, "--run.root", str(tmp_path), "--run.name", "run") as run:
        assert run.wait(TRAIN_S + 500) == 0, run.err
        assert run.left() == []
    folder = tmp_path / "run"
    config = yaml.safe_load((folder / "config.yaml").read_text())
    width, times = config["actors"]["envs_per_actor"], config["learner"]["episodes_per_seed"]
    episodes, last = rows(folder / "episodes.jsonl"), rows(folder / "metrics.jsonl")[-1]
    ids = [e["episode_id"] for e in episodes]
    assert len(ids) == len(set(ids))
    whole = [e for e in episodes if e["end_reason"] != "cut"]
    if preset == "general":
        assert "on CartPole-v1" in (folder / "report.html").read_text()
        assert all(e["return"] >= e["steps"] for e in whole)  # 1 a step, also of the segments before
        assert json.loads((folder / "references.json").read_text()).keys() >= {"seeds", "learned", "random"}
    missing = 0
    for actor in sorted({e["episode_id"].split("/")[1] for e in whole}):
        trained = [e["seed"] for e in whole if e["episode_id"].split("/")[1] == actor]
        index, streams = int(actor.removeprefix("actor-")), preset == "general"
        drawn = drawn_seeds(index, config["run"]["seed"], 1 if streams else width // times, times)
        # In a wave all that were drawn before the last one are complete, in streams all but one of each environment.
        left, expected = Counter(trained), Counter[int]()
        while left:
            seed = next(drawn)
            expected[seed] += 1
            left -= Counter([seed])
            assert expected.total() < len(trained) + 10 * width + 1000
        missing += (expected - Counter(trained)).total() - (width - 1 if streams else 0)
        assert not Counter(trained) - expected
    dropped = sum(last[f"ledger/{term}"] for term in ("dropped_stale", "dead_lettered", "fenced", "lost_with_store"))
    print(f"{preset}: {len(episodes)} episodes trained, {max(0, missing)} missing, {dropped:g} dropped by the ledger")
    assert last["ledger/lost_with_store"] == 0
    assert missing <= dropped
