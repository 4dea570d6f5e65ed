"""Reading policies from files: the checkpoints of a learner, and the policy in the package."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from actors.errors import UserError
from actors.types.weights import WeightSet

TRAINED_NAME = "trained"
TRAINED = Path(__file__).with_name(TRAINED_NAME) / "policy.safetensors"
"""The policy in the package, which is found by its name; MODEL_CARD.md beside it says how it was trained."""
BEST = "best.safetensors"
"""In the folder of a run: the policy that was best in the evaluations during training."""
FORMAT = 2
"""Version of checkpoint files: of their metadata and of the names of their tensors."""

_NAME = re.compile(r"generation_(\d{5,})_update_(\d{8,})\.safetensors")


class CheckpointKey(NamedTuple):
    """Generation and update of a checkpoint, as in its file name.

    Keys of one run sort by age: a later generation starts from a checkpoint of an earlier one and supersedes the
    earlier generation's later updates.
    """

    generation: int
    update: int

    @property
    def file_name(self) -> str:
        return f"generation_{self.generation:05d}_update_{self.update:08d}.safetensors"

    @classmethod
    def parse(cls, name: str) -> CheckpointKey | None:
        """Parse a file name; return None if it is not the name of a checkpoint."""
        found = _NAME.fullmatch(name)
        return cls(int(found[1]), int(found[2])) if found else None


def list_checkpoints(folder: Path) -> list[Path]:
    """Return the checkpoints in `folder`, oldest first."""
    found = [(CheckpointKey.parse(path.name), path) for path in folder.glob("*.safetensors")]
    return [path for _, path in sorted((key, path) for key, path in found if key)]


def content_hash(tensors: Mapping[str, NDArray[Any]], metadata: Mapping[str, str]) -> str:
    """Return the sha256 of tensors and metadata, which checkpoints store as `sha256` in their metadata."""
    hashed = {name: text for name, text in metadata.items() if name != "sha256"}
    digest = hashlib.sha256(json.dumps(hashed, sort_keys=True).encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name} {tensor.dtype.str} {tensor.shape}".encode())
        digest.update(tensor.tobytes())
    return digest.hexdigest()


def find_checkpoint(path: Path) -> Path:
    """Return `path` itself if it is a file, or the newest checkpoint of a run folder or folder of checkpoints; for the
    name `trained`, the policy in the package.

    Raises `UserError` if there is none.
    """
    if str(path) == TRAINED_NAME and not path.exists():
        return TRAINED
    if path.is_dir():
        found = list_checkpoints(path / "checkpoints") or list_checkpoints(path) or sorted(path.glob("*.safetensors"))
        if not found:
            raise UserError(f"no checkpoint in {path}: give a run folder with checkpoints, or a checkpoint file")
        path = found[-1]
    if not path.is_file():
        raise UserError(f"no checkpoint at {path}: give a run folder or a checkpoint file")
    return path


def find_policy(path: Path, latest: bool = False) -> Path:
    """Return the policy to use: in the folder of a run that has evaluated its policies the best one, unless `latest`;
    otherwise as `find_checkpoint`. Raises `UserError`."""
    best = path / BEST
    return best if not latest and best.is_file() else find_checkpoint(path)


@contextmanager
def refusing_unreadable(path: Path) -> Iterator[None]:
    """Raise `UserError` for what goes wrong while a checkpoint is read."""
    try:
        yield
    except (SafetensorError, KeyError, TypeError, ValueError, AttributeError, RecursionError, OSError) as error:
        raise UserError(f"{path} is not a readable checkpoint ({error}): remove it or use an older one") from error


def read_saved(path: Path) -> tuple[WeightSet, dict[str, NDArray[Any]], dict[str, str]]:
    """Return the weights, all tensors and the metadata of a checkpoint file. Call it in `refusing_unreadable`."""
    with safe_open(path, "np") as file:
        metadata = file.metadata() or {}
        tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (not a mapping)
    if metadata.get("sha256") != content_hash(tensors, metadata):
        raise ValueError("its content does not match its sha256")
    if int(metadata["format"]) != FORMAT:
        raise UserError(f"{path} has checkpoint format {metadata['format']}, but this version reads format {FORMAT}")
    progress = json.loads(metadata["progress"])
    weights = WeightSet(
        int(progress["version"]),
        int(progress["generation"]),
        metadata["spaces_hash"],
        metadata["architecture"],
        int(metadata["state_stride"]),
        {key.removeprefix("network."): t for key, t in tensors.items() if key.startswith("network.")},
    )
    return weights, tensors, metadata


def read_weights(path: Path) -> WeightSet:
    """Read the policy of a checkpoint; `path` is as for `find_checkpoint`. Raises `UserError`."""
    path = find_checkpoint(path)
    with refusing_unreadable(path):
        return read_saved(path)[0]
