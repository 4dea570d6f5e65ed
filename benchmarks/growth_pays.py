"""What growing gains on every task family: a seed in the stream and a column, in small, medium and large hosts.

    python -m benchmarks.growth_pays [--quick] [--tasks NAME ...] [--json FILE]

Writes `actors/env/tasks/measured.json`, which `tamiyo tasks` shows, unless the run is a quick one; the measurements of
other families stay. Families that are read from files (CIFAR-10) are left out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from actors.config import EnvConfig
from actors.env.seed_fleet import SeedTrainingFleet
from actors.env.tasks import families, find_family
from actors.env.tasks.measured import MEASURED, PRICE, WIDTHS, Gain, Grown, Measurement
from actors.rollout.wave import Provenance, run_wave
from actors.rules.names import parse_rule
from actors.rules.schedule import Schedule, Scheduled
from benchmarks.form import Target, parser, publish
from deploy.evaluation.play import episode_result
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
    config = EnvConfig(
        tasks=(name,), horizon_epochs=settings.horizon_epochs, points_per_doubling=PRICE, host_width=width
    )
    plans: list[Schedule] = []
    for rule in RULES.values():
        plan = parse_rule(rule)
        assert isinstance(plan, Schedule)
        plans += [plan] * settings.seeds
    fleet = SeedTrainingFleet(config, len(plans), RUN_SEED)
    source = Provenance(version=0, generation=0, state_stride=1, run_seed=RUN_SEED)
    seeds = [*range(settings.seeds)] * len(RULES)
    episodes = run_wave(fleet, Scheduled(fleet.spaces, plans), seeds, source, True)
    played = [episode_result(host, episode) for host, episode in zip(fleet.episodes, episodes, strict=True)]
    gain, doublings = (
        np.array([getattr(r, part) for r in played]).reshape(len(RULES), -1) for part in ("gain", "doublings")
    )
    accuracy = np.array([t.accuracy[-1] for t in fleet.timelines()]).reshape(len(RULES), -1)
    grown = {
        rule: Grown(
            round(float(doublings[i].mean()), 3),
            _gain(gain[i], gain[0]),
            _gain(gain[i] - PRICE * doublings[i], gain[0]),
        )
        for i, rule in enumerate(RULES)
        if i
    }
    return Measurement(width, round(float(accuracy[0].mean()), 2), **grown)


def _gain(grown: NDArray[np.float64], never: NDArray[np.float64]) -> Gain:
    found = paired_interval(grown.tolist(), never.tolist())
    return Gain(round(found.mean, 2), round(found.low, 2), round(found.high, 2))


def main() -> None:
    known = parser("growth_pays", __doc__.splitlines()[0])
    known.add_argument("--tasks", nargs="+", help="only these families")
    known.add_argument("--seeds", type=int, default=6, help="episodes per family, width and rule")
    args = known.parse_args()
    settings = Settings(2, 6) if args.quick else Settings(args.seeds)
    every = [family.name for family in families() if family.factory is not None]
    found = {}
    for name in args.tasks or (["spirals", "digits", "xor"] if args.quick else every):
        found[name] = [measure(name, width, settings) for width in WIDTHS[find_family(name).kind]]
        if not args.quick:
            _store({name: found[name]}, settings)
    rows = [{"task": name, "width": m.width, "never": m.never} | _flat(m) for name, own in found.items() for m in own]
    pays = sum(own[0].column.priced.verdict == "pays" for own in found.values())
    spared = sum(own[-1].column.priced.verdict != "pays" for own in found.values())
    targets = [
        Target(f"families where a column pays in a small host at price {PRICE:g}", pays, 10),
        Target(f"families where it does not pay in a large host at price {PRICE:g}", spared, 10),
    ]
    publish(rows, targets, args.json)


def _flat(m: Measurement) -> dict[str, object]:
    """Return the gains of accuracy and of J, and the doublings, of each way of growing."""
    ways = {"seed": m.seed, "column": m.column}
    return {
        f"{way} {what}": value
        for way, grown in ways.items()
        for what, value in (("gain", grown.free.mean), ("J", grown.priced.text()), ("doublings", grown.doublings))
    }


def _store(rows: Mapping[str, list[Measurement]], settings: Settings) -> None:
    """Add the measurements of a family; those of other families stay if they were measured with the same settings."""
    content = {"settings": settings.described(), "families": {n: [asdict(m) for m in own] for n, own in rows.items()}}
    old = json.loads(MEASURED.read_text())
    if old["settings"] == content["settings"]:
        content["families"] = old["families"] | content["families"]
    MEASURED.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
