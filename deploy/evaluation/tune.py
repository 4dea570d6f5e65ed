"""Tuning: the best of many schedules by successive halving (Jamieson & Talwalkar, 2016), on seeds that report nothing.

Half a hundred schedules on one episode of each family say little of each and enough to drop most; those that are left
are looked at three times as long. What is kept for each price comes from the same episodes: what a schedule does
does not depend on the rent, so J at another weight is a matter of arithmetic.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from actors.config import EnvConfig
from actors.errors import UserError
from actors.rules.schedule import KINDS, NEVER, Kind, Schedule
from deploy.evaluation.schedules import draw_schedule

RUNGS = (
    (1, 1.0),
    (3, 1 / 3),
    (9, 1 / 9),
    (18, 1 / 18),
)  # (seeds of each family, share of the schedules that get there)
SEED = 7  # draws the configurations
Ask = tuple[int, str, int]  # (schedule, family, seed)
Play = Callable[[Sequence[Ask]], Sequence[tuple[float, float]]]
"""Plays what is asked for; (gain, rent) of each."""


@dataclass
class Scores:
    """Episodes of schedules, each played once."""

    play: Play
    known: dict[Ask, tuple[float, float]] = field(default_factory=dict)

    def fetch(self, asked: Sequence[Ask]) -> None:
        missing = [a for a in dict.fromkeys(asked) if a not in self.known]
        if missing:
            self.known.update(zip(missing, self.play(missing), strict=True))

    def mean(self, schedule: int, families: Sequence[str], seeds: Sequence[int], rent_weight: float) -> float:
        """J, every family weighted equally."""
        rows = [self.known[schedule, f, s] for f in families for s in seeds]
        return float(np.mean([gain - rent_weight * rent for gain, rent in rows]))


@dataclass(frozen=True)
class Winner:
    schedule: Schedule
    objective: float  # on the tuning seeds: what it was chosen by, and so too good to report
    seeds: int


def halve(
    scores: Scores,
    schedules: dict[int, Schedule],
    families: Sequence[str],
    rent_weight: float,
    rungs: Sequence[tuple[int, float]] = RUNGS,
) -> Winner:
    """The best of `schedules` (by their numbers in `scores`)."""
    left = list(schedules)
    seeds: list[int] = []
    for count, share in rungs:
        kept = max(1, round(share * len(schedules)))
        left = left[:kept]
        seeds = list(range(count))
        scores.fetch([(i, f, s) for i in left for f in families for s in seeds])
        left.sort(key=lambda i: -scores.mean(i, families, seeds, rent_weight))
    return Winner(schedules[left[0]], scores.mean(left[0], families, seeds, rent_weight), len(seeds))


def candidates(kind: Kind, count: int, config: EnvConfig) -> list[Schedule]:
    rng = np.random.default_rng([SEED, KINDS.index(kind)])
    return [draw_schedule(kind, rng, config) for _ in range(count)]


@dataclass(frozen=True)
class Tuned:
    """What a tuning found, as it is kept in a file."""

    rules: dict[str, Any]  # of the environment it holds for
    configurations: int  # of each kind
    families: tuple[str, ...]
    schedules: dict[str, dict[str, Winner]]  # kind > price
    best: dict[str, Winner]  # family of the suite > schedule

    def schedule(self, kind: str, rent_weight: float) -> Schedule:
        own = self.schedules[kind]
        if (key := f"{rent_weight:g}") not in own:
            raise UserError(f"{kind} schedules are tuned for prices {', '.join(own)}, not {key}: run --tune")
        return own[key].schedule

    def save(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(self), indent=1) + "\n")


def load(path: Path, config: EnvConfig) -> Tuned:
    """Raises `UserError` where there is none, or one for other rules."""
    if not path.is_file():
        raise UserError(f"no tuned schedules at {path}: run `tamiyo evaluate --tune --schedules FILE` first")
    raw = json.loads(path.read_text())
    if raw["rules"] != rules(config):
        differing = [k for k, v in rules(config).items() if raw["rules"].get(k) != v]
        raise UserError(
            f"{path} was tuned for another {', '.join(differing)}: run "
            "`tamiyo evaluate --tune --schedules FILE` for these settings, and name FILE"
        )

    def winner(data: dict[str, Any]) -> Winner:
        return Winner(Schedule(**data["schedule"]), data["objective"], data["seeds"])

    by_kind = {kind: {w: winner(d) for w, d in own.items()} for kind, own in raw["schedules"].items()}
    best = {family: winner(d) for family, d in raw["best"].items()}
    return Tuned(raw["rules"], raw["configurations"], tuple(raw["families"]), by_kind, best)


def rules(config: EnvConfig) -> dict[str, Any]:
    """What a schedule's worth depends on, but for the task and the rent."""
    left_out = ("tasks", "rent_weight", "rent_warmup_updates", "data_dir", "download")
    found = asdict(config).items()
    return {k: list(v) if isinstance(v, tuple) else v for k, v in found if k not in left_out}  # as JSON has them


def tune(
    config: EnvConfig,
    count: int,
    families: Sequence[str],
    suite: Sequence[str],
    weights: Sequence[float],
    rent_weight: float,
    play: Callable[[Sequence[Schedule], bool], Play],
    rungs: Sequence[tuple[int, float]] = RUNGS,
    tell: Callable[[str], None] = lambda text: None,
) -> Tuned:
    """Each kind on the training families for each price, and the best periodic schedule (or none) of each family
    of the suite. `play(schedules, selection)` plays on the tuning seeds, or on the selection seeds."""
    found: dict[str, dict[str, Winner]] = {}
    for kind in KINDS:
        drawn = candidates(kind, count, config)
        scores = Scores(play(drawn, False))
        numbered = dict(enumerate(drawn))
        wanted = dict.fromkeys([*weights, rent_weight] if kind == "periodic" else [rent_weight])
        found[kind] = {f"{w:g}": halve(scores, numbered, families, w, rungs) for w in wanted}
        tell(f"{kind}: {len(scores.known)} episodes of {count} schedules")
    best = select(config, count, found, suite, rent_weight, play, rungs, tell)
    return Tuned(rules(config), count, tuple(families), found, best)


def select(
    config: EnvConfig,
    count: int,
    tuned: dict[str, dict[str, Winner]],
    suite: Sequence[str],
    rent_weight: float,
    play: Callable[[Sequence[Schedule], bool], Play],
    rungs: Sequence[tuple[int, float]] = RUNGS,
    tell: Callable[[str], None] = lambda text: None,
) -> dict[str, Winner]:
    """For each family of the suite the best of never growing, the tuned schedules and all periodic candidates."""
    drawn = [NEVER, *(w.schedule for own in tuned.values() for w in own.values())]
    drawn += candidates("periodic", count, config)
    scores = Scores(play(drawn, True))
    best = {family: halve(scores, dict(enumerate(drawn)), [family], rent_weight, rungs) for family in suite}
    tell(f"per-task best: {len(scores.known)} episodes of {len(drawn)} schedules")
    return best
