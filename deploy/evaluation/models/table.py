"""The results of the suite `models` as tables: for the terminal, and in Markdown."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

from rich.box import MARKDOWN, SIMPLE_HEAD, Box
from rich.console import Console
from rich.table import Table

from deploy.evaluation.models.results import NEVER, WON, ModelResults


def tables(results: ModelResults, box: Box = SIMPLE_HEAD) -> list[Table]:
    """Return the table of all models, and that of the players over all of them."""
    return [_models(results, box), _shares(results, box)]


def write_markdown(results: ModelResults, path: Path) -> None:
    texts = []
    for table in tables(results, MARKDOWN):
        console = Console(file=StringIO(), width=400)
        with console.capture() as captured:
            console.print(table)
        texts.append(captured.get().strip() + "\n")
    path.write_text("\n".join(texts), encoding="utf-8")


def _models(results: ModelResults, box: Box) -> Table:
    table = Table(box=box, pad_edge=False)
    table.add_column("model", no_wrap=True)
    table.add_column("width", justify="right")
    for name in results.names:
        table.add_column(name, justify="right")
    by_key = {(line.model, line.width, line.player): line for line in results.lines}
    for script in results.scripts:
        for width in results.widths[script.name]:
            cells = []
            for name in results.names:
                line = by_key[script.name, width, name]
                over = "" if name == NEVER else f" ({line.over_never:+.1f})"
                cells.append(f"{line.test_accuracy:.1f}{over}")
            table.add_row(script.label, str(width), *cells)
    return table


def _shares(results: ModelResults, box: Box) -> Table:
    table = Table(box=box, pad_edge=False)
    table.add_column("player")
    for name in ("J over never", f"share of the sweep where it wins {WON:g}", "J over never elsewhere", "worst"):
        table.add_column(name, justify="right")
    for share in results.shares:
        of_sweep = "" if share.of_sweep is None else f"{100 * share.of_sweep:.0f}%"
        elsewhere = "" if share.elsewhere is None else f"{share.elsewhere:+.2f}"
        table.add_row(share.player, f"{share.over_never:+.2f}", of_sweep, elsewhere, f"{share.worst:+.2f}")
    return table
