"""Cells: the rows of one player on one family, stored in one file each so that an evaluation can be resumed."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

from actors.config import EnvConfig
from actors.rules.schedule import Schedule
from deploy.evaluation.play import Row
from deploy.evaluation.players import Player, play_player, play_schedules

T = TypeVar("T")
CELLS = "cells"
"""Folder of an evaluation's cells."""

LEAST_AT_ONCE = 16  # schedules that one process plays in one fleet


@dataclass(frozen=True)
class Job:
    """One cell to play."""

    player: Player
    config: EnvConfig  # of one family
    run_seed: int
    seeds: tuple[int, ...]
    leader: tuple[Row, ...] = ()

    @property
    def family(self) -> str:
        return self.config.tasks[0]

    def fingerprint(self) -> str:
        """Of all that its rows depend on; of a checkpoint, what is in it."""
        fields = asdict(self)
        fields["player"]["checkpoint"] = _content(self.player.checkpoint)
        return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()[:16]

    def path(self, folder: Path) -> Path:
        return folder / self.player.name / f"{self.family}.json"


def _content(checkpoint: str) -> str:
    return hashlib.sha256(Path(checkpoint).read_bytes()).hexdigest() if checkpoint else ""


def read_cell(job: Job, folder: Path) -> list[Row] | None:
    """Rows that were played before under the very same conditions."""
    path = job.path(folder)
    if not path.is_file():
        return None
    data = json.loads(path.read_text())
    return [Row(**row) for row in data["rows"]] if data["fingerprint"] == job.fingerprint() else None


def played_seconds(folder: Path) -> float:
    """What all cells that are kept took, each in one process."""
    return float(sum(json.loads(path.read_text())["seconds"] for path in folder.glob("*/*.json")))


def play_cell(job: Job, folder: Path) -> list[Row]:
    """Plays and keeps."""
    started = time.perf_counter()
    rows = play_player(job.player, job.config, job.run_seed, job.seeds, job.leader)
    path = job.path(folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {
        "fingerprint": job.fingerprint(),
        "player": asdict(job.player),
        "family": job.family,
        "seconds": round(time.perf_counter() - started, 2),
        "rows": [row.as_dict() for row in rows],
    }
    partial = path.with_suffix(f".{os.getpid()}.partial")
    partial.write_text(json.dumps(content))
    partial.replace(path)
    return rows


@contextmanager
def workers(jobs: int) -> Iterator[ProcessPoolExecutor]:
    """A pool of new processes with one thread each."""
    os.environ["OMP_NUM_THREADS"] = "1"  # they inherit it
    pool = ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), initializer=_one_thread)
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def _one_thread() -> None:
    import torch

    torch.set_num_threads(1)


def run_cells(
    pool: ProcessPoolExecutor, jobs: Iterable[Job], folder: Path, tell: Callable[[Job, bool], None]
) -> dict[tuple[str, str], list[Row]]:
    """By (player's name, family); `tell(job, played)` after each."""
    found: dict[tuple[str, str], list[Row]] = {}
    under_way = {}
    for job in jobs:
        known = read_cell(job, folder)
        if known is None:
            under_way[pool.submit(play_cell, job, folder)] = job
        else:
            found[job.player.name, job.family] = known
            tell(job, False)
    for future in as_completed(under_way):
        job = under_way[future]
        found[job.player.name, job.family] = future.result()
        tell(job, True)
    return found


def schedule_player(
    pool: ProcessPoolExecutor, config: EnvConfig, run_seed: int, schedules: Sequence[Schedule]
) -> Callable[[Sequence[tuple[int, str, int]]], list[tuple[float, float]]]:
    """Plays (schedule, family, seed) in fleets of one family each, over the pool."""

    def run(asked: Sequence[tuple[int, str, int]]) -> list[tuple[float, float]]:
        by_family: dict[str, list[tuple[int, int]]] = {}
        for i, family, seed in asked:
            by_family.setdefault(family, []).append((i, seed))
        futures: list[tuple[str, list[tuple[int, int]], Any]] = []
        for family, wanted in by_family.items():
            for start in range(0, len(wanted), LEAST_AT_ONCE):
                part = wanted[start : start + LEAST_AT_ONCE]
                plans, seeds = [schedules[i] for i, _ in part], [seed for _, seed in part]
                own = _on(config, family)
                futures.append((family, part, pool.submit(play_schedules, plans, own, run_seed, seeds)))
        found = {
            (i, family, seed): result
            for family, part, future in futures
            for (i, seed), result in zip(part, future.result(), strict=True)
        }
        return [found[a] for a in asked]

    return run


def _on(config: EnvConfig, family: str) -> EnvConfig:
    from deploy.evaluation.suite import on_family

    return on_family(config, family)
