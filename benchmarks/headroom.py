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
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from actors.config import EnvConfig
from actors.rules.names import rule_policy
from actors.slots.objective import Prices
from benchmarks.form import Target, parser, publish
from deploy.config.schema import PRESETS
from deploy.evaluation.cells import finished
from deploy.evaluation.play import play
from deploy.evaluation.suite import first_seed, on_family, protocol, reported

POINTS = 1.5
PRICES, SHARES = (0.5, 1.0, 2.0, 4.0), (0.0, 0.25)
"""Points per doubling of the model, and the price of compute as a share of it."""
_TRIALS = product(("double", "quad", "double+quad"), (0, 1, 3), (1, 2, 4), ("", ",surrender=0.5"))
RULES = ("never", *(f"trial:{sizes}@{start}-{left}{option}" for sizes, start, left, option in _TRIALS))
RUN_SEED = 20_261_223
"""Not a run seed of the evaluation."""


class Played(NamedTuple):
    """All rules on the episodes of one family at one price of the model, `[rules, N]`."""

    gain: NDArray[np.float64]  # points, on the rows that J is made of
    test_accuracy: NDArray[np.float64]  # points
    doublings: NDArray[np.float64]
    compute: NDArray[np.float64]

    def objective(self, prices: Prices, of_test: bool = False) -> NDArray[np.float64]:
        """Return J over never growing, `[rules, N]`."""
        points = self.test_accuracy if of_test else self.gain
        objective = points - prices.doubling * self.doublings - prices.compute_doubling * self.compute
        return np.asarray(objective - objective[RULES.index("never")])


class Cell(NamedTuple):
    """The episodes of one family at one price of the model."""

    family: str
    price: float
    seeds: int
    config: EnvConfig

    @property
    def name(self) -> str:
        return f"{self.family}@{self.price:g}"

    def file(self, folder: Path) -> Path:
        """Return where the cell is kept."""
        text = json.dumps([asdict(self.config), self.seeds, RULES, RUN_SEED], sort_keys=True)
        return folder / f"{self.name}-{hashlib.sha256(text.encode()).hexdigest()[:16]}.npz"


def play_cell(cell: Cell, folder: Path) -> None:
    """Play a cell and keep it."""
    config = replace(on_family(cell.config, cell.family), points_per_doubling=cell.price)
    first = first_seed(cell.family)
    seeds = range(first, first + cell.seeds)
    rows = [play(partial(rule_policy, rule), config, RUN_SEED, seeds) for rule in RULES]
    played = {name: np.array([[getattr(r, name) for r in of_rule] for of_rule in rows]) for name in Played._fields}
    folder.mkdir(parents=True, exist_ok=True)
    part = cell.file(folder).with_suffix(".partial")
    with part.open("wb") as file:
        np.savez_compressed(file, **played)
    part.replace(cell.file(folder))


def read_cell(cell: Cell, folder: Path) -> Played:
    """Return a cell that was played."""
    with np.load(cell.file(folder)) as kept:
        return Played(**kept)


class Gate(NamedTuple):
    """J over never growing on test rows at some prices, means over families."""

    prices: Prices
    single: str  # the rule with the highest mean
    single_points: float
    overall_points: float  # of the rule that is best for all prices together
    hindsight_points: float


def gates(cells: Mapping[float, Sequence[Played]], share: float) -> list[Gate]:
    """Return the figures at each price; `cells` holds the families by price, `share` is c / p."""
    found = []
    means = {}
    for p, families in cells.items():
        prices = Prices(p, share * p)
        means[p] = np.mean([f.objective(prices, of_test=True).mean(1) for f in families], axis=0)
    overall = int(np.mean(list(means.values()), axis=0).argmax())
    for p, families in cells.items():
        prices = Prices(p, share * p)
        hindsight = [_chosen(f.objective(prices), f.objective(prices, of_test=True)) for f in families]
        best = int(means[p].argmax())
        points = float(means[p][best]), float(means[p][overall]), float(np.mean(hindsight))
        found.append(Gate(prices, RULES[best], *points))
    return found


def _chosen(by: NDArray[np.float64], scored: NDArray[np.float64]) -> float:
    return float(scored[by.argmax(0), np.arange(by.shape[1])].mean())


def main() -> None:
    args = _arguments()
    config = protocol(PRESETS["research"].env, Prices(1.0, 0.0))
    if args.quick:
        config = replace(config, horizon_epochs=10, inner_steps=4)
    families = args.families or reported(args.suite)
    cells = {p: [Cell(family, p, args.seeds, config) for family in families] for p in PRICES}
    missing = [cell for of_price in cells.values() for cell in of_price if not cell.file(args.folder).is_file()]
    for cell, _, progress in finished(partial(play_cell, folder=args.folder), missing, args.jobs):
        print(f"{progress}  {cell.name}", flush=True)
    played = {p: [read_cell(cell, args.folder) for cell in of_price] for p, of_price in cells.items()}
    rows: list[dict[str, Any]] = []
    headroom = {}
    for share in SHARES:
        own = gates(played, share)
        rows += [
            {"price": g.prices.doubling, "of compute": g.prices.compute_doubling, "best single rule": g.single,
             "its J over never": g.single_points, "best rule of all prices": g.overall_points,
             "best of each episode": g.hindsight_points, "headroom": g.hindsight_points - g.single_points}
            for g in own
        ]  # fmt: skip
        headroom[share] = float(np.mean([g.hindsight_points - g.single_points for g in own]))
        print(f"headroom at c = {share:g} p: {headroom[share]:.2f} points")
    target = Target("headroom over the best single rule of each price at c = p/4, points of J", headroom[0.25], POINTS)
    publish(rows, [target], args.json)


def _arguments() -> argparse.Namespace:
    known = parser("headroom", __doc__.splitlines()[0])
    known.add_argument("--suite", choices=("train", "heldout", "mlbench"), default="heldout", help="suite of families")
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
