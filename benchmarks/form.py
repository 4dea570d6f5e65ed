"""The one form of all benchmarks: a table for people, and targets, machine and rows as JSON."""

from __future__ import annotations

import argparse
import json
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
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


def arguments(
    name: str,
    description: str,
    devices: bool = False,
    more: Callable[[argparse.ArgumentParser], object] | None = None,
) -> argparse.Namespace:
    """`--quick` (within 20 seconds on two cores), `--json FILE`, with `devices` `--device`, and what `more` adds; one
    torch thread."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}", description=description)
    parser.add_argument("--quick", action="store_true", help="a smoke test of a few seconds")
    parser.add_argument("--json", type=Path, help="also write the result here")
    if devices:
        parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="where networks run")
    if more is not None:
        more(parser)
    torch.set_num_threads(1)
    return parser.parse_args()


def machine() -> dict[str, Any]:
    return {
        "platform": platform.platform(),
        "processor": platform.machine(),
        "cores": os.cpu_count(),
        "torch": torch.__version__,
        "cuda": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }


def publish(rows: Sequence[Mapping[str, Any]], targets: Sequence[Target], json_path: Path | None) -> None:
    """Print the table and the targets; write both where a path is given."""
    console = Console(width=120, highlight=False)
    table = Table(*rows[0], box=None, header_style="bold")
    for row in rows:
        table.add_row(*(f"{v:,.2f}" if isinstance(v, float) else str(v) for v in row.values()))
    console.print(table)
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
