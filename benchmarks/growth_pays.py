"""Measures on every task family whether growing pays: a fixed schedule against never growing, with the same seeds.

    python -m benchmarks.growth_pays [--quick] [--kind KIND] [--missing] [--tasks NAME ...] [--json FILE]

A run over all families, over those of one `--kind` of host or over those that are `--missing` writes
`actors/env/tasks/measured.json`, which `tamiyo tasks` shows. A quick run or a run of named tasks does not. Families
that are read from files (CIFAR-10) are left out.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from actors.config import EnvConfig
from actors.env.blueprints.family import blueprint_choices
from actors.env.seed_fleet import SeedTrainingFleet
from actors.env.tasks import families
from actors.env.tasks.measured import MEASURED, Gain, Measurement, measurements
from actors.types.actions import Op
from deploy.report.statistics import paired_interval

SEED_BLUEPRINT, SEED_SLOT, ALPHA_TARGET, ALPHA_SPEED = "mlp_wide/conv_heavy", 1, 2, 1  # target 1.0 in 3 epochs
SCHEDULE = {0: Op.GERMINATE, 1: Op.ADVANCE, 3: Op.ADVANCE}  # epoch -> op, else WAIT
RUN_SEED = 20241107  # not used to choose the difficulty of tasks
RENT_WEIGHT = 5.0


@dataclass(frozen=True)
class Settings:
    seeds: int
    horizon_epochs: int = 25

    def described(self) -> dict[str, object]:
        config = EnvConfig()
        return asdict(self) | {
            "run_seed": RUN_SEED,
            "inner_steps": config.inner_steps,
            "batch_size": config.batch_size,
            "host_lr": config.host_lr,
            "slots": config.slots,
            "rent_weights": [0.0, RENT_WEIGHT],
            "schedule": f"one seed ({SEED_BLUEPRINT}) in slot {SEED_SLOT}: germinated in epoch 0, training from epoch "
            "1, blended in over 3 epochs from epoch 3, alpha 1.0",
            "accuracy": "validation, points; intervals 95%, paired by seed",
        }


def measure(name: str, settings: Settings) -> Measurement:
    """Play each seed with and without the schedule, in one fleet."""
    config = EnvConfig(tasks=(name,), horizon_epochs=settings.horizon_epochs, rent_weight=RENT_WEIGHT)
    n = settings.seeds
    fleet = SeedTrainingFleet(config, 2 * n, RUN_SEED)
    fleet.reset([*range(n), *range(n)])
    returns = np.zeros(2 * n)
    for epoch in range(settings.horizon_epochs):
        actions = np.zeros((2 * n, 6), dtype=np.int64)
        actions[n:, 0], actions[n:, 1] = SCHEDULE.get(epoch, Op.WAIT), SEED_SLOT
        actions[n:, 2] = blueprint_choices().index(SEED_BLUEPRINT)
        actions[n:, 4], actions[n:, 5] = ALPHA_TARGET, ALPHA_SPEED
        returns += fleet.step(actions).rewards
    if any(episode.illegal_actions for episode in fleet.episodes):
        raise RuntimeError(f"{name}: an action of the schedule was illegal")
    final = np.array([timeline.accuracy[-1] for timeline in fleet.timelines()])
    ratio = np.array([timeline.growth_ratio[-1] for timeline in fleet.timelines()[n:]])
    gains = [paired_interval(x[n:].tolist(), x[:n].tolist()) for x in (final, returns)]
    free, rented = (Gain(round(g.mean, 2), round(g.low, 2), round(g.high, 2)) for g in gains)
    never, grown = (round(float(arm.mean()), 2) for arm in (final[:n], final[n:]))
    return Measurement(never, grown, round(float(ratio.mean()), 3), free, rented)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.growth_pays", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="three families and two seeds: a few seconds")
    parser.add_argument("--kind", choices=("vector", "sequence", "image"), help="only families of this kind of host")
    parser.add_argument("--missing", action="store_true", help="only families without a measurement")
    parser.add_argument("--tasks", nargs="+", help="only these families")
    parser.add_argument("--seeds", type=int, default=16, help="episodes per family and arm")
    parser.add_argument("--json", type=Path, help="also write the result to this file")
    args = parser.parse_args()
    torch.set_num_threads(1)
    settings = Settings(2, 6) if args.quick else Settings(args.seeds)
    known = {family.name: family for family in families(kind=args.kind) if family.factory is not None}
    if args.missing:
        known = {name: family for name, family in known.items() if name not in measurements()}
    names = args.tasks or (["spirals", "digits", "xor"] if args.quick else list(known))
    rows = {}
    started = time.perf_counter()
    for name in names:
        rows[name] = measure(name, settings)
    table = Table("task", "split", "never", "grown", "x params", "gain, rent 0", f"gain, rent {RENT_WEIGHT:g}")
    for name, row in rows.items():
        split = known[name].split if name in known else "own"
        numbers = (f"{row.never:.1f}", f"{row.grown:.1f}", f"{row.growth_ratio:.2f}")
        table.add_row(name, split, *numbers, row.rent0.text(), row.rent5.text())
    Console(width=110).print(table)
    print(f"{len(rows)} tasks, {settings.seeds} seeds, {time.perf_counter() - started:.0f} s")
    if not args.quick and not args.tasks:
        _store(rows, settings, keep=args.kind is not None or args.missing)
    if args.json is not None:
        args.json.write_text(json.dumps(_report(rows, settings), indent=1) + "\n")


def _store(rows: dict[str, Measurement], settings: Settings, keep: bool) -> None:
    """Write the measurements; with `keep`, keep those of other families, which must have the same settings."""
    content = {"settings": settings.described(), "families": {name: asdict(row) for name, row in rows.items()}}
    if keep:
        old = json.loads(MEASURED.read_text())
        if old["settings"] != content["settings"]:
            raise SystemExit(f"{MEASURED} was measured with other settings: measure all families")
        content["families"] = old["families"] | content["families"]
    MEASURED.write_text(json.dumps(content, indent=1) + "\n")


def _report(rows: dict[str, Measurement], settings: Settings) -> dict[str, object]:
    pays = {rent: sum(getattr(row, rent).verdict == "pays" for row in rows.values()) for rent in ("rent0", "rent5")}
    hurts = sum(row.rent5.verdict == "hurts" for row in rows.values())
    targets = [
        {"name": f"families where growth {what}", "value": value, "goal": goal, "met": value >= goal}
        for what, value, goal in (
            ("pays at rent 0", pays["rent0"], 6),
            ("pays at rent 5", pays["rent5"], 4),
            ("hurts at rent 5", hurts, 4),
        )
    ]
    machine = {"platform": platform.platform(), "processor": platform.machine(), "torch": torch.__version__}
    table = [{"task": name} | asdict(row) for name, row in rows.items()]
    return {"targets": targets, "machine": machine, "settings": settings.described(), "rows": table}


if __name__ == "__main__":
    main()
