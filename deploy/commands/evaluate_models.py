"""`tamiyo evaluate --suite models`: play rules and policies in the training scripts of `examples/models`."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from actors.errors import UserError
from actors.policy.saved import find_checkpoint
from actors.rules.names import is_rule, parse_rule
from deploy.evaluation.cells import CELLS, workers
from deploy.evaluation.models.pictures import write_front
from deploy.evaluation.models.play import ModelCell, ModelRun, play_cell, read_run
from deploy.evaluation.models.results import BUILT, NEVER, ModelResults
from deploy.evaluation.models.scripts import FOLDER, ModelScript, model_scripts
from deploy.evaluation.models.table import tables, write_markdown
from deploy.report.progress import clock

PLAYERS = ("fixed-column:double@3", "fixed-column:quad@3", "gap")
"""Rules that are played if none is named."""
QUICK_EPOCHS = 4


@dataclass(frozen=True)
class ModelsOptions:
    """The options of `tamiyo evaluate --suite models`."""

    suite: str = "models"
    players: tuple[str, ...] = ()
    checkpoints: tuple[Path, ...] = ()
    families: tuple[str, ...] = ()  # scripts, by name
    price: float = 1.0
    seeds: int = 3
    jobs: int = 1
    out: Path = Path("runs/models")
    quick: bool = False
    scripts: Path = FOLDER


def evaluate_models(options: ModelsOptions, console: Console | None = None) -> int:
    """Play all missing cells; write models.json, .md and .png. Raises `UserError` for impossible options."""
    console = console or Console(highlight=False)
    _check(options)
    scripts, policies = model_scripts(options.families, options.scripts), _policies(options)
    seeds = range(1 if options.quick else options.seeds)
    widths = {script.name: script.widths[: 1 if options.quick else None] for script in scripts}
    names = [NEVER, *(name for name in policies if name != NEVER), *BUILT]
    cells = {
        (script.name, width, name, seed): _cell(script, width, name, seed, policies, options)
        for seed in seeds
        for script in scripts
        for width in widths[script.name]
        for name in names
    }
    runs = _play(list(dict.fromkeys(cells.values())), options, console)
    found = {key: runs[cell] for key, cell in cells.items()}
    results = ModelResults(scripts, widths, seeds, names, options.price, found)
    (options.out / "models.json").write_text(json.dumps(results.as_dict(), indent=1))
    write_markdown(results, options.out / "models.md")
    write_front(results, options.out / "models.png")
    console.width = max(console.width, 60 + 14 * len(names))
    for table in tables(results):
        console.print(table)
    console.print(
        f"test accuracy in percent, and in brackets J over never growing at {options.price:g} points per doubling"
    )
    console.print(str(options.out / "models.json"))
    return 0


def _check(options: ModelsOptions) -> None:
    if options.price < 0:
        raise UserError(f"--price is {options.price:g}: it cannot be negative")
    for name in ("seeds", "jobs"):
        if getattr(options, name) < 1:
            raise UserError(f"--{name} is {getattr(options, name)}: it must be at least 1")


def _policies(options: ModelsOptions) -> dict[str, str]:
    """Return what `GrowthController` takes as a policy, by the players' names. Raises `UserError`."""
    found = {}
    for name in options.players or (() if options.checkpoints else PLAYERS):
        if is_rule(name):
            parse_rule(name)
            found[name] = name
        elif ":" in name and not Path(name).exists():
            found[name] = name  # a server
        else:
            found[name] = str(find_checkpoint(Path(name)).resolve())
    return found | {str(path): str(find_checkpoint(path).resolve()) for path in options.checkpoints}


def _cell(
    script: ModelScript,
    width: int,
    player: str,
    seed: int,
    policies: dict[str, str],
    options: ModelsOptions,
) -> ModelCell:
    epochs = QUICK_EPOCHS if options.quick else script.epochs
    wider, policy = BUILT.get(player, 1) * width, policies.get(player, NEVER)
    return ModelCell(script.path(options.scripts), wider, seed, epochs, policy, options.price)


def _play(cells: Sequence[ModelCell], options: ModelsOptions, console: Console) -> dict[ModelCell, ModelRun]:
    """Return the runs of all cells; those that were kept are not played again."""
    kept = options.out / CELLS
    kept.mkdir(parents=True, exist_ok=True)
    served = {
        cell for cell in cells if not is_rule(cell.policy) and not Path(cell.policy).is_file()
    }  # may have changed
    found = {cell: run for cell in cells if cell not in served and (run := read_run(cell, kept)) is not None}
    missing = [cell for cell in cells if cell not in found]
    if missing:
        with workers(min(options.jobs, len(missing))) as pool:
            found |= _played(pool, missing, kept, len(found), console)
    return found


def _played(
    pool: ProcessPoolExecutor, missing: Sequence[ModelCell], kept: Path, known: int, console: Console
) -> Iterator[tuple[ModelCell, ModelRun]]:
    """Play cells, with a line for each: the time, the progress, an estimate of the time left, and what it came to."""
    started = time.perf_counter()
    under_way = {pool.submit(play_cell, cell, kept): cell for cell in missing}
    for done, future in enumerate(as_completed(under_way), 1):
        cell, run = under_way[future], future.result()
        passed = time.perf_counter() - started
        progress = f"{known + done}/{known + len(missing)}, {clock(passed / done * (len(missing) - done))} left"
        what = f"{cell.script.stem} {cell.width} wide, {Path(cell.policy).name}, seed {cell.seed}"
        console.print(f"{clock(passed)}  {progress}  {what}: {run.test_accuracy:.1f}%", style="dim", soft_wrap=True)
        yield cell, run
