"""`tamiyo evaluate`: tune schedules if asked, play all missing cells of policies and rules, and write the page."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import yaml
from rich.console import Console

from actors.config import EnvConfig
from actors.env.seed_fleet import compile_kernels
from actors.errors import UserError
from actors.policy.saved import find_checkpoint
from actors.rules.names import DEFAULT_COLUMN_RULE, DEFAULT_STREAM_RULE, parse_rule
from actors.rules.schedule import Schedule
from deploy.commands.rollout import environment_of
from deploy.config.schema import PRESETS
from deploy.evaluation import suite as suites
from deploy.evaluation import tune as tuning
from deploy.evaluation.cells import CELLS, Job, run_cells, schedule_player, workers
from deploy.evaluation.page import terminal, write_page
from deploy.evaluation.play import Row
from deploy.evaluation.players import Player, roster
from deploy.evaluation.results import CEILING, FIXED, MAIN, PRICES, STREAM, Results
from deploy.report.progress import clock

RULES = {FIXED: DEFAULT_COLUMN_RULE, STREAM: DEFAULT_STREAM_RULE}
"""Rules that are always played, by the names of their rows in the table."""


@dataclass(frozen=True)
class EvaluateOptions:
    """The options of `tamiyo evaluate`."""

    checkpoints: tuple[Path, ...] = ()
    blind: tuple[Path, ...] = ()
    also: tuple[str, ...] = ()
    players: tuple[str, ...] = ()
    suite: str = "heldout"
    families: tuple[str, ...] = ()
    price: float = 1.0
    policies: int = 5
    seeds: int = suites.EPISODE_SEEDS
    jobs: int = 2
    out: Path | None = None
    tune: bool = False
    select: bool = False
    configurations: int = 64
    rungs: int = 4
    schedules: Path | None = None
    horizon_epochs: int | None = None
    inner_steps: int | None = None


@dataclass(frozen=True)
class TrainedPolicy:
    """A checkpoint and the environment it was trained in."""

    path: Path
    config: EnvConfig

    @property
    def run_dir(self) -> Path:
        return next((p for p in self.path.parents if (p / "config.yaml").is_file()), self.path.parent)


def evaluate(options: EvaluateOptions, console: Console | None = None) -> int:
    """Evaluate policies and write the results page. Raises `UserError` for impossible options."""
    console = console or Console(highlight=False)
    _check(options)
    policies = [_trained_policy(path) for path in options.checkpoints]
    blind = [_trained_policy(path) for path in options.blind][: options.policies]
    also = [_also(text) for text in options.also]
    config = _rules(options, [*policies, *blind, *(e for _, e in also)])
    members = suites.members(options.suite, options.families)
    compile_kernels()
    with workers(options.jobs) as pool:
        if options.tune or options.select:
            _choose(options, config, members, pool, console)
            if not policies:
                return 0
        tuned = None if options.schedules is None else tuning.load(options.schedules, config)
        own = policies[: options.policies]
        others: dict[str, list[str]] = {}
        for name, e in also:
            others.setdefault(name, []).append(str(e.path))
        players = roster(
            [str(e.path) for e in own],
            [str(e.path) for e in blind],
            others,
            {} if tuned is None else _schedules(tuned, options.price),
            RULES | {name: name for name in options.players},
            [price for price in PRICES if price != options.price],
        )
        folder = options.out or (own[0].run_dir if own else Path("runs")) / "evaluation"
        folder.mkdir(parents=True, exist_ok=True)
        started = time.perf_counter()
        best = {} if tuned is None else {family: winner.schedule for family, winner in tuned.best.items()}
        rows = _play(players, config, members, range(options.seeds), best, pool, folder / CELLS, console)
    results = Results(rows, members, options.price)
    rules = _settings_text(options, config, own, blind)
    page = write_page(results, folder, _facts(rows, time.perf_counter() - started, options), rules)
    console.width = max(console.width, 168)
    for table in terminal(results):
        console.print(table)
        console.print()
    for sentence in results.sentences:
        console.print(sentence)
    console.print(str(page))
    return 0


def _check(options: EvaluateOptions) -> None:
    if not (options.checkpoints or options.players or options.tune or options.select):
        raise UserError(
            "nothing to evaluate: give --checkpoint runs/NAME or --player RULE, or tune schedules with --tune"
        )
    for name in options.players:
        parse_rule(name)
    if options.price < 0:
        raise UserError(f"--price is {options.price:g}: it cannot be negative")
    for name, least in (("seeds", 2), ("policies", 1), ("jobs", 1), ("configurations", 1), ("rungs", 1)):
        if getattr(options, name) < least:
            raise UserError(f"--{name} is {getattr(options, name)}: it must be at least {least}")
    if options.tune and options.select:
        raise UserError("--tune also selects the best schedule of each family: leave out --select")
    if (options.tune or options.select) and options.schedules is None:
        flag = "--tune" if options.tune else "--select"
        raise UserError(f"{flag} needs --schedules FILE, the file to write the schedules to")
    if options.rungs > len(tuning.RUNGS):
        raise UserError(f"--rungs is {options.rungs}: it must be at most {len(tuning.RUNGS)}")


def _trained_policy(path: Path) -> TrainedPolicy:
    found = find_checkpoint(path)
    return TrainedPolicy(found.resolve(), environment_of(found)[0])


def _also(text: str) -> tuple[str, TrainedPolicy]:
    name, equals, path = text.partition("=")
    if not equals or not name or "/" in name:
        raise UserError(f"--also {text}: write NAME=PATH, a row of the table and a policy")
    return name, _trained_policy(Path(path))


def _rules(options: EvaluateOptions, policies: Sequence[TrainedPolicy]) -> EnvConfig:
    """Return the environment of the evaluation. Raises `UserError` if the policies were trained in different ones."""
    chosen = {
        name: value
        for name, value in (("horizon_epochs", options.horizon_epochs), ("inner_steps", options.inner_steps))
        if value is not None
    }
    configs = [e.config for e in policies] or [PRESETS["research"].env]
    found = [suites.protocol(replace(c, **chosen), options.price) for c in configs]  # type: ignore[arg-type]
    for policy, other in zip(policies, found, strict=False):
        if other != found[0]:
            differing = [k for k, v in asdict(other).items() if v != asdict(found[0])[k]]
            raise UserError(
                f"{policy.path} was trained with another env.{', env.'.join(differing)} than the first policy"
            )
    return found[0]


def _choose(
    options: EvaluateOptions,
    config: EnvConfig,
    members: Sequence[suites.Member],
    pool: ProcessPoolExecutor,
    console: Console,
) -> None:
    """Tune all schedules, or only select the best one of each family that the file lacks."""
    started = time.perf_counter()

    def log(text: str) -> None:
        console.print(f"{clock(time.perf_counter() - started)}  {text}")

    assert options.schedules is not None
    rungs = tuning.RUNGS[: options.rungs]
    price, play = options.price, partial(_schedule_player, pool, config)
    families = [m.family for m in members]
    if options.tune:
        small = options.families and options.suite == "train"
        common = options.families if small else suites.tuning_families()
        found = tuning.tune(config, options.configurations, common, families, PRICES, price, play, rungs, log)
    else:
        found = tuning.load(options.schedules, config)
        left = [family for family in families if family not in found.best]
        best = tuning.select(config, found.configurations, found.schedules, left, price, play, rungs, log)
        found = replace(found, best=found.best | best)
    found.save(options.schedules)
    log(str(options.schedules))


def _schedule_player(
    pool: ProcessPoolExecutor, config: EnvConfig, schedules: Sequence[Schedule], selection: bool
) -> tuning.Play:
    return schedule_player(pool, config, suites.SELECTION if selection else suites.TUNING, schedules)


def _schedules(tuned: tuning.Tuned, price: float) -> dict[str, Schedule]:
    """The tuned schedules by the names of their rows in the table."""
    found = {f"tuned {kind}": tuned.schedule(kind, price) for kind in tuned.schedules}
    others = [w for w in tuned.schedules["periodic"] if float(w) != price]
    return found | {f"periodic at price {w}": tuned.schedules["periodic"][w].schedule for w in others}


def _play(
    players: Sequence[Player],
    config: EnvConfig,
    members: Sequence[suites.Member],
    seeds: Sequence[int],
    best: Mapping[str, Schedule],
    pool: ProcessPoolExecutor,
    folder: Path,
    console: Console,
) -> dict[str, list[dict[str, list[Row]]]]:
    """Play all cells, leaders first. Returns the rows by line, policy and family."""
    missing = [m.family for m in members if m.family not in best]
    if len(missing) == len(members):  # no family has one: leave that line out of the table
        players = [p for p in players if p.line != CEILING]
    elif missing:
        raise UserError(
            f"--schedules has no best schedule for {', '.join(missing)}: run `tamiyo evaluate --select` for this suite"
        )
    done, total, started = 0, len(players) * len(members), time.perf_counter()

    def log(job: Job, played: bool) -> None:
        nonlocal done
        done += 1
        if played:
            console.print(
                f"{clock(time.perf_counter() - started)}  {done}/{total}  {job.player.name}  {job.family}", style="dim"
            )

    def job(player: Player, family: str) -> Job:
        if player.line == CEILING:
            player = replace(player, schedule=best[family])
        leader = found.get((f"{player.leader.replace(' ', '_')}-{player.index}", family), []) if player.leader else []
        own = suites.on_family(config, family)
        return Job(player, own, suites.REPORTING, tuple(seeds), tuple(leader))

    found: dict[tuple[str, str], list[Row]] = {}
    for followers in (False, True):
        jobs = [job(p, m.family) for m in members for p in players if bool(p.leader) == followers]
        found |= run_cells(pool, jobs, folder, log)
    rows: dict[str, list[dict[str, list[Row]]]] = {}
    for player in players:
        rows.setdefault(player.line, []).append({m.family: found[player.name, m.family] for m in members})
    return rows


def _facts(
    rows: dict[str, list[dict[str, list[Row]]]], seconds: float, options: EvaluateOptions
) -> list[tuple[str, str]]:
    every = [row for line in rows.values() for policy in line for own in policy.values() for row in own]
    return [
        ("policies", str(len(rows.get(MAIN, ())))),
        ("families", str(len(next(iter(rows.values()))[0]))),
        ("paired seeds", str(options.seeds)),
        ("episodes", f"{len(every):,}"),
        ("panics", str(int(np.sum([row.panic for row in every])))),
        ("time", clock(seconds)),
    ]


def _settings_text(
    options: EvaluateOptions, config: EnvConfig, own: Sequence[TrainedPolicy], blind: Sequence[TrainedPolicy]
) -> str:
    rules = {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(config).items() if k != "tasks"}
    seeds = {"reporting": suites.REPORTING, "selection": suites.SELECTION, "tuning": suites.TUNING}
    return yaml.safe_dump(
        {
            "suite": options.suite,
            "policies": [str(e.path) for e in own],
            "blind": [str(e.path) for e in blind],
            "rules": list(options.players),
            "schedules": str(options.schedules or ""),
            "run_seeds": seeds,
            "env": rules,
        },
        sort_keys=False,
    )
