"""`tamiyo evaluate --suite models`: play rules and policies in the training scripts of `examples/models`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rich.console import Console

from actors.errors import UserError
from actors.policy.saved import TRAINED_NAME, find_checkpoint
from actors.rules.names import DEFAULT_TRIAL, is_rule, parse_rule
from actors.slots.objective import Prices
from deploy.evaluation.cells import CELLS, finished
from deploy.evaluation.model_results import BUILT, NEVER, ModelResults, write_front
from deploy.evaluation.model_runs import FOLDER, ModelCell, ModelRun, ModelScript, model_scripts, play_cell, read_run
from deploy.evaluation.players import prices_seen
from deploy.evaluation.suite import COMPUTE_SHARES, FREE, NOMINAL

PLAYERS = (DEFAULT_TRIAL, TRAINED_NAME)
"""Who plays if nobody is named."""
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

    def __post_init__(self) -> None:
        if self.price < 0:
            raise UserError(f"--price is {self.price:g}: it cannot be negative")
        for name in ("seeds", "jobs"):
            if getattr(self, name) < 1:
                raise UserError(f"--{name} is {getattr(self, name)}: it must be at least 1")


def evaluate_models(options: ModelsOptions, console: Console | None = None) -> int:
    """Play all missing cells; write models.json, .md and .png. Raises `UserError` for impossible options."""
    console = console or Console(highlight=False)
    scripts, policies = model_scripts(options.families, options.scripts), _policies(options)
    seeds = range(1 if options.quick else options.seeds)
    widths = {script.name: script.widths[: 1 if options.quick else None] for script in scripts}
    names = [NEVER, *(name for name in policies if name != NEVER), *BUILT]

    def cell(script: ModelScript, width: int, player: str, seed: int, prices: Prices) -> ModelCell:
        epochs = QUICK_EPOCHS if options.quick else script.epochs
        wider, policy = BUILT.get(player, 1) * width, policies.get(player, NEVER)
        seen = prices_seen(policy if is_rule(policy) else "")
        shared = Prices(*prices[:seen], *NOMINAL[seen:])
        return ModelCell(script.path(options.scripts), wider, seed, epochs, policy, shared)

    at = {name: Prices(options.price, options.price * share) for name, share in COMPUTE_SHARES.items()}
    cells = {
        name: {
            (script.name, width, player, seed): cell(script, width, player, seed, prices)
            for seed in seeds
            for script in scripts
            for width in widths[script.name]
            for player in names
        }
        for name, prices in at.items()
    }
    runs = _play(list(dict.fromkeys(c for own in cells.values() for c in own.values())), options, console)
    results = {
        name: ModelResults(scripts, widths, seeds, names, prices, {key: runs[c] for key, c in cells[name].items()})
        for name, prices in at.items()
    }
    content = {name: own.as_dict() for name, own in results.items()}
    (options.out / "models.json").write_text(json.dumps(content, indent=1))
    tables = [table for own in results.values() for table in own.tables()]
    (options.out / "models.md").write_text("\n".join(table.markdown() for table in tables), encoding="utf-8")
    write_front(results[FREE], options.out / "models.png")
    console.width = max(console.width, 60 + 14 * len(names))
    for table in tables:
        console.print(table.title, table.rich(), "")
    console.print(str(options.out / "models.json"))
    return 0


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


def _play(cells: Sequence[ModelCell], options: ModelsOptions, console: Console) -> dict[ModelCell, ModelRun]:
    """Return the runs of all cells; those that were kept are not played again, unless a server decided in them, which
    may have changed."""
    kept = options.out / CELLS
    kept.mkdir(parents=True, exist_ok=True)
    lasting = [cell for cell in cells if is_rule(cell.policy) or Path(cell.policy).is_file()]
    found = {cell: run for cell in lasting if (run := read_run(cell, kept)) is not None}
    missing = [cell for cell in cells if cell not in found]
    for cell, run, progress in finished(partial(play_cell, folder=kept), missing, options.jobs):
        what = f"{cell.script.stem} {cell.width} wide, {Path(cell.policy).name}, seed {cell.seed}"
        console.print(f"{progress}  {what}: {run.test_accuracy:.1f}%", style="dim", soft_wrap=True)
        found[cell] = run
    return found
