"""The one form of all benchmarks: a table for people, and targets, machine and rows as JSON."""

from __future__ import annotations

import argparse
import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table


@dataclass(frozen=True)
class Target:
    """A figure that was promised; `value` is a ratio measured in the same run wherever that is possible."""

    name: str
    value: float
    goal: float

    @property
    def met(self) -> bool:
        return self.value >= self.goal


def arguments(name: str, description: str) -> argparse.Namespace:
    return parser(name, description).parse_args()


def parser(name: str, description: str) -> argparse.ArgumentParser:
    """`--quick` (within 20 seconds on two cores) and `--json FILE`; one torch thread."""
    known = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}", description=description)
    known.add_argument("--quick", action="store_true", help="a smoke test of a few seconds")
    known.add_argument("--json", type=Path, help="also write the result here")
    torch.set_num_threads(1)
    return known


def machine() -> dict[str, Any]:
    return {
        "platform": platform.platform(),
        "processor": platform.machine(),
        "cores": os.cpu_count(),
        "torch": torch.__version__,
        "cuda": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }


def publish(rows: Sequence[Mapping[str, Any]], targets: Sequence[Target], json_path: Path | None) -> None:
    """Print the rows, a table for each run of equal columns, and the targets; write both where a path is given."""
    console = Console(width=140, highlight=False)
    for columns, group in groupby(rows, key=tuple):
        table = Table(*columns, box=None, header_style="bold")
        for row in group:
            table.add_row(*(f"{v:,.2f}" if isinstance(v, float) else str(v) for v in row.values()))
        console.print(table, "")
    for target in targets:
        verdict = "met" if target.met else "not met"
        console.print(f"{target.name}: {target.value:,.2f}, goal {target.goal:,.2f}: {verdict}")
    if json_path is not None:
        content = {
            "targets": [asdict(t) | {"met": t.met} for t in targets],
            "machine": machine(),
            "rows": [dict(row) for row in rows],
        }
        json_path.write_text(json.dumps(content, indent=1) + "\n")
