"""`tamiyo evaluate`: tune where asked, play all cells that are missing, then draw the conclusions."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import yaml
from rich.console import Console

from actors.config import EnvConfig
from actors.env.blueprints.family import blueprint_choices
from actors.env.seed_fleet import compile_kernels
from actors.errors import UserError
from actors.policy.saved import find_checkpoint
from deploy.commands.rollout import environment_of
from deploy.evaluation import suite as suites
from deploy.evaluation import tune as tuning
from deploy.evaluation.cells import CELLS, Job, run_cells, schedule_player, workers
from deploy.evaluation.page import terminal, write_page
from deploy.evaluation.play import Row
from deploy.evaluation.players import Player, roster
from deploy.evaluation.results import CEILING, RENT_WEIGHTS, Results
from deploy.evaluation.schedules import Schedule
from deploy.report.progress import clock


@dataclass(frozen=True)
class Request:
    """What the command line asked for."""

    checkpoints: tuple[Path, ...] = ()
    blind: tuple[Path, ...] = ()
    also: tuple[str, ...] = ()
    suite: str = "heldout"
    families: tuple[str, ...] = ()
    rent_weight: float = 5.0
    policies: int = 5
    seeds: int = suites.EPISODE_SEEDS
    jobs: int = 2
    out: Path | None = None
    tune: bool = False
    select: bool = False
    configurations: int = 64
    rungs: int = 4
    schedules: Path = tuning.SCHEDULES
    horizon_epochs: int | None = None
    inner_steps: int | None = None


@dataclass(frozen=True)
class Entrant:
    """A checkpoint, and the environment that it was trained in."""

    path: Path
    config: EnvConfig

    @property
    def run_dir(self) -> Path:
        return next((p for p in self.path.parents if (p / "config.yaml").is_file()), self.path.parent)


def evaluate(request: Request, console: Console | None = None) -> int:
    """Raises `UserError`."""
    console = console or Console(highlight=False)
    _check(request)
    entrants = [_entrant(path) for path in request.checkpoints]
    blind = [_entrant(path) for path in request.blind][: request.policies]
    also = [_also(text) for text in request.also]
    config = _rules(request, [*entrants, *blind, *(e for _, e in also)])
    members = suites.members(request.suite, request.families)
    compile_kernels()
    with workers(request.jobs) as pool:
        if request.tune or request.select:
            _choose(request, config, members, pool, console)
            if not entrants:
                return 0
        tuned = tuning.load(request.schedules, config)
        own = [e for e in entrants if e.config.rent_weight == request.rent_weight][: request.policies]
        others: dict[str, list[str]] = {}
        for e in entrants:
            if e.config.rent_weight != request.rent_weight:
                others.setdefault(f"policy at rent {e.config.rent_weight:g}", []).append(str(e.path))
        for name, e in also:
            others.setdefault(name, []).append(str(e.path))
        if not own:
            raise UserError(f"none of the checkpoints was trained at rent weight {request.rent_weight:g}: give one")
        players = roster(
            [str(e.path) for e in own],
            [str(e.path) for e in blind],
            others,
            _schedules(tuned, request.rent_weight),
        )
        folder = request.out or own[0].run_dir / "evaluation"
        folder.mkdir(parents=True, exist_ok=True)
        started = time.perf_counter()
        rows = _play(players, config, members, range(request.seeds), tuned, pool, folder / CELLS, console)
    results = Results(rows, members, request.rent_weight)
    rules = _told(request, config, own, blind)
    page = write_page(results, folder, _facts(rows, time.perf_counter() - started, request), rules)
    console.width = max(console.width, 168)
    for table in terminal(results):
        console.print(table)
        console.print()
    for sentence in results.sentences:
        console.print(sentence)
    console.print(str(page))
    return 0


def _check(request: Request) -> None:
    if not request.checkpoints and not (request.tune or request.select):
        raise UserError("name the policies: tamiyo evaluate --checkpoint runs/NAME, or tune schedules by --tune")
    for name, least in (("seeds", 2), ("policies", 1), ("jobs", 1), ("configurations", 1), ("rungs", 1)):
        if getattr(request, name) < least:
            raise UserError(f"--{name} is {getattr(request, name)}: it must be at least {least}")
    if request.tune and request.select:
        raise UserError("--tune selects the best schedule of each family too: leave --select out")
    if (request.tune or request.select) and request.schedules == tuning.SCHEDULES:
        flag = "--tune" if request.tune else "--select"
        raise UserError(f"{flag} needs --schedules FILE: where the schedules that are chosen are to be kept")
    if request.rungs > len(tuning.RUNGS):
        raise UserError(f"--rungs is {request.rungs}: there are {len(tuning.RUNGS)}")


def _entrant(path: Path) -> Entrant:
    found = find_checkpoint(path)
    return Entrant(found.resolve(), environment_of(found)[0])


def _also(text: str) -> tuple[str, Entrant]:
    name, equals, path = text.partition("=")
    if not equals or not name or "/" in name:
        raise UserError(f"--also {text}: write NAME=PATH, the name of a line of the table and a policy")
    return name, _entrant(Path(path))


def _rules(request: Request, entrants: Sequence[Entrant]) -> EnvConfig:
    """One environment for all. Raises `UserError` where policies were trained in different ones."""
    chosen = {
        name: value
        for name, value in (("horizon_epochs", request.horizon_epochs), ("inner_steps", request.inner_steps))
        if value is not None
    }
    configs = [e.config for e in entrants] or [EnvConfig()]
    found = [suites.protocol(replace(c, **chosen), request.rent_weight) for c in configs]  # type: ignore[arg-type]
    for entrant, other in zip(entrants, found, strict=False):
        if other != found[0]:
            differing = [k for k, v in asdict(other).items() if v != asdict(found[0])[k]]
            raise UserError(f"{entrant.path} was trained under another env.{', env.'.join(differing)} than the first")
    return found[0]


def _choose(
    request: Request,
    config: EnvConfig,
    members: Sequence[suites.Member],
    pool: ProcessPoolExecutor,
    console: Console,
) -> None:
    """Schedules, all of them anew or the best of each family that the file has none for yet."""
    started = time.perf_counter()

    def tell(text: str) -> None:
        console.print(f"{clock(time.perf_counter() - started)}  {text}")

    size, rungs = len(blueprint_choices()), tuning.RUNGS[: request.rungs]
    rent, play = request.rent_weight, partial(_schedule_player, pool, config)
    families = [m.family for m in members]
    if request.tune:
        small = request.families and request.suite == "train"
        common = request.families if small else suites.tuning_families()
        found = tuning.tune(
            config, size, request.configurations, common, families, RENT_WEIGHTS, rent, play, rungs, tell
        )
    else:
        found = tuning.load(request.schedules, config)
        left = [family for family in families if family not in found.best]
        best = tuning.select(config, size, found.configurations, found.schedules, left, rent, play, rungs, tell)
        found = replace(found, best=found.best | best)
    found.save(request.schedules)
    tell(str(request.schedules))


def _schedule_player(
    pool: ProcessPoolExecutor, config: EnvConfig, schedules: Sequence[Schedule], selection: bool
) -> tuning.Play:
    return schedule_player(pool, config, suites.SELECTION if selection else suites.TUNING, schedules)


def _schedules(tuned: tuning.Tuned, rent_weight: float) -> dict[str, Schedule]:
    """By the names of their lines."""
    found = {f"tuned {kind}": tuned.schedule(kind, rent_weight) for kind in tuned.schedules}
    others = [w for w in tuned.schedules["periodic"] if float(w) != rent_weight]
    return found | {f"periodic at rent {w}": tuned.schedules["periodic"][w].schedule for w in others}


def _play(
    players: Sequence[Player],
    config: EnvConfig,
    members: Sequence[suites.Member],
    seeds: Sequence[int],
    tuned: tuning.Tuned,
    pool: ProcessPoolExecutor,
    folder: Path,
    console: Console,
) -> dict[str, list[dict[str, list[Row]]]]:
    """All cells, leaders first; by line, policy and family."""
    missing = [m.family for m in members if m.family not in tuned.best]
    if len(missing) == len(members):  # of none: then the table has no such line
        players = [p for p in players if p.line != CEILING]
    elif missing:
        raise UserError(f"no best schedule was selected for {', '.join(missing)}: run --select for this suite")
    done, total, started = 0, len(players) * len(members), time.perf_counter()

    def tell(job: Job, played: bool) -> None:
        nonlocal done
        done += 1
        if played:
            console.print(
                f"{clock(time.perf_counter() - started)}  {done}/{total}  {job.player.name}  {job.family}", style="dim"
            )

    def job(player: Player, family: str) -> Job:
        if player.line == CEILING:
            player = replace(player, schedule=tuned.best[family].schedule)
        leader = found.get((f"{player.leader.replace(' ', '_')}-{player.index}", family), []) if player.leader else []
        own = suites.on_family(config, family)
        return Job(player, own, suites.REPORTING, tuple(seeds), tuple(leader))

    found: dict[tuple[str, str], list[Row]] = {}
    for followers in (False, True):
        jobs = [job(p, m.family) for m in members for p in players if bool(p.leader) == followers]
        found |= run_cells(pool, jobs, folder, tell)
    rows: dict[str, list[dict[str, list[Row]]]] = {}
    for player in players:
        rows.setdefault(player.line, []).append({m.family: found[player.name, m.family] for m in members})
    return rows


def _facts(rows: dict[str, list[dict[str, list[Row]]]], seconds: float, request: Request) -> list[tuple[str, str]]:
    every = [row for line in rows.values() for policy in line for own in policy.values() for row in own]
    return [
        ("policies", str(len(rows["policy greedy"]))),
        ("families", str(len(next(iter(rows.values()))[0]))),
        ("paired seeds", str(request.seeds)),
        ("episodes", f"{len(every):,}"),
        ("panics", str(int(np.sum([row.panic for row in every])))),
        ("time", clock(seconds)),
    ]


def _told(request: Request, config: EnvConfig, own: Sequence[Entrant], blind: Sequence[Entrant]) -> str:
    rules = {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(config).items() if k != "tasks"}
    seeds = {"reporting": suites.REPORTING, "selection": suites.SELECTION, "tuning": suites.TUNING}
    return yaml.safe_dump(
        {
            "suite": request.suite,
            "policies": [str(e.path) for e in own],
            "blind": [str(e.path) for e in blind],
            "schedules": str(request.schedules),
            "run_seeds": seeds,
            "env": rules,
        },
        sort_keys=False,
    )
