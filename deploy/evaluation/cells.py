"""Cells: the episodes of one player on one family at one price. A player's cells share a small file that can be
committed, so that tables can be made again, and players added, without its checkpoint.

The file is gzipped JSON: the player and its cells by name, each with the fingerprint of what it depends on, and
its episodes as columns of rounded numbers. A cell is `FAMILY@p,c` for players whose actions can depend on
both prices, `FAMILY@p` for those that do not look at the price of compute, and `FAMILY` for those that look at none.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, fields, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

from actors.config import PRICE, EnvConfig
from actors.errors import UserError
from actors.process_environment import NO_GPU
from actors.slots.objective import Prices
from deploy.evaluation.play import EpisodeResult
from deploy.evaluation.players import Player
from deploy.evaluation.suite import NOMINAL, first_seed
from deploy.report.progress import clock
from learner.run.checkpoint import write_durably

Task = TypeVar("Task")
Result = TypeVar("Result")
DIGITS = {"gain": 3, "doublings": 4, "compute": 4, "accuracy": 3, "test_accuracy": 3}
NOT_PLAYED_IN = ("data_dir", "download", "device", "backend")  # settings that change no episode
PRICE_SETTINGS = ("points_per_doubling", "points_per_compute_doubling")


@dataclass(frozen=True)
class Job:
    """One cell to play."""

    player: Player
    config: EnvConfig  # of one family, its prices aside
    prices: Prices
    run_seed: int
    seeds: int  # episodes of the family

    @property
    def seen(self) -> tuple[float, ...]:
        """The prices on which the player's actions can depend."""
        return () if PRICE in self.config.hidden_features else self.prices[: self.player.prices_seen]

    @property
    def cell(self) -> str:
        prices = ",".join(f"{price:g}" for price in self.seen)
        return self.config.tasks[0] + (f"@{prices}" if prices else "")

    def fingerprint(self) -> str:
        """Of all that an episode depends on. Further seeds do not change it."""
        config = {k: v for k, v in asdict(self.config).items() if k not in (*NOT_PLAYED_IN, *PRICE_SETTINGS)}
        text = json.dumps([self.player.identity(), config, self.seen, self.run_seed], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def play_job(job: Job) -> list[EpisodeResult]:
    first = first_seed(job.config.tasks[0])
    prices = (*job.seen, *NOMINAL[len(job.seen) :])  # what nobody looks at changes no result
    config = replace(job.config, **dict(zip(PRICE_SETTINGS, prices, strict=True)))  # type: ignore[arg-type]
    return job.player.play(config, job.run_seed, range(first, first + job.seeds))


class CellStore:
    """The cells in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files: dict[str, dict[str, Any]] = {}

    def read(self, job: Job) -> list[EpisodeResult] | None:
        """Return the results that were played before under the same conditions."""
        cell = self._file(job.player.name).get("cells", {}).get(job.cell)
        if cell is None or cell["fingerprint"] != job.fingerprint() or len(cell["rows"]["seed"]) < job.seeds:
            return None
        return _results(cell["rows"])[: job.seeds]

    def write(self, job: Job, results: list[EpisodeResult]) -> None:
        """Keep a cell; the player's other cells stay."""
        self._files.pop(job.player.name, None)  # another process may have added to it
        content = self._file(job.player.name)
        content["player"] = asdict(replace(job.player, checkpoint=""))
        cell = {"fingerprint": job.fingerprint(), "rows": _columns(results)}
        content["cells"] = dict(sorted({**content.get("cells", {}), job.cell: cell}.items()))
        self.folder.mkdir(parents=True, exist_ok=True)
        packed = gzip.compress(json.dumps(content, separators=(",", ":")).encode(), mtime=0)
        write_durably(self.folder / f"{job.player.name}.json.gz", packed, replace=True)

    def policies(self) -> list[Player]:
        """Return the policies of which cells are kept, sorted by name."""
        names = sorted(path.name.removesuffix(".json.gz") for path in self.folder.glob("*.json.gz"))
        found = [Player(**self._file(name)["player"]) for name in names]
        return [
            replace(p, env=tuple((k, tuple(v) if isinstance(v, list) else v) for k, v in p.env))
            for p in found
            if p.sha256
        ]

    def _file(self, name: str) -> dict[str, Any]:
        if name not in self._files:
            path = self.folder / f"{name}.json.gz"
            try:
                self._files[name] = json.loads(gzip.decompress(path.read_bytes())) if path.is_file() else {}
            except (ValueError, EOFError, OSError, zlib.error, RecursionError) as error:
                raise UserError(f"{path} is damaged ({error}): delete it, and its cells are played again") from error
        return self._files[name]


def _columns(results: list[EpisodeResult]) -> dict[str, list[Any]]:
    columns = {f.name: [getattr(result, f.name) for result in results] for f in fields(EpisodeResult)}
    for name, digits in DIGITS.items():
        columns[name] = [round(x, digits) for x in columns[name]]
    columns["curve"] = [[round(x, 2) for x in curve] for curve in columns["curve"]]
    if not any(columns["curve"]):
        del columns["curve"]
    return columns


def _results(columns: Mapping[str, list[Any]]) -> list[EpisodeResult]:
    known = {f.name: columns[f.name] for f in fields(EpisodeResult) if f.name in columns}  # older files have more
    results = [EpisodeResult(**dict(zip(known, v, strict=True))) for v in zip(*known.values(), strict=True)]
    return [replace(result, ops=tuple(result.ops), curve=tuple(result.curve)) for result in results]


def run_cells(
    jobs: Iterable[Job], store: CellStore, processes: int, log: Callable[[str], None]
) -> dict[tuple[Player, str], list[EpisodeResult]]:
    """Return the results by player and cell; missing cells are played and kept. `log` gets a line for each of them."""
    wanted = {(job.player, job.cell): job for job in jobs}
    found = {key: results for key, job in wanted.items() if (results := store.read(job)) is not None}
    missing = [job for key, job in wanted.items() if key not in found]
    missing.sort(key=lambda job: -job.player.scale)  # the slowest first
    for job, results, progress in finished(play_job, missing, processes):
        store.write(job, results)
        log(f"{progress}  {job.player.name}  {job.cell}")
    return found | {(job.player, job.cell): store.read(job) or [] for job in missing}


def finished(
    work: Callable[[Task], Result],
    tasks: Sequence[Task],
    processes: int,
    effort: Callable[[Task], float] = lambda _: 1.0,
) -> Iterator[tuple[Task, Result, str]]:
    """Do all tasks, in this process if it is the only one. Yields each task that is done, its result, and the progress:
    the time, how many are done, and an estimate of the time left by the `effort` of each, in any unit."""
    started, spent, total = time.perf_counter(), 0.0, sum(map(effort, tasks))
    with workers(min(processes, len(tasks))) if min(processes, len(tasks)) > 1 else nullcontext() as pool:
        results: Iterator[tuple[Task, Result]] = ((task, work(task)) for task in tasks)
        if pool is not None:
            under_way = {pool.submit(work, task): task for task in tasks}
            results = ((under_way[future], future.result()) for future in as_completed(under_way))
        for done, (task, result) in enumerate(results, 1):
            passed, spent = time.perf_counter() - started, spent + effort(task)
            left = clock(passed / spent * (total - spent))
            yield task, result, f"{clock(passed)}  {done}/{len(tasks)}, about {left} left"


@contextmanager
def workers(processes: int) -> Iterator[ProcessPoolExecutor]:
    """Yield a pool of new processes with one thread each, which see no GPU."""
    os.environ["OMP_NUM_THREADS"] = "1"  # they inherit it
    pool = ProcessPoolExecutor(processes, mp_context=get_context("spawn"), initializer=_use_one_core)
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def _use_one_core() -> None:
    os.environ.update(NO_GPU)
    import torch

    torch.set_num_threads(1)
