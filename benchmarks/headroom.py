"""The gate before training: what could a policy win over the best single rule by looking at each episode?

    python -m benchmarks.headroom [--quick] [--suite NAME] [--families NAME ...] [--seeds N] [--jobs N]

A fixed list of rules (never, and trials of columns of twice, four times and both sizes, started and decided at several
epochs, with and without surrender) plays the same episodes at every price. The best rule of each episode is chosen with
hindsight on the rows that J is made of, and scored on the test rows, so that luck on the first is not counted. It is to
be at least 1.5 points of J above the best single rule of each price, where training compute costs a quarter of the
price of the model. Played cells are kept in a folder, so that an interrupted run continues.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from actors.slots.objective import Prices
from benchmarks.form import Target, parser, publish
from deploy.config.schema import PRESETS
from deploy.evaluation.cells import CellStore, Job, run_cells
from deploy.evaluation.play import EpisodeResult
from deploy.evaluation.players import TRIAL, rule_player
from deploy.evaluation.suite import COMPUTE_SHARES, NOMINAL, PRICED, PRICES, SUITES, on_family, protocol, reported
from deploy.evaluation.tune import CANDIDATES

POINTS = 1.5
RULES = ("never", *CANDIDATES[TRIAL])
RUN_SEED = 20_261_223
"""Not a run seed of the evaluation."""
Played = Sequence[Sequence[EpisodeResult]]
"""All rules on the same episodes of one family, `[rules][N]`."""


def over_never(played: Played, prices: Prices, of_test: bool = False) -> NDArray[np.float64]:
    """Return J over never growing, `[rules, N]`, by accuracy on the rows that J is made of or on the test rows."""
    rows = [[replace(r, gain=r.test_accuracy) if of_test else r for r in of_rule] for of_rule in played]
    objective = np.array([[r.objective(prices) for r in of_rule] for of_rule in rows])
    return np.asarray(objective - objective[RULES.index("never")])


class Gate(NamedTuple):
    """J over never growing on test rows at some prices, means over families."""

    prices: Prices
    single: str  # the rule with the highest mean
    single_points: float
    overall_points: float  # of the rule that is best for all prices together
    hindsight_points: float


def gates(played: Mapping[float, Sequence[Played]], share: float) -> list[Gate]:
    """Return the figures at each price; `played` holds the families by price, `share` is c / p."""
    tested = {
        p: [over_never(f, Prices(p, share * p), of_test=True) for f in families] for p, families in played.items()
    }
    means = {p: np.mean([x.mean(1) for x in families], axis=0) for p, families in tested.items()}
    overall = int(np.mean(list(means.values()), axis=0).argmax())
    found = []
    for p, families in played.items():
        prices, best = Prices(p, share * p), int(means[p].argmax())
        chosen = [over_never(f, prices).argmax(0) for f in families]
        hindsight = [x[rules, np.arange(len(rules))].mean() for x, rules in zip(tested[p], chosen, strict=True)]
        points = float(means[p][best]), float(means[p][overall]), float(np.mean(hindsight))
        found.append(Gate(prices, RULES[best], *points))
    return found


def main() -> None:
    args = _arguments()
    config = protocol(PRESETS["research"].env, NOMINAL)
    if args.quick:
        config = replace(config, horizon_epochs=10, inner_steps=4)
    families = args.families or reported(args.suite)
    players = [rule_player(rule) for rule in RULES]
    jobs = {
        (p, f): [Job(player, on_family(config, f), Prices(p, 0.0), RUN_SEED, args.seeds) for player in players]
        for p in PRICES
        for f in families
    }
    wanted = [job for own in jobs.values() for job in own]
    found = run_cells(wanted, CellStore(args.folder), args.jobs, lambda text: print(text, flush=True))
    played = {p: [[found[job.player, job.cell] for job in jobs[p, f]] for f in families] for p in PRICES}
    rows: list[dict[str, Any]] = []
    headroom = {}
    for condition, share in COMPUTE_SHARES.items():
        own = gates(played, share)
        rows += [
            {"price": g.prices.doubling, "of compute": g.prices.compute_doubling, "best single rule": g.single,
             "its J over never": g.single_points, "best rule of all prices": g.overall_points,
             "best of each episode": g.hindsight_points, "headroom": g.hindsight_points - g.single_points}
            for g in own
        ]  # fmt: skip
        headroom[condition] = float(np.mean([g.hindsight_points - g.single_points for g in own]))
        print(f"headroom at {condition}: {headroom[condition]:.2f} points")
    target = Target(
        "headroom over the best single rule of each price at c = p/4, points of J", headroom[PRICED], POINTS
    )
    publish(rows, [target], args.json)


def _arguments() -> argparse.Namespace:
    known = parser("headroom", __doc__.splitlines()[0])
    known.add_argument("--suite", choices=SUITES, default="heldout", help="suite of families")
    known.add_argument("--families", nargs="+", help="only these families")
    known.add_argument("--seeds", type=int, default=8, help="episodes of each rule in a family")
    known.add_argument("--jobs", type=int, default=2, help="processes")
    known.add_argument("--folder", type=Path, default=Path("runs/headroom"), help="where played cells are kept")
    args = known.parse_args()
    if args.quick:
        args.families, args.seeds, args.folder = ["xor", "circle"], 2, args.folder / "quick"
    return args


if __name__ == "__main__":
    main()
