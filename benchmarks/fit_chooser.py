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
from actors.rules.gains import ARRAYS, CLIP, LOOK, ColumnChoice, GainModel, early_features
from actors.rules.reader import ObservationReader
from actors.rules.schedule import NEVER, SIZES, Schedule, Scheduled
from actors.slots.objective import Prices
from actors.slots.spaces import seed_spaces
from deploy.config.schema import PRESETS
from deploy.evaluation.cells import finished
from deploy.evaluation.play import gain, wave
from deploy.evaluation.suite import first_seed, on_family, protocol, reported

RIDGE = 0.3
"""Ridge coefficient, relative to the variance of a feature."""
RUN_SEED = 20_261_223
CHOICES = tuple((size, epoch) for epoch in (LOOK, -15, -10) for size in SIZES if size != "half" or epoch == LOOK)
"""Size and first epoch of the columns that a chooser chooses from; negative epochs count back from the end."""
Played = tuple[NDArray[np.float64], NDArray[np.float64]]


def play(config: EnvConfig, choices: Sequence[ColumnChoice], seeds: Sequence[int]) -> Played:
    """Return what was observed of hosts `[N, F]`, and what each choice gained over never growing `[N, choices]`."""
    plans: list[Schedule] = [NEVER, *(choice.schedule for choice in choices)]
    rules = partial(Scheduled, schedules=[plan for plan in plans for _ in seeds])
    played = wave(config, RUN_SEED, [*seeds] * len(plans), rules)
    gains = np.reshape([gain(*one) for one in played], (len(plans), len(seeds)))
    seen = np.stack([episode.obs[min(LOOK, len(episode) - 1)] for _, episode in played[: len(seeds)]])
    reader = ObservationReader(seed_spaces(config.total_slots, config.profile))
    return early_features(reader, seen), (gains[1:] - gains[0]).T


def fit_gains(
    choices: Sequence[ColumnChoice], features: NDArray[np.float64], gains: NDArray[np.float64], ridge: float
) -> GainModel:
    """Fit `gains [N, choices]` to `features [N, F]` by ridge regression (Hoerl & Kennard, 1970).

    `ridge` is relative to the variance of a standardized feature. Features that do not vary get no weight.
    """
    features = np.where(np.isnan(features).all(0), 0.0, features)  # what nobody tells does not vary
    mean, spread = np.nanmean(features, 0), np.nanstd(features, 0)
    spread = np.where(spread > 1e-6, spread, np.inf)
    z = np.nan_to_num((features - mean) / spread).clip(-CLIP, CLIP)
    x = np.concatenate([z, z**2], 1)
    centre, at = x.mean(0), gains.mean(0)
    x = x - centre
    weights = np.linalg.solve(x.T @ x + ridge * len(x) * np.eye(x.shape[1]), x.T @ (gains - at))
    return GainModel(tuple(choices), mean, np.where(np.isinf(spread), 1e9, spread), weights, at - centre @ weights)


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
    model = fit_gains(choices, features, gains, RIDGE)
    arrays = {k: np.vectorize(lambda x: float(f"{x:.5g}"))(getattr(model, k)).tolist() for k in ARRAYS}
    listed = [[c.size, c.epoch, c.columns] for c in choices]
    args.file.write_text(json.dumps({"choices": listed, **arrays}) + "\n")


def _play(task: tuple[EnvConfig, range], choices: Sequence[ColumnChoice]) -> Played:
    return play(task[0], choices, task[1])


if __name__ == "__main__":
    main()
