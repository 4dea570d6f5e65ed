"""`tamiyo tasks`: list the task families, their sizes and hosts, and whether growing pays on them."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from actors.config import EnvConfig
from actors.env.hosts.make import make_host
from actors.env.tasks import DataFiles, Task, TaskFamily, families, find_family
from actors.env.tasks.measured import PRICE, Gain, measurements

STYLES = {"pays": "green", "hurts": "red", "even": "dim"}
WIDTH = 160  # characters of the table
FOOTNOTE = (
    "small, medium, large: in hosts of 3, 8 and 24 units (CNNs: 3, 6 and 12 channels), the accuracy without growing, "
    "and the points that one wide seed in the stream and one column of twice the width add to it; green if that pays "
    f"at {PRICE:g} point per doubling of the parameters, red if it loses. Measured by "
    "`python -m benchmarks.growth_pays`."
)
SIZES = ("small", "medium", "large")


def show_tasks(names: list[str], data_dir: str | None, as_json: bool, console: Console | None = None) -> int:
    """Print the named families, or all of them, as a table or as JSON."""
    chosen = [find_family(name) for name in names] or list(families())
    rows = [row(family, DataFiles(data_dir)) for family in chosen]
    if as_json:
        print(json.dumps(rows, indent=1))
        return 0
    console = console or Console(highlight=False)
    # Wrapped lines in a narrow terminal are more useful than truncated columns.
    console.width = max(console.width, WIDTH)
    console.print(table(rows))
    console.print(Text(FOOTNOTE, style="dim"))
    return 0


def row(family: TaskFamily, files: DataFiles) -> dict[str, Any]:
    """Describe a family; ranges are [low, high]. Values that require data files are None without the files."""
    available = family.from_files is None or files.data_dir is not None
    task = family.make(np.random.default_rng(0), files) if available else None
    growth = measurements().get(family.name)
    return {
        "name": family.name,
        "split": family.split,
        "kind": family.kind,
        "description": family.description,
        "rows": family.sizes._asdict(),
        "shape": list(task.shape) if task else None,
        "features": task.num_features if task else None,
        "classes": task.num_classes if task else None,
        "host_widths": list(family.host_widths),
        "host_params": [_params(task, width) for width in family.host_widths] if task else None,
        "chance_accuracy": round(task.chance_accuracy, 2) if task else None,
        "growth": [dataclasses.asdict(m) for m in growth] if growth else None,
    }


def table(rows: list[dict[str, Any]]) -> Table:
    """Format descriptions of families as a table."""
    out = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold", row_styles=["", "on grey7"])
    for name in ("task", "split", "kind"):
        out.add_column(name, no_wrap=True)
    for name in ("rows", "features", "classes", "host", "params", "chance", *SIZES):
        out.add_column(name, justify="right", no_wrap=True)
    for r in rows:
        shape = "x".join(map(str, r["shape"])) if r["shape"] else "-"
        out.add_row(
            r["name"],
            r["split"],
            r["kind"],
            "/".join(str(n) for n in r["rows"].values()),
            shape,
            _number(r["classes"]),
            *(_range(r[name]) for name in ("host_widths", "host_params")),
            _number(r["chance_accuracy"]),
            *(_growth(r["growth"], i) for i in range(len(SIZES))),
        )
    return out


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}"


def _range(bounds: list[int] | None) -> str:
    return "-" if bounds is None else "-".join(str(n) for n in dict.fromkeys(bounds))


def _growth(growth: list[dict[str, Any]] | None, size: int) -> Text:
    if growth is None:
        return Text("-", style="dim")
    found = growth[size]
    parts: list[str | tuple[str, str]] = [f"{found['never']:.0f}"]
    for kind in ("seed", "column"):
        gain, priced = Gain(**found[kind]["free"]), Gain(**found[kind]["priced"])
        parts.append((f" {gain.mean:+5.1f}", STYLES[priced.verdict]))
    return Text.assemble(*parts)


def _params(task: Task, width: int) -> int:
    return make_host(task, width, EnvConfig().slots).num_params()
