"""`tamiyo evaluate --suite practical`: play rules and policies in the training scripts of `examples/practical`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import product
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
from deploy.evaluation.practical.runs import SIZES, PracticalCell, PracticalRun
from deploy.evaluation.suite import COMPUTE_SHARES, NOMINAL

PLAYERS = (DEFAULT_TRIAL, TRAINED_NAME)
"""Who plays if nobody is named."""
SEEDS, QUICK_EPOCHS = 3, 2


def evaluate_practical(options: EvaluateOptions) -> int:
    """Play all missing cells; write the tables and figures. Raises `UserError` for impossible options."""
    console, scripts = Console(highlight=False), options.scripts or runs.FOLDER
    models, policies = runs.practical_models(options.models, scripts), _policies(options)
    sizes = [SIZES.index(size) for size in (options.widths[:1] if options.quick else options.widths)]
    widths = {model.name: tuple(model.widths[size] for size in sizes) for model in models}
    seeds = range(1 if options.quick else options.seeds or SEEDS)
    players = [NEVER, *BUILT, *(name for name in policies if name != NEVER)]

    def cells(prices: Prices) -> Iterator[tuple[tuple[Training, str], PracticalCell]]:
        """Yield the cell of each training and player, one seed after the other, those without growth first."""
        for seed, player, model in product(seeds, players, models):
            policy, epochs = policies.get(player, NEVER), QUICK_EPOCHS if options.quick else model.epochs
            seen, script = prices_seen(policy if is_rule(policy) else ""), model.path(scripts)
            given = Prices(*prices[:seen], *NOMINAL[seen:])
            for width in widths[model.name]:
                wide = BUILT.get(player, 1) * width
                cell = PracticalCell(model.name, script, model.flags, wide, seed, epochs, policy, given)
                yield (Training(model.name, width, seed), player), cell

    prices = {name: Prices(options.price, options.price * share) for name, share in COMPUTE_SHARES.items()}
    wanted = {name: dict(cells(by_cell)) for name, by_cell in prices.items()}
    played = _play(
        list(dict.fromkeys(cell for by_cell in wanted.values() for cell in by_cell.values())), options, console
    )
    results = {}
    for name, by_cell in wanted.items():
        known = {key: played[cell] for key, cell in by_cell.items() if cell in played}
        results[name] = PracticalResults(models, widths, seeds, players, prices[name], known)
    tables = write_results(results, options.folder, options.page)
    console.width = max(console.width, 70 + 16 * len(players))
    for table in tables:
        console.print(table.title, table.rich(), "")
    console.print(str(options.folder / "practical.md"))
    return 0


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
    cells: Sequence[PracticalCell], options: EvaluateOptions, console: Console
) -> dict[PracticalCell, PracticalRun]:
    """Return the runs of all cells; those that are kept are not played again, unless a server decided in them."""
    folder = options.cells_folder
    for needed in (options.folder, folder):
        needed.mkdir(parents=True, exist_ok=True)
    lasting = [cell for cell in cells if is_rule(cell.policy) or Path(cell.policy).is_file()]
    found = {cell: run for cell in lasting if (run := runs.read_run(cell, folder)) is not None}
    missing = [cell for cell in cells if cell not in found]
    if options.kept:
        console.print(f"{len(found)} of {len(cells)} cells were played", style="dim")
        return found
    for cell, run, progress in finished(partial(runs.play_cell, folder=folder), missing, options.jobs, _effort):
        what = f"{cell.model} {cell.width} wide, {Path(cell.policy).name}, seed {cell.seed}"
        console.print(f"{progress}  {what}: {run.test:.1f} in {run.seconds:.0f} s", style="dim", soft_wrap=True)
        found[cell] = run
    return found


def _effort(cell: PracticalCell) -> float:
    """Return about how long a cell takes, in those of the narrowest model, to tell how much time is left."""
    narrowest = next(model.widths[0] for model in runs.MODELS if model.name == cell.model)
    return 2.0 + (1.0 if cell.policy == NEVER else 15.0) * (cell.width / narrowest) ** 2
