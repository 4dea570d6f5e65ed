"""Fit the regression that the rule `chooser` follows, on the training families.

    python -m benchmarks.fit_chooser FILE [--hosts N] [--jobs N]

Every choice plays the same hosts, and what it gains in accuracy over never growing is fitted to what was observed until
the chooser decides. `FILE` is the regression of the package, actors/rules/chooser.json.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from actors.config import EnvConfig
from actors.env.seed_fleet import SeedTrainingFleet
from actors.rollout.wave import Provenance, run_wave
from actors.rules.choices import CHOICES, LOOK
from actors.rules.gains import ColumnChoice, early_features, fit_gains
from actors.rules.reader import ObservationReader
from actors.rules.schedule import NEVER, Schedule, Scheduled
from actors.slots.objective import Prices
from deploy.config.schema import PRESETS
from deploy.evaluation.cells import finished
from deploy.evaluation.play import gain
from deploy.evaluation.suite import first_seed, on_family, protocol, reported

RIDGE = 0.3
"""Ridge coefficient, relative to the variance of a feature."""
RUN_SEED = 20_261_223
Played = tuple[NDArray[np.float64], NDArray[np.float64]]


def play(config: EnvConfig, choices: Sequence[ColumnChoice], seeds: Sequence[int]) -> Played:
    """Return what was observed of hosts `[N, F]`, and what each choice gained over never growing `[N, choices]`."""
    plans: list[Schedule] = [NEVER, *(choice.schedule for choice in choices)]
    fleet = SeedTrainingFleet(config, len(plans) * len(seeds), RUN_SEED)
    rule = Scheduled(fleet.spaces, [plan for plan in plans for _ in seeds])
    source = Provenance(version=0, generation=0, state_stride=1, run_seed=RUN_SEED)
    episodes = run_wave(fleet, rule, [*seeds] * len(plans), source, True)
    gains = np.reshape([gain(h, e) for h, e in zip(fleet.episodes, episodes, strict=True)], (len(plans), len(seeds)))
    seen = np.stack([episode.obs[min(LOOK, len(episode) - 1)] for episode in episodes[: len(seeds)]])
    return early_features(ObservationReader(fleet.spaces), seen), (gains[1:] - gains[0]).T


def main() -> None:
    known = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    known.add_argument("file", type=Path, help="file to write")
    known.add_argument("--hosts", type=int, default=32, help="hosts of each family")
    known.add_argument("--jobs", type=int, default=2, help="processes")
    args = known.parse_args()
    choices = tuple(ColumnChoice(*choice) for choice in CHOICES)
    config = protocol(PRESETS["research"].env, Prices(1.0, 0.0))
    tasks = [
        (on_family(config, name), range(first_seed(name), first_seed(name) + args.hosts)) for name in reported("train")
    ]
    played: list[Played] = []
    for _, found, progress in finished(partial(_play, choices=choices), tasks, args.jobs):
        played.append(found)
        print(progress, flush=True)
    features, gains = (np.concatenate(parts) for parts in zip(*played, strict=True))
    args.file.write_text(json.dumps(fit_gains(choices, features, gains, RIDGE).as_dict()) + "\n")


def _play(task: tuple[EnvConfig, range], choices: Sequence[ColumnChoice]) -> Played:
    return play(task[0], choices, task[1])


if __name__ == "__main__":
    main()
