"""The teacher of pretraining: rules are played on a sample of hosts, and a regression learns which pays where."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.ensemble import ExtraTreesRegressor

from actors.config import EnvConfig
from actors.env.seed_fleet import SeedTrainingFleet
from actors.rng import Purpose, stream
from actors.rollout.wave import Provenance, run_wave
from actors.rules.choices import LOOK, TEACHER_CHOICES
from actors.rules.chooser import ChooserRule
from actors.rules.gains import ColumnChoice, early_features
from actors.rules.names import column_choice
from actors.rules.reader import ObservationReader
from actors.rules.schedule import NEVER, Schedule, Scheduled
from actors.types.episode import Episode
from deploy.config.schema import Config
from deploy.evaluation.cells import workers
from deploy.evaluation.play import gain_and_rent
from deploy.evaluation.suite import on_family

WAVE = 32  # episodes that one process plays in parallel
SURVEY = 20_270_120  # seed of the survey: runs of all seeds share it
SURVEYS = "surveys"  # folder beside the runs
CHOICES = tuple(map(column_choice, TEACHER_CHOICES))
TEMPERATURE = 0.5  # points: the teacher follows a choice in proportion to exp(expected J / temperature)
TREES, LEAF, SHARE = 200, 4, 0.5  # trees, fewest hosts in a leaf, share of the features tried at a split


@dataclass(frozen=True)
class ForestGains:
    """A regression of what each choice gains by extremely randomized trees (Geurts et al., 2006)."""

    choices: tuple[ColumnChoice, ...]
    average: NDArray[np.float64]  # [F] features, which stand for unknown ones
    forest: ExtraTreesRegressor

    def predict(self, features: NDArray[np.float64]) -> NDArray[np.float64]:
        """See `GainPredictor.predict`."""
        gains = self.forest.predict(np.where(np.isnan(features), self.average, features))
        return np.asarray(gains).reshape(len(features), len(self.choices))


class Survey(NamedTuple):
    """What was seen of each host after `LOOK` epochs, and what each choice gained there."""

    features: NDArray[np.float64]  # [N, F]
    gains: NDArray[np.float64]  # [N, choices] points over never growing


def demonstrate(config: Config, jobs: int) -> list[Episode]:
    """Play about `imitation.episodes` demonstrations of the teacher, equally many per task, in random order, with
    `jobs` processes.

    First every choice plays `imitation.hosts` hosts, from which the teacher learns what each gains; this survey does
    not depend on the seed of the run and is kept beside the runs. Then the teacher plays other hosts, each once, at the
    price of its episode.
    """
    rng = stream(config.run.seed, 0, Purpose.DEMONSTRATIONS)
    with workers(jobs) as pool:
        gains = fit_forest(CHOICES, kept_survey(config, CHOICES, pool))
        waves = _waves(config, config.imitation.episodes, rng)
        play = partial(_teach, config.run.seed, config.learner.state_stride, gains)
        played = [episode for wave in pool.map(play, *_jobs(config, waves)) for episode in wave]
    return [played[i] for i in rng.permutation(len(played))]


def kept_survey(config: Config, choices: Sequence[ColumnChoice], pool: ProcessPoolExecutor) -> Survey:
    """Return the survey of `imitation.hosts` hosts, played once for all runs of the same folder that it fits."""
    waves = _waves(config, config.imitation.hosts, stream(SURVEY, 0, Purpose.DEMONSTRATIONS))
    identity = repr((SURVEY, _surveyed(config.env), tuple(choices), waves))
    path = Path(config.run.root) / SURVEYS / f"{hashlib.sha256(identity.encode()).hexdigest()[:16]}.npz"
    if path.is_file():
        with np.load(path) as kept:
            return Survey(kept["features"], kept["gains"])
    seen = survey(config, choices, waves, pool)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial_file = path.with_suffix(f".{os.getpid()}.partial")
    with partial_file.open("wb") as file:
        np.savez_compressed(file, features=seen.features, gains=seen.gains)
    partial_file.replace(path)
    return seen


def _surveyed(env: EnvConfig) -> EnvConfig:
    """Return the settings of a survey: all features known, and nothing spent on the rewards of PPO."""
    return replace(env, drop_features=0.0, hidden_features=(), reference="untrained")


def survey(
    config: Config, choices: Sequence[ColumnChoice], waves: Sequence[tuple[str, list[int]]], pool: ProcessPoolExecutor
) -> Survey:
    """Play never growing and every choice on all hosts; each is a task and a seed."""
    plans = [NEVER, *(choice.schedule for choice in choices)]
    played = [list(pool.map(partial(_play, plan), *_jobs(config, waves))) for plan in plans]
    gains = np.stack([np.concatenate([wave.gains for wave in by_wave]) for by_wave in played], 1)
    features = np.concatenate([wave.features for wave in played[0]])
    return Survey(features, gains[:, 1:] - gains[:, :1])


def fit_forest(choices: Sequence[ColumnChoice], seen: Survey) -> ForestGains:
    """Fit a forest to a survey."""
    average = np.nan_to_num(np.nanmean(seen.features, 0))
    forest = ExtraTreesRegressor(TREES, min_samples_leaf=LEAF, max_features=SHARE, random_state=0)
    forest.fit(np.where(np.isnan(seen.features), average, seen.features), seen.gains)
    return ForestGains(tuple(choices), average, forest)


class _Wave(NamedTuple):
    features: NDArray[np.float64]
    gains: NDArray[np.float64]


def _waves(config: Config, hosts: int, rng: np.random.Generator) -> list[tuple[str, list[int]]]:
    """Return tasks with seeds, equally many per task, in groups that one process plays."""
    tasks = tuple(dict.fromkeys(config.env.tasks))
    seeds = rng.integers(0, 2**31, (len(tasks), -(-hosts // len(tasks))))
    starts = range(0, seeds.shape[1], WAVE)
    return [(task, seeds[i, k : k + WAVE].tolist()) for i, task in enumerate(tasks) for k in starts]


def _jobs(
    config: Config, waves: Sequence[tuple[str, list[int]]]
) -> tuple[tuple[EnvConfig, ...], tuple[list[int], ...]]:
    env = replace(config.env, device="cpu", cuda_graph=False)
    envs = tuple(on_family(env, task) for task, _ in waves)
    return envs, tuple(seeds for _, seeds in waves)


def _play(plan: Schedule, env: EnvConfig, seeds: Sequence[int]) -> _Wave:
    """Play one schedule on hosts of one task."""
    fleet = SeedTrainingFleet(_surveyed(env), len(seeds), SURVEY)
    source = Provenance(version=0, generation=0, state_stride=1, run_seed=SURVEY)
    episodes = run_wave(fleet, Scheduled(fleet.spaces, plan), seeds, source, True)
    seen = np.stack([episode.obs[min(LOOK, len(episode) - 1)] for episode in episodes])
    gains = [gain_and_rent(host, episode)[0] for host, episode in zip(fleet.episodes, episodes, strict=True)]
    return _Wave(early_features(ObservationReader(fleet.spaces), seen), np.array(gains))


def _teach(run_seed: int, state_stride: int, gains: ForestGains, env: EnvConfig, seeds: Sequence[int]) -> list[Episode]:
    fleet = SeedTrainingFleet(env, len(seeds), run_seed)
    source = Provenance(version=0, generation=0, state_stride=state_stride, run_seed=run_seed)
    teacher = ChooserRule(fleet.spaces, gains, TEMPERATURE)
    return run_wave(fleet, teacher, seeds, source)
