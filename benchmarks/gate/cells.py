"""Cells of the gate: all schedules on the same episodes of one task family, with hosts of one class of widths."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
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
        """Of all that one episode depends on."""
        text = json.dumps([asdict(replace(self, seeds=0)), RUN_SEED, LOOK], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


class Played(NamedTuple):
    """The episodes of a cell. J at a price w is `gain - w * rent`."""

    gain: NDArray[np.float64]  # [rules, N] points
    rent: NDArray[np.float64]  # [rules, N] doublings
    seen: NDArray[np.float64]  # [N, D] the observation at epoch `LOOK`, without growth
    widths: NDArray[np.int64]  # [N]

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


def play(cell: Cell, folder: Path) -> Played:
    """Return the episodes of a cell; only those that its file lacks are played."""
    known = _read(cell, folder)
    wanted = _missing(cell, known)
    if wanted:
        _play(cell, known, wanted)
        _write(cell, folder, known)
    gain, rent = np.array([known.by_rule[rule][: cell.seeds] for rule in RULES]).transpose(2, 0, 1)
    return Played(gain, rent, np.array(known.seen[: cell.seeds]), np.array(known.widths[: cell.seeds]))


def is_played(cell: Cell, folder: Path) -> bool:
    """Return whether nothing is missing."""
    return not _missing(cell, _read(cell, folder))


class Known(NamedTuple):
    """What the file of a cell holds, by seed."""

    by_rule: dict[str, list[tuple[float, float]]]  # (gain, rent)
    seen: list[list[float]]
    widths: list[int]


def _read(cell: Cell, folder: Path) -> Known:
    path = folder / f"{cell.name}.json"
    if path.is_file():
        data = json.loads(path.read_text())
        if data.pop("fingerprint") == cell.fingerprint():
            return Known(**data)
    return Known({}, [], [])


def _write(cell: Cell, folder: Path, known: Known) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{cell.name}.json"
    partial = path.with_suffix(f".{os.getpid()}.partial")
    partial.write_text(json.dumps({"fingerprint": cell.fingerprint()} | known._asdict()))
    partial.replace(path)


def _missing(cell: Cell, known: Known) -> list[tuple[str, int]]:
    return [(rule, seed) for rule in RULES for seed in range(len(known.by_rule.get(rule, ())), cell.seeds)]


def _play(cell: Cell, known: Known, wanted: Sequence[tuple[str, int]]) -> None:
    """Play the (rule, seed) that are wanted, and add them to what is known."""
    plans: list[Schedule] = []
    for rule, _ in wanted:
        plan = parse_rule(rule)
        assert isinstance(plan, Schedule)
        plans.append(plan)
    fleet = SeedTrainingFleet(replace(cell.config, tasks=(cell.family,), host_width=cell.widths), len(plans), RUN_SEED)
    source = Provenance(version=0, generation=0, state_stride=1, run_seed=RUN_SEED)
    first = first_seed(cell.name)
    seeds = [first + seed for _, seed in wanted]
    episodes = run_wave(fleet, Scheduled(fleet.spaces, plans), seeds, source, True)
    for (rule, _), host, episode in zip(wanted, fleet.episodes, episodes, strict=True):
        known.by_rule.setdefault(rule, []).append(gain_and_rent(host, episode))
        if rule == "never":
            known.seen.append(episode.obs[min(LOOK, len(episode.obs) - 1)].astype(np.float64).round(5).tolist())
            known.widths.append(host.host.width)
