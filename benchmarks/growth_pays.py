"""What growing gains on every task family: a seed in the stream and a column, in small, medium and large hosts.

    python -m benchmarks.growth_pays [--quick] [--kind KIND] [--missing] [--tasks NAME ...] [--json FILE]

A run over all families, over those of one `--kind` of host or over those that are `--missing` writes
`actors/env/tasks/measured.json`, which `tamiyo tasks` shows. A quick run or a run of named tasks does not. Families
that are read from files (CIFAR-10) are left out.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from actors.config import EnvConfig
from actors.env.seed_fleet import SeedTrainingFleet
from actors.env.tasks import families, find_family
from actors.env.tasks.measured import MEASURED, PRICE, WIDTHS, Gain, Grown, Measurement, measurements
from actors.rollout.wave import Provenance, run_wave
from actors.rules.names import parse_rule
from actors.rules.schedule import Schedule, Scheduled
from benchmarks.form import machine
from deploy.evaluation.play import gain_and_rent
from deploy.report.statistics import paired_interval

RULES = {
    "never": "never",
    "seed": "periodic:blueprint=mlp_wide,start=0,every=99,seeds=1,training=2,ramp=3,blend=add,alpha=1,keep=all",
    "column": "fixed-column:double@3",
}
RUN_SEED = 20241107  # not used to choose the difficulty of tasks


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
            "column_slots": config.column_slots,
            "price": PRICE,
            "widths": {kind: list(widths) for kind, widths in WIDTHS.items()},
            "rules": RULES,
            "accuracy": "validation, points; intervals 95%, paired by seed",
        }


def measure(name: str, width: int, settings: Settings) -> Measurement:
    """Play each seed by every rule, in one fleet."""
    config = EnvConfig(tasks=(name,), horizon_epochs=settings.horizon_epochs, rent_weight=PRICE, host_width=width)
    plans: list[Schedule] = []
    for rule in RULES.values():
        plan = parse_rule(rule)
        assert isinstance(plan, Schedule)
        plans += [plan] * settings.seeds
    fleet = SeedTrainingFleet(config, len(plans), RUN_SEED)
    source = Provenance(version=0, generation=0, state_stride=1, run_seed=RUN_SEED)
    seeds = [*range(settings.seeds)] * len(RULES)
    episodes = run_wave(fleet, Scheduled(fleet.spaces, plans), seeds, source, True)
    played = [gain_and_rent(host, episode) for host, episode in zip(fleet.episodes, episodes, strict=True)]
    gain, rent = np.array(played).T.reshape(2, len(RULES), settings.seeds)
    accuracy = np.array([t.accuracy[-1] for t in fleet.timelines()]).reshape(len(RULES), -1)
    grown = {
        rule: Grown(
            round(float(rent[i].mean()), 3),
            _gain(gain[i], gain[0]),
            _gain(gain[i] - PRICE * rent[i], gain[0]),
        )
        for i, rule in enumerate(RULES)
        if i
    }
    return Measurement(width, round(float(accuracy[0].mean()), 2), **grown)


def _gain(grown: NDArray[np.float64], never: NDArray[np.float64]) -> Gain:
    found = paired_interval(grown.tolist(), never.tolist())
    return Gain(round(found.mean, 2), round(found.low, 2), round(found.high, 2))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.growth_pays", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="three families and two seeds: a few seconds")
    parser.add_argument("--kind", choices=tuple(WIDTHS), help="only families of this kind of host")
    parser.add_argument("--missing", action="store_true", help="only families without a measurement")
    parser.add_argument("--tasks", nargs="+", help="only these families")
    parser.add_argument("--seeds", type=int, default=6, help="episodes per family, width and rule")
    parser.add_argument("--json", type=Path, help="also write the result to this file")
    args = parser.parse_args()
    settings = Settings(2, 6) if args.quick else Settings(args.seeds)
    known = {family.name: family for family in families(kind=args.kind) if family.factory is not None}
    if args.missing:
        known = {name: family for name, family in known.items() if name not in measurements()}
    names = args.tasks or (["spirals", "digits", "xor"] if args.quick else list(known))
    rows = {}
    started = time.perf_counter()
    for name in names:
        rows[name] = [measure(name, width, settings) for width in WIDTHS[find_family(name).kind]]
        if not args.quick and not args.tasks:
            _store({name: rows[name]}, settings)
    table = Table("task", "split", "width", "never", "seed", "its J", "column", "its J", "x doublings")
    for name, found in rows.items():
        for m in found:
            gains = (gain.text() for grown in (m.seed, m.column) for gain in (grown.free, grown.priced))
            doublings = f"{m.seed.rent:.1f}, {m.column.rent:.1f}"
            table.add_row(name, find_family(name).split, str(m.width), f"{m.never:.1f}", *gains, doublings)
    Console(width=150).print(table)
    print(f"{len(rows)} tasks, {settings.seeds} seeds, {time.perf_counter() - started:.0f} s")
    if args.json is not None:
        args.json.write_text(json.dumps(_report(rows, settings), indent=1) + "\n")


def _store(rows: Mapping[str, list[Measurement]], settings: Settings) -> None:
    """Add the measurements of a family; those of other families stay if they were measured with the same settings."""
    content = {"settings": settings.described(), "families": {n: [asdict(m) for m in own] for n, own in rows.items()}}
    old = json.loads(MEASURED.read_text())
    if old["settings"] == content["settings"]:
        content["families"] = old["families"] | content["families"]
    MEASURED.write_text(json.dumps(content, indent=1) + "\n")


def _report(rows: Mapping[str, list[Measurement]], settings: Settings) -> dict[str, object]:
    pays = sum(found[0].column.priced.verdict == "pays" for found in rows.values())
    spared = sum(found[-1].column.priced.verdict != "pays" for found in rows.values())
    targets = [
        {"name": name, "value": value, "goal": goal, "met": value >= goal}
        for name, value, goal in (
            (f"families where a column pays in a small host at price {PRICE:g}", pays, 10),
            (f"families where it does not pay in a large host at price {PRICE:g}", spared, 10),
        )
    ]
    table = [{"task": name} | asdict(m) for name, found in rows.items() for m in found]
    return {"targets": targets, "machine": machine(), "settings": settings.described(), "rows": table}


if __name__ == "__main__":
    main()
