"""The scripts of the suite `models`, and the widths and epochs that they are played with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from actors.errors import UserError

FOLDER = Path(__file__).parents[3] / "examples" / "models"
"""The scripts in the repository. They are the only source of these models: what is measured is what people read."""


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
