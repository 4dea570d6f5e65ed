"""Policies in files: a learner's checkpoint is one, and so is what comes with the package."""

from __future__ import annotations

import json
import re
from pathlib import Path

from safetensors import SafetensorError, safe_open

from actors.errors import UserError
from actors.types.weights import WeightSet

SHIPPED = Path(__file__).with_name("shipped") / "policy.safetensors"
"""The policy that comes with the package; policy.json beside it says how it was made."""

_NAME = re.compile(r"update_(\d{8})\.safetensors")


def list_checkpoints(folder: Path) -> list[Path]:
    """Oldest first."""
    return sorted(p for p in folder.glob("update_*.safetensors") if _NAME.fullmatch(p.name))


def find_checkpoint(path: Path) -> Path:
    """`path` is a checkpoint or a policy's weights, or a folder of some (the newest is taken). Raises `UserError`."""
    if path.is_dir():
        found = list_checkpoints(path / "checkpoints") or list_checkpoints(path) or sorted(path.glob("*.safetensors"))
        if not found:
            raise UserError(f"no checkpoint in {path}: name a run folder that has trained, or a checkpoint file")
        path = found[-1]
    if not path.is_file():
        raise UserError(f"no checkpoint at {path}: name a run folder or a checkpoint file")
    return path


def read_weights(path: Path) -> WeightSet:
    """The policy of a checkpoint, see `find_checkpoint`. Raises `UserError`."""
    path = find_checkpoint(path)
    try:
        with safe_open(path, "np") as file:
            metadata = file.metadata() or {}
            own = [key for key in file.keys() if key.startswith("network.")]  # noqa: SIM118 (not a mapping)
            tensors = {key.removeprefix("network."): file.get_tensor(key) for key in own}
        progress = json.loads(metadata["progress"])
        return WeightSet(
            int(progress["version"]),
            int(progress["generation"]),
            metadata["spaces_hash"],
            metadata["architecture"],
            int(metadata["state_stride"]),
            tensors,
        )
    except (SafetensorError, KeyError, TypeError, ValueError, AttributeError, RecursionError, OSError) as error:
        raise UserError(f"{path} is not a readable checkpoint ({error}): remove it, or name an older one") from error
