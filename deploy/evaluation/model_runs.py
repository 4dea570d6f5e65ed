"""The suite of models as people write them: the training scripts in `examples/models`, run as their authors would."""

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

FOLDER = Path(__file__).parents[2] / "examples" / "models"
"""The scripts in the repository. They are the only source of these models: what is measured is what people read."""

LEFT = ("grower", "test_accuracy", "model", "evaluate", "val")
"""Variables that a script of the suite leaves behind."""


@dataclass(frozen=True)
class ModelScript:
    """A training script of the suite."""

    name: str
    label: str
    widths: tuple[int, int, int]  # too small, medium, ample
    epochs: int = 20

    def path(self, folder: Path) -> Path:
        return folder / f"{self.name}.py"


SCRIPTS = (
    ModelScript("resnet_digits", "ResNet, digits", (4, 8, 16)),
    ModelScript("mlp_digits", "MLP, digits", (4, 16, 128)),
    ModelScript("mlp_breast_cancer", "MLP, breast_cancer", (1, 2, 8)),
    ModelScript("gru_signals", "GRU, signals", (8, 16, 32)),
    ModelScript("char_transformer", "transformer, characters", (8, 16, 32)),
)


def model_scripts(only: Sequence[str], folder: Path) -> tuple[ModelScript, ...]:
    """Return the scripts of the suite, or those that are named.

    Raises `UserError` for a name that is not among them, and if their files are missing.
    """
    by_name = {script.name: script for script in SCRIPTS}
    for name in only:
        if name not in by_name:
            raise UserError(f"{name!r} is not in the suite models: choose from {', '.join(by_name)}")
    chosen = tuple(by_name[name] for name in only) or SCRIPTS
    for script in chosen:
        if not script.path(folder).is_file():
            raise UserError(
                f"{script.path(folder)} does not exist: the suite models plays the scripts of Tamiyo's repository, "
                "so clone it and name its folder with --scripts examples/models"
            )
    return chosen


@dataclass(frozen=True)
class ModelCell:
    """One run of a script."""

    script: Path
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
        settings = [self.script.stem, self.width, self.seed, self.epochs, Path(self.policy).name, *self.prices, *hashes]
        settings += [DECISIONS] if weights else []
        return hashlib.sha256(json.dumps(settings).encode()).hexdigest()[:16]

    @property
    def arguments(self) -> list[str]:
        flags = {"width": self.width, "seed": self.seed, "epochs": self.epochs, "policy": self.policy}
        flags |= {"price": self.prices.doubling, "compute-price": self.prices.compute_doubling}
        return [f"--{name}={value}" for name, value in flags.items()]


@dataclass(frozen=True)
class ModelRun:
    """What a run came to. Accuracies are in percent."""

    untrained: float  # validation accuracy
    accuracy: float  # validation, at the end
    test_accuracy: float  # at the end
    host_params: int
    final_params: int
    flops: float  # of the model at the end, in a unit that the script's runs share
    compute: float  # doublings of the training FLOPs over those of the model without growth
    decisions: list[str]  # those that were not WAIT
    seconds: float  # of one core


def run_script(cell: ModelCell) -> ModelRun:
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
            f"{cell.script.name} has no {' and no '.join(missing)} at its end, which the suite models reads"
        )
    return _run(cell, left["grower"].log, left, time.process_time() - started)


def _run(cell: ModelCell, decisions: Sequence[Any], left: dict[str, Any], seconds: float) -> ModelRun:
    asked = [d for d in decisions if d.epoch < cell.epochs]
    if silent := [d for d in asked if not d.asked]:
        raise UserError(
            f"{cell.policy} did not answer in epoch {silent[0].epoch} of {cell.script.name}: {silent[0].reason}"
        )
    if [d.epoch for d in decisions] != list(range(cell.epochs + 1)):
        raise UserError(f"{cell.script.name} must call grower.step before its first epoch and after each")
    final = _params(left)
    host = round(final / 2.0 ** decisions[-1].doublings)
    return ModelRun(
        untrained=decisions[0].accuracy,
        accuracy=decisions[-1].accuracy,
        test_accuracy=100.0 * left["test_accuracy"],
        host_params=host,
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


def cell_file(cell: ModelCell, folder: Path) -> Path:
    return folder / cell.script.stem / f"{cell.fingerprint()}.json"


def read_run(cell: ModelCell, folder: Path) -> ModelRun | None:
    """Return a run that was played before under the very same conditions, or None."""
    path = cell_file(cell, folder)
    return ModelRun(**json.loads(path.read_text())["run"]) if path.is_file() else None


def play_cell(cell: ModelCell, folder: Path) -> ModelRun:
    """Run the script and keep what it came to."""
    run, path = run_script(cell), cell_file(cell, folder)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps({"cell": asdict(cell) | {"script": cell.script.name}, "run": asdict(run)}, indent=1))
    partial.replace(path)
    return run
