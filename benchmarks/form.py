"""The one form of all benchmarks: sides that take turns, a table for people, and targets, machine and rows as JSON."""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby
from math import inf
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

Side = Callable[[], float]
"""Runs once, and returns the seconds that count."""


@dataclass(frozen=True)
class Target:
    """A figure that was promised; `value` is a ratio measured in the same run wherever that is possible."""

    name: str
    value: float
    goal: float

    @property
    def met(self) -> bool:
        return self.value >= self.goal


def parser(name: str, description: str) -> argparse.ArgumentParser:
    """`--quick` (within 20 seconds on two cores) and `--json FILE`; one torch thread."""
    known = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}", description=description)
    known.add_argument("--quick", action="store_true", help="a smoke test of a few seconds")
    known.add_argument("--json", type=Path, help="also write the result here")
    torch.set_num_threads(1)
    return known


def add_device(known: argparse.ArgumentParser) -> None:
    """Add `--device cpu|cuda`."""
    known.add_argument("--device", type=_device, default="cpu", metavar="cpu|cuda", help="where it runs")


def _device(name: str) -> str:
    if name not in ("cpu", "cuda"):
        raise argparse.ArgumentTypeError(f"{name}: choose cpu or cuda")
    if name == "cuda" and not torch.cuda.is_available():
        raise argparse.ArgumentTypeError("PyTorch finds no CUDA device on this machine")
    return name


def seconds(work: Callable[[], object], device: str = "cpu") -> float:
    """Return the CPU time of a call on a CPU, where others may be working, else wall time on a synchronized device."""
    clock = time.process_time if device == "cpu" else time.perf_counter
    began = clock()
    work()
    if device != "cpu":
        torch.cuda.synchronize()
    return clock() - began


def in_turns(sides: Mapping[str, Side], rounds: int, budget_s: float = inf) -> dict[str, float]:
    """Return the least seconds of each side, which take turns, so that other load slows all of them: once to warm up,
    then at most `rounds` times, of which those after the second must begin within `budget_s`."""
    best, began = dict.fromkeys(sides, inf), time.perf_counter()
    for turn in range(rounds + 1):
        if turn > 2 and time.perf_counter() - began > budget_s:
            break
        for name, side in sides.items():
            taken = side()
            best[name] = min(best[name], taken) if turn else inf
    return best


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
