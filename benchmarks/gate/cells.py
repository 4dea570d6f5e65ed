"""Cells of the gate: all schedules on the same episodes of one task family, with hosts of one class of widths."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from actors.config import EnvConfig
from actors.env.seed_fleet import SeedTrainingFleet
from actors.env.tasks import find_family
from actors.rollout.wave import Provenance, run_wave
from actors.rules.choices import LOOK, SIZES
from actors.rules.names import parse_rule
from actors.rules.schedule import Schedule, Scheduled
from deploy.evaluation.play import gain_and_rent
from deploy.evaluation.suite import first_seed

COLUMN_EPOCHS = (1, LOOK, 8)
LATE_EPOCHS = (-15, -10)
"""Counted back from the end of the training: a column that comes late pays rent for a short time."""
TWO_QUADS = "periodic:blueprint=column_quad,start=1,every=4,seeds=2,blend=add"
EARLY = tuple(f"fixed-column:{size}@{epoch}" for size in SIZES for epoch in COLUMN_EPOCHS)
LATE = tuple(f"fixed-column:{size}@{epoch}" for size in SIZES for epoch in LATE_EPOCHS)
RULES = ("never", "periodic", *EARLY, *LATE, TWO_QUADS)
RUN_SEED = 20_261_223
"""Not a run seed of the evaluation."""


@dataclass(frozen=True)
class Cell:
    """Episodes of one family and one class of widths."""

    family: str
    widths: tuple[int, int]
    seeds: int
    config: EnvConfig

    @property
    def name(self) -> str:
        return f"{self.family}-{self.widths[0]}-{self.widths[1]}"

    def fingerprint(self) -> str:
        """Return a hash of all that the episodes depend on."""
        text = json.dumps([asdict(self), RUN_SEED, LOOK], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


class Played(NamedTuple):
    """The episodes of a cell. J at a price w is `gain - w * rent`."""

    gain: NDArray[np.float64]  # [rules, N] points
    rent: NDArray[np.float64]  # [rules, N] doublings
    seen: NDArray[np.float64]  # [N, D] the observation at epoch `LOOK`, without growth

    def objective(self, price: float) -> NDArray[np.float64]:
        """Return J `[rules, N]`."""
        return self.gain - price * self.rent


def width_classes(family: str) -> list[tuple[int, int]]:
    """Return the octaves of a family's range of widths: the smallest two widths, up to 8, up to 16, and so on."""
    low, high = find_family(family).host_widths
    bounds = [(low, min(2 * low, high))]
    while bounds[-1][1] < high:
        last = bounds[-1][1]
        bounds.append((last + 1, min(2 * last, high)))
    return bounds


def is_played(cell: Cell, folder: Path) -> bool:
    """Return whether the episodes of a cell are kept."""
    return _file(cell, folder).is_file()


def play(cell: Cell, folder: Path) -> Played:
    """Return the episodes of a cell, which are played once and kept."""
    path = _file(cell, folder)
    if path.is_file():
        with np.load(path) as kept:
            return Played(**kept)
    played = _play(cell)
    folder.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(f".{os.getpid()}.partial")
    with partial.open("wb") as file:
        np.savez_compressed(file, **played._asdict())
    partial.replace(path)
    return played


def _file(cell: Cell, folder: Path) -> Path:
    return folder / f"{cell.name}-{cell.fingerprint()}.npz"


def _play(cell: Cell) -> Played:
    plans = [plan for plan in map(parse_rule, RULES) if isinstance(plan, Schedule)]
    config = replace(cell.config, tasks=(cell.family,), host_width=cell.widths)
    fleet = SeedTrainingFleet(config, len(RULES) * cell.seeds, RUN_SEED)
    source = Provenance(version=0, generation=0, state_stride=1, run_seed=RUN_SEED)
    first = first_seed(cell.name)
    seeds = [*range(first, first + cell.seeds)] * len(RULES)
    scheduled = Scheduled(fleet.spaces, [plan for plan in plans for _ in range(cell.seeds)])
    episodes = run_wave(fleet, scheduled, seeds, source, True)
    played = [gain_and_rent(host, episode) for host, episode in zip(fleet.episodes, episodes, strict=True)]
    gain, rent = np.array(played).T.reshape(2, len(RULES), cell.seeds)
    bare = slice(RULES.index("never") * cell.seeds, (RULES.index("never") + 1) * cell.seeds)
    seen = np.array([episode.obs[min(LOOK, len(episode.obs) - 1)] for episode in episodes[bare]], np.float64)
    return Played(gain, rent, seen)
