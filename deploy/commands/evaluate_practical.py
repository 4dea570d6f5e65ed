"""`tamiyo evaluate --suite practical`: play rules and policies in the training scripts of `examples/practical`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from rich.console import Console

from actors.policy.saved import TRAINED_NAME, find_checkpoint
from actors.rules.names import DEFAULT_TRIAL, is_rule, parse_rule
from actors.slots.objective import Prices
from deploy.commands.evaluation_flags import EvaluateOptions
from deploy.evaluation.cells import finished
from deploy.evaluation.players import prices_seen
from deploy.evaluation.practical import runs
from deploy.evaluation.practical.page import write_results
from deploy.evaluation.practical.results import BUILT, NEVER, PracticalResults, Training
from deploy.evaluation.practical.runs import SIZES, PracticalCell, PracticalModel, PracticalRun
from deploy.evaluation.suite import COMPUTE_SHARES, NOMINAL

PLAYERS = (DEFAULT_TRIAL, TRAINED_NAME)
"""Who plays if nobody is named."""
SEEDS, QUICK_EPOCHS = 3, 2


def evaluate_practical(options: EvaluateOptions, console: Console | None = None) -> int:
    """Play all missing cells; write the tables and figures. Raises `UserError` for impossible options."""
    console = console or Console(highlight=False)
    plan = _Plan(options)
    played = _play(plan, plan.cells(), options, console)
    results = {name: plan.results(prices, played) for name, prices in plan.prices.items()}
    tables = write_results(results, options.folder, options.page)
    console.width = max(console.width, 70 + 16 * len(plan.players))
    for table in tables:
        console.print(table.title, table.rich(), "")
    console.print(str(options.folder / "practical.md"))
    return 0


class _Plan:
    """Who plays what."""

    def __init__(self, options: EvaluateOptions) -> None:
        self.options = options
        self.scripts = options.scripts or runs.FOLDER
        self.models = runs.practical_models(options.models, self.scripts)
        chosen = options.widths[:1] if options.quick else options.widths
        self.widths = {m.name: tuple(m.widths[SIZES.index(size)] for size in chosen) for m in self.models}
        self.seeds = range(1 if options.quick else options.seeds or SEEDS)
        self.policies = _policies(options)
        self.players = [NEVER, *BUILT, *(name for name in self.policies if name != NEVER)]
        self.prices = {name: Prices(options.price, options.price * share) for name, share in COMPUTE_SHARES.items()}

    def _keys(self, prices: Prices) -> Iterator[tuple[Training, str, PracticalCell]]:
        for seed in self.seeds:
            for player in self.players:
                for model in self.models:
                    for width in self.widths[model.name]:
                        yield Training(model.name, width, seed), player, self._cell(model, width, player, seed, prices)

    def _cell(self, model: PracticalModel, width: int, player: str, seed: int, prices: Prices) -> PracticalCell:
        epochs = QUICK_EPOCHS if self.options.quick else model.epochs
        wider, policy = BUILT.get(player, 1) * width, self.policies.get(player, NEVER)
        seen = prices_seen(policy if is_rule(policy) else "")
        seen_prices, script = Prices(*prices[:seen], *NOMINAL[seen:]), model.path(self.scripts)
        return PracticalCell(model.name, script, model.flags, wider, seed, epochs, policy, seen_prices)

    def cells(self) -> list[PracticalCell]:
        """Return all cells, one seed after the other, and of each those without growth first."""
        return list(dict.fromkeys(cell for prices in self.prices.values() for _, _, cell in self._keys(prices)))

    def results(self, prices: Prices, played: dict[PracticalCell, PracticalRun]) -> PracticalResults:
        known = {(training, player): played[cell] for training, player, cell in self._keys(prices) if cell in played}
        return PracticalResults(self.models, self.widths, self.seeds, self.players, prices, known)

    def effort(self, cell: PracticalCell) -> float:
        """Return about how long a cell takes, in those of the narrowest model, to tell how much time is left."""
        narrowest = next(model.widths[0] for model in self.models if model.name == cell.model)
        return 2.0 + (1.0 if cell.policy == NEVER else 15.0) * (cell.width / narrowest) ** 2


def _policies(options: EvaluateOptions) -> dict[str, str]:
    """Return what `GrowthController` takes as a policy, by the players' names. Raises `UserError`."""
    found = {}
    for name in options.player or (() if options.checkpoint else PLAYERS):
        if is_rule(name):
            parse_rule(name)
        server = ":" in name and not Path(name).exists()
        found[name] = name if is_rule(name) or server else str(find_checkpoint(Path(name)).resolve())
    return found | {str(path): str(find_checkpoint(path).resolve()) for path in options.checkpoint}


def _play(
    plan: _Plan, cells: Sequence[PracticalCell], options: EvaluateOptions, console: Console
) -> dict[PracticalCell, PracticalRun]:
    """Return the runs of all cells; those that were kept are not played again, unless a server decided in them, which
    may have changed. With `kept`, nothing is played."""
    folder = options.cells_folder
    for needed in (options.folder, folder):
        needed.mkdir(parents=True, exist_ok=True)
    lasting = [cell for cell in cells if is_rule(cell.policy) or Path(cell.policy).is_file()]
    found = {cell: run for cell in lasting if (run := runs.read_run(cell, folder)) is not None}
    missing = [cell for cell in cells if cell not in found]
    if options.kept:
        console.print(f"{len(found)} of {len(cells)} cells were played", style="dim")
        return found
    for cell, run, progress in finished(partial(runs.play_cell, folder=folder), missing, options.jobs, plan.effort):
        what = f"{cell.model} {cell.width} wide, {Path(cell.policy).name}, seed {cell.seed}"
        console.print(f"{progress}  {what}: {run.test:.1f} in {run.seconds:.0f} s", style="dim", soft_wrap=True)
        found[cell] = run
    return found
