"""`save_grown` and `load_grown`: a grown model as a folder with its tensors and a description in plain types."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_model, save_model
from torch import nn

from actors.config import require
from actors.errors import UserError
from actors.growth.columns.column import own_random_numbers
from actors.growth.columns.grown_model import build_grown
from actors.growth.controller import GrowthController
from actors.growth.export import GROWN

TENSORS, DESCRIPTION = "grown.safetensors", "grown.json"
FORMAT = 1


def save_grown(model: nn.Module | GrowthController, path: str | Path) -> None:
    """Save a grown model into a folder: `grown.safetensors` has its tensors, `grown.json` how it is built from the
    factory of its columns.

    `model` is a `GrowthController`, or what its `export` returned. Where columns are copies of a part of the model
    (`Column(model=...)`), that part is saved. Raises `UserError`.
    """
    exported = model.export() if isinstance(model, GrowthController) else model
    saved = next((module for module in exported.modules() if GROWN in module.__dict__), None)
    if saved is None:
        raise UserError(
            "this model does not say how it was grown: give a GrowthController, or what its export() returned; "
            "seeds outside of Column(model=...) cannot be saved"
        )
    folder = Path(path)
    folder.mkdir(parents=True, exist_ok=True)
    save_model(saved, str(folder / TENSORS))
    (folder / DESCRIPTION).write_text(json.dumps({"format": FORMAT, **saved.__dict__[GROWN]}, indent=1) + "\n")


def load_grown(path: str | Path, factory: Callable[[float], nn.Module]) -> nn.Module:
    """Return the model that `save_grown` saved, in training mode, on the CPU.

    `factory` is that of its columns: at scale 1 it returns the model's own architecture. Raises `UserError`.
    """
    folder = Path(path)
    try:
        grown = json.loads((folder / DESCRIPTION).read_text())
        require(grown["format"] == FORMAT, f"{folder} has format {grown['format']!r}: this version reads {FORMAT}")
        with own_random_numbers(0):
            model = build_grown(grown, factory)
        model.__dict__[GROWN] = {key: value for key, value in grown.items() if key != "format"}
        load_model(model, folder / TENSORS)
    except UserError:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError, SafetensorError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UserError(f"{folder} cannot be read as a grown model of this factory: {reason:.300}") from error
    return model
