"""`tamiyo evaluate`: play all missing cells of policies and rules at every price, and write the page."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

from rich.console import Console

from actors.config import PRICE, EnvConfig
from actors.errors import UserError
from actors.policy.saved import find_checkpoint
from actors.rules.names import parse_rule
from actors.slots.objective import Prices
from deploy.commands.evaluation_flags import EvaluateOptions
from deploy.commands.rollout import environment_of
from deploy.config.schema import PRESETS
from deploy.evaluation import players
from deploy.evaluation import suite as suites
from deploy.evaluation import tune as tuning
from deploy.evaluation.cells import CellStore, Job, run_cells
from deploy.evaluation.page import tables_of, write_page
from deploy.evaluation.play import EpisodeResult
from deploy.evaluation.players import BLIND, POLICY, Lineup, Player, rule_player, same
from deploy.evaluation.results import results_by_condition
from deploy.launch import kernels
from learner.run.checkpoint import load_network

QUICK_FAMILIES, QUICK_SEEDS, QUICK = 2, 2, {"horizon_epochs": 8, "inner_steps": 4}
ENV = PRESETS["research"].env
"""The environment in which a checkpoint outside a run folder plays."""
MAY_DIFFER = ("slots", "column_slots", "hidden_features", "prune")
"""Settings of the environment in which other policies may differ from those of `--checkpoint`."""


def evaluate(options: EvaluateOptions, console: Console | None = None) -> int:
    """Evaluate policies and write the results page. Raises `UserError` for impossible options."""
    console = console or Console(highlight=False)
    evaluation = EvaluationRun(options, console)
    if options.tune:
        evaluation.tune()
        return 0
    results = results_by_condition(evaluation.play(evaluation.lines()))
    page = write_page(results, options.folder)
    console.width = max(console.width, 150)
    for table in tables_of(results):
        console.print(table.title, table.rich(), "")
    console.print(str(page))
    return 0


class EvaluationRun:
    """Who plays what: the policies that are named, the environment that they share, and the families."""

    def __init__(self, options: EvaluateOptions, console: Console) -> None:
        self.options, self.console = options, console
        for name in options.player:
            parse_rule(name)
        self.config, self.policies = _policies(options)
        self.families = suites.reported(options.suite, options.families)
        self.seeds = options.seeds or suites.EPISODE_SEEDS
        if options.quick:
            self.config = replace(self.config, **QUICK)  # type: ignore[arg-type]
            self.families, self.seeds = self.families[:QUICK_FAMILIES], QUICK_SEEDS
        self.store = CellStore(options.cells_folder)

    def lines(self) -> Lineup:
        """Return the rows of the table."""
        rules = players.always_played(tuning.read_rules(self.options.rules or tuning.RULES_FILE))
        named = {name: same(rule_player(name)) for name in self.options.player}
        policies = list(self.policies)
        if self.options.kept or not policies:
            known = [replace(player, checkpoint="") for player in policies]
            policies += [player for player in self._kept() if player not in known]
        return {**rules, **named, **players.of_policies(policies)}

    def _kept(self) -> list[Player]:
        """Return the policies all of whose cells are kept; say which others there are."""
        found = []
        for player in self.store.policies():
            jobs = [self._job(player, f, w) for f in self.families for w in suites.ALL_PRICES]
            cells = {job.cell: self.store.read(job) is None for job in jobs}
            if missing := sum(cells.values()):
                text = f"{player.name} is left out: {missing} of {len(cells)} cells are missing"
                self.console.print(text, style="dim")
            else:
                found.append(player)
        return found

    def _job(self, player: Player, family: str, prices: Prices) -> Job:
        config = replace(suites.on_family(self.config, family), **dict(player.env))
        return Job(player, config, prices, suites.run_seed(self.options.suite), self.seeds)

    def play(self, lines: Lineup) -> dict[str, dict[Prices, list[dict[str, list[EpisodeResult]]]]]:
        """Play all missing cells. Returns the results by line, price, policy and family."""
        jobs = {
            (player, w, f): self._job(player, f, w)
            for f in self.families
            for line in lines.values()
            for w, players in line.items()
            for player in players
        }
        for part in (kernels.ENVIRONMENTS, kernels.POLICY):
            kernels.compile_part(part)
        dim = partial(self.console.print, style="dim", soft_wrap=True)
        found = run_cells(jobs.values(), self.store, self.options.jobs, dim)

        def results(player: Player, prices: Prices) -> dict[str, list[EpisodeResult]]:
            return {f: found[player, jobs[player, prices, f].cell] for f in self.families}

        return {n: {w: [results(p, w) for p in players] for w, players in line.items()} for n, line in lines.items()}

    def tune(self) -> None:
        """Choose the rules of each tuned line, and write them into the file with those that are not tuned here."""
        candidates = dict.fromkeys(rule for rules in tuning.CANDIDATES.values() for rule in rules)
        results = self.play({rule: same(rule_player(rule)) for rule in candidates})
        found: dict[str, Mapping[Prices, str]] = dict(tuning.read_rules(tuning.RULES_FILE))
        for line, rules in tuning.CANDIDATES.items():
            single = {rule: {w: policies[0] for w, policies in results[rule].items()} for rule in rules}
            found[line] = tuning.choose(single)
        assert self.options.rules is not None
        tuning.write_rules(found, self.options.rules)
        self.console.print(str(self.options.rules))


def _policies(options: EvaluateOptions) -> tuple[EnvConfig, list[Player]]:
    """Return the environment of the policies that are named, and these. Raises `UserError` if theirs differ."""
    named = [(POLICY, path) for path in options.checkpoint] + [(BLIND, path) for path in options.blind]
    for text in options.also:
        name, equals, other = text.partition("=")
        if not equals or not name or "/" in name:
            raise UserError(f"--also {text}: write NAME=PATH, a row of the table and a policy")
        named.append((name, Path(other)))
    config: EnvConfig | None = None
    named_players = []
    for line, path in named:
        found = find_checkpoint(path).resolve()
        environment = suites.protocol(environment_of(found, ENV)[0], suites.NOMINAL)
        if load_network(found).config.blind:  # so that it plays once for all prices
            environment = replace(environment, hidden_features=(PRICE,))
        if config is None:  # those of other lines may have been trained without columns, for example
            config = environment if line == POLICY else suites.protocol(ENV, suites.NOMINAL)
        differing = [k for k, v in asdict(environment).items() if v != getattr(config, k)]
        if [k for k in differing if k not in MAY_DIFFER or line == POLICY]:
            raise UserError(f"{found} was trained with another env.{', env.'.join(differing)} than the first policy")
        named_players.append(players.policy_player(line, found, {k: getattr(environment, k) for k in differing}))
    return config or suites.protocol(ENV, suites.NOMINAL), named_players
