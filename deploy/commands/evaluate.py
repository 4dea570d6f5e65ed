"""`tamiyo evaluate`: play all missing cells of policies and rules at every price, and write the page."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console

from actors.config import EnvConfig
from actors.errors import UserError
from actors.policy.saved import find_checkpoint
from actors.rules.names import parse_rule
from deploy.commands.rollout import environment_of
from deploy.config.schema import PRESETS
from deploy.evaluation import suite as suites
from deploy.evaluation import tune as tuning
from deploy.evaluation.cells import CELLS, CellStore, Job, run_cells
from deploy.evaluation.page import terminal, write_page
from deploy.evaluation.play import Row
from deploy.evaluation.players import BLIND, POLICY, Lineup, Player, always_played, of_policies, policy_player, same
from deploy.evaluation.players import rule_player as _rule_player
from deploy.evaluation.results import Results, with_sweeps
from deploy.launch import kernels
from deploy.report.progress import clock

RESULTS = Path("results/sweep")
QUICK = {"families": 2, "seeds": 2, "horizon_epochs": 8, "inner_steps": 4}
ENV = PRESETS["research"].env
"""The environment of the study, in which a checkpoint outside a run folder plays."""
MAY_DIFFER = ("slots", "column_slots", "hidden_features")
"""Settings of the environment in which a policy of `--also` may differ from the others."""


@dataclass(frozen=True)
class EvaluateOptions:
    """The options of `tamiyo evaluate`."""

    checkpoints: tuple[Path, ...] = ()
    blind: tuple[Path, ...] = ()
    also: tuple[str, ...] = ()
    players: tuple[str, ...] = ()
    suite: str = "heldout"
    families: tuple[str, ...] = ()
    seeds: int = suites.EPISODE_SEEDS
    jobs: int = 2
    out: Path = RESULTS
    cells: Path | None = None
    kept: bool = False
    rules: Path = tuning.RULES_FILE
    tune: bool = False
    quick: bool = False
    horizon_epochs: int | None = None
    inner_steps: int | None = None


def evaluate(options: EvaluateOptions, console: Console | None = None) -> int:
    """Evaluate policies and write the results page. Raises `UserError` for impossible options."""
    console = console or Console(highlight=False)
    _check(options)
    config, policies = _policies(options)
    config = _shortened(config, options)
    families = suites.reported(options.suite, options.families)
    if options.quick:
        options, families = replace(options, seeds=QUICK["seeds"]), families[: QUICK["families"]]
    store = CellStore(options.cells or options.out / CELLS)
    if options.tune:
        return _tune(options, config, families, store, console)
    lines = always_played(tuning.read_rules(options.rules))
    lines += [same(name, _rule_player(name)) for name in options.players]
    if options.kept or not policies:
        policies += [p for p in _kept(store, config, families, options, console) if p not in _bare(policies)]
    lines += of_policies(policies)
    started = time.perf_counter()
    rows = _play(lines, config, families, options, store, console)
    results = Results(with_sweeps(rows))
    options.out.mkdir(parents=True, exist_ok=True)
    seconds = time.perf_counter() - started
    page = write_page(results, options.out, _facts(results, seconds), _settings_text(options, config, lines))
    console.width = max(console.width, 150)
    for table in terminal(results):
        console.print(table)
        console.print()
    for sentence in results.sentences:
        console.print(sentence)
    console.print(str(page))
    return 0


def _check(options: EvaluateOptions) -> None:
    for name in options.players:
        parse_rule(name)
    for name, least in (("seeds", 2), ("jobs", 1)):
        if getattr(options, name) < least:
            raise UserError(f"--{name} is {getattr(options, name)}: it must be at least {least}")
    if options.tune and options.suite != "train":
        raise UserError("--tune plays training families: add --suite train")
    if options.tune and options.rules == tuning.RULES_FILE:
        raise UserError("--tune needs --rules FILE, the file to write the chosen rules to")


def _policies(options: EvaluateOptions) -> tuple[EnvConfig, list[Player]]:
    """Return the environment of the evaluation and the policies that are named: that of their runs, or the study's for
    checkpoints outside a run folder, such as the policy in the package.

    Raises `UserError` if the policies were trained in different environments.
    """
    named = [(POLICY, path) for path in options.checkpoints] + [(BLIND, path) for path in options.blind]
    named += [_also(text) for text in options.also]
    config: EnvConfig | None = None
    players = []
    for line, path in named:
        found = find_checkpoint(path).resolve()
        own = suites.protocol(environment_of(found, ENV)[0])
        if config is None:  # those of --also may have been trained without columns, for example
            config = own if line in (POLICY, BLIND) else suites.protocol(ENV)
        differing = [k for k, v in asdict(own).items() if v != getattr(config, k)]
        if [k for k in differing if k not in MAY_DIFFER or line in (POLICY, BLIND)]:
            raise UserError(f"{found} was trained with another env.{', env.'.join(differing)} than the first policy")
        players.append(policy_player(line, found, {k: getattr(own, k) for k in differing}))
    return config or suites.protocol(ENV), players


def _also(text: str) -> tuple[str, Path]:
    name, equals, path = text.partition("=")
    if not equals or not name or "/" in name:
        raise UserError(f"--also {text}: write NAME=PATH, a row of the table and a policy")
    return name, Path(path)


def _shortened(config: EnvConfig, options: EvaluateOptions) -> EnvConfig:
    names = ("horizon_epochs", "inner_steps")
    chosen: dict[str, Any] = {
        name: getattr(options, name) or (QUICK[name] if options.quick else None) for name in names
    }
    return replace(config, **{name: value for name, value in chosen.items() if value is not None})


def _bare(players: Iterable[Player]) -> list[Player]:
    """The players as their cells know them."""
    return [replace(player, checkpoint="") for player in players]


def _kept(
    store: CellStore, config: EnvConfig, families: Sequence[str], options: EvaluateOptions, console: Console
) -> list[Player]:
    """Return the policies all of whose cells are kept; say which others there are."""
    found = []
    for player in store.policies():
        jobs = [_job(player, config, f, w, options) for f in families for w in suites.PRICES]
        missing = sum(store.read(job) is None for job in jobs)
        if missing:
            console.print(f"{player.name} is left out: {missing} of {len(jobs)} cells are missing", style="dim")
        else:
            found.append(player)
    return found


def _job(player: Player, config: EnvConfig, family: str, price: float, options: EvaluateOptions) -> Job:
    settings: dict[str, Any] = {"rent_weight": price, **dict(player.env)}
    own = replace(suites.on_family(config, family), **settings)
    return Job(player, own, suites.run_seed(options.suite), options.seeds)


def _play(
    lines: Sequence[Lineup],
    config: EnvConfig,
    families: Sequence[str],
    options: EvaluateOptions,
    store: CellStore,
    console: Console,
) -> dict[str, dict[float, list[dict[str, list[Row]]]]]:
    """Play all missing cells. Returns the rows by line, price, policy and family."""
    jobs = {
        (player, w, f): _job(player, config, f, w, options)
        for f in families
        for line in lines
        for w, players in line.players.items()
        for player in players
    }
    for part in (kernels.ENVIRONMENTS, kernels.POLICY):
        kernels.compile_part(part)
    found = run_cells(jobs.values(), store, options.jobs, lambda text: console.print(text, style="dim", soft_wrap=True))

    def rows(player: Player, price: float) -> dict[str, list[Row]]:
        return {f: found[player, jobs[player, price, f].cell] for f in families}

    return {line.name: {w: [rows(p, w) for p in players] for w, players in line.players.items()} for line in lines}


def _tune(
    options: EvaluateOptions, config: EnvConfig, families: Sequence[str], store: CellStore, console: Console
) -> int:
    """Choose the rules of each tuned line, and write them into the file with those that are not tuned here."""
    candidates = dict.fromkeys(rule for rules in tuning.CANDIDATES.values() for rule in rules)
    lines = [same(rule, _rule_player(rule)) for rule in candidates]
    rows = _play(lines, config, families, options, store, console)
    found: dict[str, Mapping[float, str]] = dict(tuning.read_rules(tuning.RULES_FILE))
    for line, rules in tuning.CANDIDATES.items():
        own = {rule: {w: policies[0] for w, policies in rows[rule].items()} for rule in rules}
        found[line] = tuning.choose(own, suites.PRICES)
    tuning.write_rules(found, options.rules)
    console.print(str(options.rules))
    return 0


def _facts(results: Results, seconds: float) -> list[tuple[str, str]]:
    policies = results.rows.get(POLICY)
    prices = results.prices
    seeds = len(next(iter(results.rows.values()))[prices[0]][0][results.families[0]])
    return [
        ("policies", str(len(policies[prices[0]]) if policies else 0)),
        ("families", str(len(results.families))),
        ("paired episodes", str(seeds)),
        ("prices", ", ".join(f"{w:g}" for w in prices)),
        ("time", clock(seconds)),
    ]


def _settings_text(options: EvaluateOptions, config: EnvConfig, lines: Sequence[Lineup]) -> str:
    env = {k: list(v) if isinstance(v, tuple) else v for k, v in asdict(config).items()}
    shared = ("tasks", "rent_weight")
    players = {line.name: {f"{w:g}": [p.name for p in own] for w, own in line.players.items()} for line in lines}
    return yaml.safe_dump(
        {
            "suite": options.suite,
            "run_seed": suites.run_seed(options.suite),
            "players": players,
            "env": {k: v for k, v in env.items() if k not in shared},
        },
        sort_keys=False,
    )
