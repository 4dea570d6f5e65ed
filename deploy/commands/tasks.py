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
from actors.env.tasks import DataFiles, TaskFamily, families, find_family
from actors.env.tasks.measured import Gain, measurements

STYLES = {"pays": "green", "hurts": "red", "even": "dim"}
WIDTH = 136
FOOTNOTE = (
    "growth: accuracy points that one seed (mlp_wide in an MLP, conv_heavy in a CNN) gains over never growing, with "
    "its 95% interval; green if growing pays, red if it hurts. `rent 5` subtracts the rent of the added parameters. "
    "Measured by `python -m benchmarks.growth_pays`."
)


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
    """Describe a family. Values that require data files are None if the files are not available."""
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
        "host_width": task.host_width if task else None,
        "host_params": make_host(task, EnvConfig().slots).num_params() if task else None,
        "chance_accuracy": round(task.chance_accuracy, 2) if task else None,
        "growth": dataclasses.asdict(growth) if growth else None,
    }


def table(rows: list[dict[str, Any]]) -> Table:
    """Format descriptions of families as a table."""
    out = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold", row_styles=["", "on grey7"])
    for name in ("task", "split", "kind"):
        out.add_column(name, no_wrap=True)
    for name in ("rows", "features", "classes", "host", "params", "chance", "growth, rent 0", "growth, rent 5"):
        out.add_column(name, justify="right", no_wrap=True)
    for r in rows:
        shape = "x".join(map(str, r["shape"])) if r["shape"] else "-"
        out.add_row(
            r["name"],
            r["split"],
            r["kind"],
            "/".join(str(n) for n in r["rows"].values()),
            shape,
            *(_number(r[name]) for name in ("classes", "host_width", "host_params", "chance_accuracy")),
            *(_growth(r["growth"], rent) for rent in ("rent0", "rent5")),
        )
    return out


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}"


def _growth(growth: dict[str, Any] | None, rent: str) -> Text:
    if growth is None:
        return Text("-", style="dim")
    gain = Gain(**growth[rent])
    half = (gain.high - gain.low) / 2
    return Text(f"{gain.mean:+.1f} ±{half:4.1f}", style=STYLES[gain.verdict])
