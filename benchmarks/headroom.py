"""The gate before training: is there anything to win over the best single schedule, and can it be seen early?

    python -m benchmarks.headroom [--quick] [--suite NAME ...] [--families NAME ...] [--seeds N] [--fit FILE]

On families x classes of host widths, all schedules (never, periodic in the stream, columns of each size at several
epochs, counted from the beginning or back from the end) play the same episodes once; J at every price follows from what
an episode gained and its rent. Two conditions: the best schedule of each (family, width class, price), cross-validated,
is on average at least 2 points of J above the best single schedule per price; and a ridge regression on what is
observed until epoch 3, which has not seen the family, recovers at least half of that. Played cells are kept in a
folder, so that an interrupted run continues. `--fit` writes the regression that the rule `chooser` follows.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.form import Target, parser, publish
from benchmarks.gate.analysis import PRICES, Cells, best_of_cell, best_single, fit_gain, gate, over_never
from benchmarks.gate.cells import Cell, Played, is_played, play, width_classes
from deploy.config.schema import PRESETS
from deploy.evaluation.cells import finished
from deploy.evaluation.suite import protocol, reported

POINTS, SHARE = 2.0, 0.5
QUICK = ("spirals", "moons")


def main() -> None:
    args = _arguments()
    cells = {suite: _cells(suite, args) for suite in args.suite}
    every = [cell for own in cells.values() for cell in own]
    played = _play(every, args.folder)
    fitted_on = {cell: played[cell] for cell in cells.get("train", every)}
    if args.fit is not None:
        args.fit.write_text(json.dumps(fit_gain(list(fitted_on.values())).as_dict()) + "\n")
    rows: list[dict[str, Any]] = []
    targets = []
    for suite, own in cells.items():
        found = {cell: played[cell] for cell in own}
        gates = [gate(found, fitted_on, price) for price in PRICES]
        rows += [
            {"suite": suite, "price": g.price, "best single schedule": g.single, "its J over never": g.single_points,
             "best per cell": g.best_points, "headroom": g.headroom, "chooser": g.chooser_points,
             "recovered": g.recovered / g.headroom if g.headroom > 0 else float("nan")}
            for g in gates
        ]  # fmt: skip
        rows += _by_family(found)
        headroom = float(np.mean([g.headroom for g in gates]))
        recovered = float(np.mean([g.recovered for g in gates]))
        targets.append(Target(f"{suite}: headroom over the best single schedule, points of J", headroom, POINTS))
        targets.append(
            Target(
                f"{suite}: share of it that the chooser recovers", recovered / headroom if headroom > 0 else 0.0, SHARE
            )
        )
    publish(rows, targets, args.json)


def _arguments() -> argparse.Namespace:
    known = parser("headroom", __doc__.splitlines()[0])
    suites = ("train", "heldout", "mlbench")
    known.add_argument("--suite", nargs="+", choices=suites, default=["train", "heldout"], help="suites of families")
    known.add_argument("--families", nargs="+", help="only these families")
    known.add_argument("--kind", choices=("vector", "sequence", "image"), default="vector", help="kind of host")
    known.add_argument("--seeds", type=int, default=8, help="episodes of each schedule in a cell")
    known.add_argument("--fit", type=Path, help="write the regression of the rule `chooser`, fitted to the suite train")
    known.add_argument("--folder", type=Path, default=Path("runs/headroom"), help="where played cells are kept")
    args = known.parse_args()
    if args.quick:
        args.suite, args.families, args.seeds, args.folder = ["train"], QUICK, 2, args.folder / "quick"
    return args


def _cells(suite: str, args: argparse.Namespace) -> list[Cell]:
    config = protocol(PRESETS["research"].env, rent_weight=1.0)
    if args.quick:
        config = replace(config, horizon_epochs=10, inner_steps=4)
    names = [n for n in reported(suite, kind=args.kind) if args.families is None or n in args.families]
    return [
        Cell(name, widths, args.seeds, config)
        for name in names
        for widths in (width_classes(name)[::3] if args.quick else width_classes(name))
    ]


def _play(cells: Sequence[Cell], folder: Path) -> dict[Cell, Played]:
    """Play all cells that are missing, and tell how long the rest will take."""
    missing = [cell for cell in cells if not is_played(cell, folder)]
    for cell, _, progress in finished(partial(play, folder=folder), missing, 1):
        print(f"{progress}  {cell.name}", flush=True)
    return {cell: play(cell, folder) for cell in cells}


def _by_family(cells: Cells) -> list[dict[str, Any]]:
    """The headroom of each family over the best single rule of all, averaged over prices."""
    singles = {price: best_single(cells, price) for price in PRICES}
    rows: list[dict[str, Any]] = []
    for family in dict.fromkeys(cell.family for cell in cells):
        own = [p for cell, p in cells.items() if cell.family == family]
        single = [np.mean([over_never(p, w)[i].mean() for p in own]) for w, i in singles.items()]
        best = [np.mean([best_of_cell(p, w) for p in own]) for w in PRICES]
        columns = zip(PRICES, single, best, strict=True)
        rows.append({"family": family} | {f"single, best at {w:g}": f"{s:+.1f} {b:+.1f}" for w, s, b in columns})
    return rows


if __name__ == "__main__":
    main()
