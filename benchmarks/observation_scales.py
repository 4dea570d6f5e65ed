"""What a shift of a decade does to the decisions of the package's policy, for each observation that a scale enters.

    python -m benchmarks.observation_scales [--quick] [--json FILE] [--models NAME ...] [--rows N] [--policy PATH]

Observations of trainings of the suite `practical` are recorded at the models' narrowest width. Then the policy decides
again, epoch by epoch, with what was recorded and with one number of it shifted in all epochs until then; its recurrent
state follows. Numbers of parameters and of training rows are in no observation; budgets, sizes, efforts and costs are
ratios to the model's own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import log2
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

from actors.growth import controller
from actors.growth.policy_advisor import find_policy
from actors.policy.saved import find_checkpoint
from actors.sessions.session import SessionOpener
from actors.slots.base_features import BASE
from actors.slots.objective import Prices
from actors.slots.slot_features import SLOT
from actors.types.actions import Op
from actors.types.spaces import Spaces
from benchmarks.form import parser, publish
from deploy.evaluation.practical.runs import FOLDER, PracticalCell, practical_models, run_script

Obs = NDArray[np.float32]
DECADE = log2(10.0)


class Recorded(NamedTuple):
    """What the policy saw in one training."""

    spaces: Spaces
    steps: list[tuple[Obs, Any, Any]]  # observation, blueprint indices, masks


class Recorder:
    """Opens sessions with a policy and keeps what they see."""

    def __init__(self, opener: SessionOpener) -> None:
        self.opener, self.recorded = opener, Recorded(None, [])  # type: ignore[arg-type]

    def open(self, spaces: Spaces, seed: int = 0, **options: Any) -> Any:
        session = self.opener.open(spaces, seed, **options)
        self.recorded, step = Recorded(spaces, []), session.step

        def recording(obs: Any, blueprints: Any = (), masks: Any = None, deterministic: bool = True) -> Any:
            self.recorded.steps.append((np.array(obs, dtype=np.float32), blueprints, masks))
            return step(obs, blueprints, masks, deterministic)

        session.step = recording  # type: ignore[method-assign]
        return session

    def close(self) -> None:
        self.opener.close()


def indices(name: str, length: int, entries: slice = slice(None)) -> list[int]:
    """Return where the entries of a feature are, those of all slots for a feature of slots."""
    base, slot = sum(f.size for f in BASE), sum(f.size for f in SLOT)
    starts, table = ([0], BASE) if name in {f.name for f in BASE} else (range(base, length, slot), SLOT)
    at = next(i for i, f in enumerate(table) if f.name == name)
    own = range(sum(f.size for f in table[:at]), sum(f.size for f in table[: at + 1]))
    return [start + i for start in starts for i in own[entries]]


def times(name: str, factor: float, entries: slice = slice(None)) -> Callable[[Obs], None]:
    """Multiply what a feature is the symlog of."""

    def shift(obs: Obs) -> None:
        at = indices(name, len(obs), entries)
        obs[at] = np.clip(np.sign(obs[at]) * np.log1p(factor * np.expm1(np.abs(obs[at]))), -5, 5)

    return shift


def plus(name: str, amount: float, entries: slice = slice(None)) -> Callable[[Obs], None]:
    """Add to a feature that is a logarithm."""

    def shift(obs: Obs) -> None:
        at = indices(name, len(obs), entries)
        obs[at] = np.clip(obs[at] + amount, -1.0, 1.0)

    return shift


def both(*shifts: Callable[[Obs], None]) -> Callable[[Obs], None]:
    def shift(obs: Obs) -> None:
        for one in shifts:
            one(obs)

    return shift


def chance(factor: float) -> Callable[[Obs], None]:
    def shift(obs: Obs) -> None:
        obs[indices("chance", len(obs))] *= factor

    return shift


VALUE = slice(1, 2)  # after a flag
SHIFTS: dict[str, Callable[[Obs], None]] = {
    "gradient norms x10": times("gradient_norm", 10.0, VALUE),
    "gradient norms /10": times("gradient_norm", 0.1, VALUE),
    "losses x10": both(times("loss", 10.0), times("train_loss", 10.0)),
    "losses /10": both(times("loss", 0.1), times("train_loss", 0.1)),
    "validation rows x10": plus("val_rows", DECADE / 16, VALUE),
    "validation rows /10": plus("val_rows", -DECADE / 16, VALUE),
    "classes x10": chance(0.1),
    "epochs x10": plus("horizon", DECADE / 16),
    "price x10, for comparison": plus("price", DECADE / 8, slice(0, 1)),
    "price /10, for comparison": plus("price", -DECADE / 8, slice(0, 1)),
}


def decide(opener: SessionOpener, recorded: Recorded, shift: Callable[[Obs], None] | None) -> list[tuple[int, ...]]:
    """Return the op, slot and blueprint of each epoch; the latter two only where they matter."""
    session, found = opener.open(recorded.spaces), []
    for obs, blueprints, masks in recorded.steps:
        seen = obs.copy()
        if shift is not None:
            shift(seen)
        op, slot, blueprint = map(int, np.asarray(session.step(seen, blueprints, masks).action)[:3])
        found.append((op,) if op == Op.WAIT else (op, slot, blueprint if op == Op.GERMINATE else 0))
    return found


def record(cell: PracticalCell) -> Recorded:
    recorders: list[Recorder] = []

    def recording(*given: Any) -> Recorder:
        recorders.append(Recorder(find_policy(*given)))
        return recorders[-1]

    with patch.object(controller, "find_policy", recording):
        run_script(cell)
    return recorders[-1].recorded


def main() -> None:
    known = parser("observation_scales", __doc__.splitlines()[0])
    known.add_argument("--models", nargs="+", default=(), help="models of the suite practical")
    known.add_argument("--policy", type=Path, default=Path("trained"), help="checkpoint or run folder")
    known.add_argument("--rows", type=int, help="train on so many rows, which the transformer has no option for")
    options = known.parse_args()
    models = practical_models(("gru_signals",) if options.quick else options.models, FOLDER)
    policy = str(find_checkpoint(options.policy).resolve())
    trainings = []
    for model in models:
        cell = PracticalCell(
            model.name, model.path(FOLDER), model.flags, model.widths[0], 0, model.epochs, policy, Prices(1.0, 0.25)
        )
        if options.quick:
            cell = replace(cell, flags=("--rows=64",), width=8, epochs=4)
        elif options.rows:
            cell = replace(cell, flags=(*cell.flags, f"--rows={options.rows}"))
        trainings.append(record(cell))
        print(f"{model.label}: {len(trainings[-1].steps)} decisions recorded", flush=True)
    opener = find_policy(policy, 3.0, "")
    publish([row(opener, trainings, name, shift) for name, shift in SHIFTS.items()], [], options.json)


def row(
    opener: SessionOpener, trainings: Sequence[Recorded], name: str, shift: Callable[[Obs], None]
) -> dict[str, Any]:
    pairs = [(decide(opener, t, None), decide(opener, t, shift)) for t in trainings]
    steps = [(a, b) for before, after in pairs for a, b in zip(before, after, strict=True)]
    germinated = [[sum(step[0] == Op.GERMINATE for step in side) for side in pair] for pair in pairs]
    return {
        "shift": name,
        "decisions": len(steps),
        "others, %": 100.0 * float(np.mean([a != b for a, b in steps])),
        "other op, %": 100.0 * float(np.mean([a[0] != b[0] for a, b in steps])),
        "GERMINATE as recorded": sum(a for a, _ in germinated),
        "GERMINATE shifted": sum(b for _, b in germinated),
    }


if __name__ == "__main__":
    main()
