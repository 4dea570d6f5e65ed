"""`tamiyo tasks`: list the task families, their sizes and hosts, and whether growing pays on them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from actors.config import EnvConfig
from actors.env.hosts.make import make_host
from actors.env.tasks import DataFiles, TaskFamily, families, find_family
from actors.env.tasks.measured import PRICE, measurements

STYLES = {"pays": "green", "hurts": "red", "even": "dim"}
WIDTH = 160  # characters of the table
FOOTNOTE = (
    "small, medium, large: in hosts of 3, 8 and 24 units (CNNs: 3, 6 and 12 channels), the accuracy without growing, "
    "and the points that one wide seed in the stream and one column of twice the width add to it; green if that pays "
    f"at {PRICE:g} point per doubling of the parameters, red if it loses. Measured once."
)
SIZES = ("small", "medium", "large")


def show_tasks(names: list[str], data_dir: str | None, console: Console | None = None) -> int:
    """Print the named families, or all of them, as a table."""
    chosen = [find_family(name) for name in names] or list(families())
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold", row_styles=["", "on grey7"])
    for name in ("task", "split", "kind"):
        table.add_column(name, no_wrap=True)
    for name in ("rows", "features", "classes", "host", "params", "chance", *SIZES):
        table.add_column(name, justify="right", no_wrap=True)
    for family in chosen:
        table.add_row(*_row(family, DataFiles(data_dir)))
    console = console or Console(highlight=False)
    # Wrapped lines in a narrow terminal are more useful than truncated columns.
    console.width = max(console.width, WIDTH)
    console.print(table)
    console.print(Text(FOOTNOTE, style="dim"))
    return 0


def _row(family: TaskFamily, files: DataFiles) -> list[str | Text]:
    """Describe a family. Values that require data files are dashes without the files."""
    shape = classes = params = chance = "-"
    if family.from_files is None or files.data_dir is not None:
        task = family.make(np.random.default_rng(0), files)
        shape, classes, chance = "x".join(map(str, task.shape)), str(task.num_classes), f"{task.chance_accuracy:.0f}"
        params = _range([make_host(task, width, EnvConfig().slots).num_params() for width in family.host_widths])
    rows = "/".join(map(str, family.sizes))
    host = _range(family.host_widths)
    gains = [_gains(family.name, size) for size in range(len(SIZES))]
    return [family.name, family.split, family.kind, rows, shape, classes, host, params, chance, *gains]


def _range(bounds: Sequence[int]) -> str:
    return "-".join(str(n) for n in dict.fromkeys(bounds))


def _gains(family: str, size: int) -> Text:
    measured = measurements().get(family)
    if measured is None:
        return Text("-", style="dim")
    host = measured[size]
    parts = [(f" {way.free.mean:+5.1f}", STYLES[way.priced.verdict]) for way in (host.seed, host.column)]
    return Text.assemble(f"{host.never:.0f}", *parts)
