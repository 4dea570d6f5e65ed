"""The suite of models of practical size: the training scripts in `examples/practical`, run as their authors would."""

from __future__ import annotations

import hashlib
import io
import json
import runpy
import sys
import time
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from actors.errors import UserError
from actors.policy.distribution import DECISIONS
from actors.policy.saved import TRAINED, TRAINED_NAME
from actors.slots.objective import Prices
from learner.run.checkpoint import write_durably

FOLDER = Path(__file__).parents[3] / "examples" / "practical"
"""The scripts in the repository. They are the only source of these models: what is measured is what people read."""

SIZES = ("small", "right", "ample")
"""What the three widths of a model are for its task: too small, about right, ample."""

LEFT = ("grower", "history", "test_metric", "model", "evaluate", "val")
"""Variables that a script of the suite leaves behind. Metrics are from 0 to 1; `history` has those of validation."""


@dataclass(frozen=True)
class PracticalModel:
    """A model of the suite: a training script, and what it is called with."""

    name: str
    label: str
    widths: tuple[int, int, int]  # by `SIZES`
    epochs: int = 16
    script: str = ""  # its file, where that has another name
    flags: tuple[str, ...] = ()

    def path(self, folder: Path) -> Path:
        return folder / f"{self.script or self.name}.py"


MODELS = (
    PracticalModel("resnet_glyphs", "ResNet, glyphs", (8, 16, 24)),
    PracticalModel("char_transformer", "transformer, characters", (24, 48, 80)),
    PracticalModel("mlp_clarity", "MLP, clarity of diamonds", (48, 96, 192), 16, "mlp_table"),
    PracticalModel("mlp_price", "MLP, price of diamonds", (48, 96, 192), 16, "mlp_table", ("--task=price",)),
    PracticalModel("gru_signals", "GRU, signals", (24, 48, 96)),
)


def practical_models(only: Sequence[str], folder: Path) -> tuple[PracticalModel, ...]:
    """Return the models of the suite, or those that are named.

    Raises `UserError` for a name that is not among them, and if their scripts are missing.
    """
    by_name = {model.name: model for model in MODELS}
    for name in only:
        if name not in by_name:
            raise UserError(f"{name!r} is not in the suite practical: choose from {', '.join(by_name)}")
    chosen = tuple(by_name[name] for name in only) or MODELS
    for model in chosen:
        if not model.path(folder).is_file():
            raise UserError(
                f"{model.path(folder)} does not exist: the suite practical plays the scripts of Tamiyo's repository, "
                "so clone it and name its folder with --scripts examples/practical"
            )
    return chosen


@dataclass(frozen=True)
class PracticalCell:
    """One run of a script."""

    model: str
    script: Path
    flags: tuple[str, ...]
    width: int
    seed: int
    epochs: int
    policy: str  # a rule, a checkpoint or an address
    prices: Prices

    def fingerprint(self) -> str:
        """Return a hash of all that the run depends on: the settings, and what the script and a checkpoint contain."""
        path = TRAINED if self.policy == TRAINED_NAME else Path(self.policy)
        weights = path.read_bytes() if path.is_file() else b""
        hashes = [hashlib.sha256(data).hexdigest() for data in (self.script.read_bytes(), weights)]
        settings = [self.flags, self.width, self.seed, self.epochs, Path(self.policy).name, *self.prices, *hashes]
        settings += [DECISIONS] if weights else []
        return hashlib.sha256(json.dumps(settings).encode()).hexdigest()[:16]

    @property
    def arguments(self) -> list[str]:
        flags = {"width": self.width, "seed": self.seed, "epochs": self.epochs, "policy": self.policy}
        flags |= {"price": self.prices.doubling, "compute-price": self.prices.compute_doubling}
        return [*self.flags, *(f"--{name}={value}" for name, value in flags.items())]


@dataclass(frozen=True)
class PracticalRun:
    """What a run came to. Metrics are in percent."""

    curve: list[float]  # validation, by epoch
    test: float  # at the end
    host_params: int
    final_params: int
    flops: float  # of the model at the end, in a unit that the model's runs share
    compute: float  # doublings of the training FLOPs over those of the model without growth
    decisions: list[str]  # those that were not WAIT
    seconds: float  # of one core

    def __post_init__(self) -> None:
        if not self.curve or not self.host_params > 0 or not self.final_params > 0:
            raise ValueError("a run has a curve and parameters")


def run_script(cell: PracticalCell) -> PracticalRun:
    """Run a script in this process. Raises `UserError` if it refuses its arguments, does not keep to what a script of
    the suite leaves behind (see `LEFT`), or if the policy did not answer."""
    started, given = time.process_time(), sys.argv
    sys.argv = [str(cell.script), *cell.arguments]
    try:
        with redirect_stdout(io.StringIO()):
            left = runpy.run_path(str(cell.script), run_name="__main__")
    except SystemExit as error:
        raise UserError(f"{cell.script.name} {' '.join(cell.arguments)} ended with {error.code}") from error
    finally:
        sys.argv = given
    if missing := [name for name in LEFT if name not in left]:
        raise UserError(
            f"{cell.script.name} has no {' and no '.join(missing)} at its end, which the suite practical reads"
        )
    return _run(cell, left["grower"].log, left, time.process_time() - started)


def _run(cell: PracticalCell, decisions: Sequence[Any], left: dict[str, Any], seconds: float) -> PracticalRun:
    asked = [d for d in decisions if d.epoch < cell.epochs]
    if silent := [d for d in asked if not d.asked]:
        raise UserError(
            f"{cell.policy} did not answer in epoch {silent[0].epoch} of {cell.script.name}: {silent[0].reason}"
        )
    if [d.epoch for d in decisions] != list(range(cell.epochs + 1)):
        raise UserError(f"{cell.script.name} must call grower.step before its first epoch and after each")
    final = _params(left)
    return PracticalRun(
        curve=[round(100.0 * value, 3) for value in left["history"]],
        test=100.0 * left["test_metric"],
        host_params=round(final / 2.0 ** decisions[-1].doublings),
        final_params=final,
        flops=_flops(left),
        compute=decisions[-1].compute_doublings,
        decisions=[f"{d.epoch} {d.op} {d.slot} {d.blueprint}".rstrip() for d in asked if d.op != "WAIT"],
        seconds=round(seconds, 2),
    )


def _params(left: dict[str, Any]) -> int:
    return sum(p.numel() for p in left["model"].parameters() if p.requires_grad)


def _flops(left: dict[str, Any]) -> float:
    """Return the FLOPs of an evaluation or, where PyTorch cannot count them, the number of parameters."""
    if any(isinstance(module, nn.RNNBase) for module in left["model"].modules()):
        return float(_params(left))
    with FlopCounterMode(display=False) as counter:
        left["evaluate"](left["val"])
    return float(counter.get_total_flops() or _params(left))


def cell_file(cell: PracticalCell, folder: Path) -> Path:
    return folder / cell.model / f"{cell.fingerprint()}.json"


def read_run(cell: PracticalCell, folder: Path) -> PracticalRun | None:
    """Return a run that was played before under the very same conditions, or None. A damaged file counts as none."""
    try:
        return PracticalRun(**json.loads(cell_file(cell, folder).read_text())["run"])
    except (OSError, ValueError, TypeError, KeyError):
        return None


def play_cell(cell: PracticalCell, folder: Path) -> PracticalRun:
    """Run the script and keep what it came to."""
    run, path = run_script(cell), cell_file(cell, folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    settings = asdict(cell) | {"script": cell.script.name, "policy": Path(cell.policy).name}
    write_durably(path, json.dumps({"cell": settings, "run": asdict(run)}, indent=1).encode(), replace=True)
    return run
