"""Checkpoints: everything that the next update depends on, in one file, written atomically.

One safetensors file holds the network and the optimizer's moments; its metadata holds counters, the architecture and
the ids of episodes that this checkpoint has consumed and whose acknowledgement may still be on its way, and what the
store's ledger was. Minibatch
order is a function of (seed, update), so there is no generator to save.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from actors.errors import UserError
from actors.policy.network import FactoredRecurrentActorCritic
from actors.policy.publish import from_weights, spaces_of, to_weights
from actors.policy.saved import SHIPPED, find_checkpoint, read_weights
from actors.policy.saved import list_checkpoints as list_checkpoints
from actors.transport.ledger import LedgerMemory, episode_ids
from actors.types.weights import WeightSet

FORMAT = 1


@dataclass(frozen=True)
class LearnerProgress:
    """Counters of a run."""

    update: int = 0  # updates applied
    version: int = -1  # of the weights that these updates made; -1 = none published
    generation: int = 0
    episodes_trained: int = 0
    env_steps: int = 0
    dropped_stale: int = 0
    elapsed_s: float = 0.0
    broken_updates: int = 0  # in a row up to here, whose gradients were not finite


@dataclass(frozen=True)
class Checkpoint:
    progress: LearnerProgress
    consumed: tuple[str, ...]  # episode ids
    weights: WeightSet
    moments: dict[str, Tensor]
    memory: LedgerMemory | None = None  # of the store


def save_checkpoint(
    folder: Path,
    network: FactoredRecurrentActorCritic,
    optimizer: torch.optim.Optimizer,
    progress: LearnerProgress,
    consumed: tuple[str, ...],
    state_stride: int,
    keep: int,
    memory: LedgerMemory | None = None,
) -> Path:
    """Write, fsync, rename, fsync the folder; then remove the oldest beyond `keep`, but never the newest sound one."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = to_weights(network, progress.version, progress.generation, state_stride)
    tensors = {f"network.{name}": torch.from_numpy(t) for name, t in weights.tensors.items()}
    for name, p in network.named_parameters():
        state = optimizer.state.get(p, {})
        tensors |= {f"optimiser.{name}.{k}": v.detach().cpu().contiguous() for k, v in state.items()}
    metadata = {
        "format": str(FORMAT),
        "progress": json.dumps(asdict(progress)),
        "consumed": json.dumps(consumed),
        "spaces_hash": weights.spaces_hash,
        "architecture": weights.architecture,
        "state_stride": str(state_stride),
        "memory": json.dumps(memory.to_dict() if memory else None),
    }
    path = folder / f"update_{progress.update:08d}.safetensors"
    write_durably(path, save(tensors, metadata))
    sound = newest_sound(folder)
    for old in list_checkpoints(folder)[:-keep]:
        if old != sound:
            old.unlink(missing_ok=True)
    return path


def save_policy(checkpoint: Checkpoint, path: Path) -> None:
    """The weights alone, to act with: a checkpoint without what only the next update needs."""
    weights = checkpoint.weights
    tensors = {f"network.{name}": torch.from_numpy(t) for name, t in weights.tensors.items()}
    metadata = {
        "format": str(FORMAT),
        "progress": json.dumps(asdict(checkpoint.progress)),
        "consumed": "[]",
        "spaces_hash": weights.spaces_hash,
        "architecture": weights.architecture,
        "state_stride": str(weights.state_stride),
        "memory": "null",
    }
    write_durably(path, save(tensors, metadata))


def newest_generation(folder: Path) -> int:
    """Of the newest checkpoint; 0 where there is none."""
    found = list_checkpoints(folder)
    if not found:
        return 0
    with safe_open(found[-1], "pt") as file:
        return int(json.loads((file.metadata() or {})["progress"])["generation"])


def newest_sound(folder: Path) -> Path | None:
    """The newest checkpoint whose last update had finite gradients."""
    for path in reversed(list_checkpoints(folder)):
        with safe_open(path, "pt") as file:
            if json.loads((file.metadata() or {})["progress"]).get("broken_updates", 0) == 0:
                return path
    return None


def write_durably(path: Path, data: bytes) -> None:
    """All of `data` under `path`, or what was there before: never a part of it."""
    partial = path.with_suffix(path.suffix + ".partial")
    try:
        with partial.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        partial.unlink(missing_ok=True)  # on a full disk it would take the room that is left
        raise
    partial.rename(path)
    descriptor = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def load_checkpoint(path: Path) -> Checkpoint:
    """`path` is a checkpoint file, or a folder that holds some (the newest is taken). Raises `UserError`."""
    path = find_checkpoint(path)
    try:
        with safe_open(path, "pt") as file:
            metadata = file.metadata() or {}
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 (not a mapping)
        if int(metadata["format"]) != FORMAT:
            raise UserError(f"{path} has checkpoint format {metadata['format']}, this version reads {FORMAT}")
        progress = _progress(metadata["progress"])
        own = {k.removeprefix("network."): t.numpy() for k, t in tensors.items() if k.startswith("network.")}
        moments = {k.removeprefix("optimiser."): t for k, t in tensors.items() if k.startswith("optimiser.")}
        weights = WeightSet(
            progress.version,
            progress.generation,
            metadata["spaces_hash"],
            metadata["architecture"],
            int(metadata["state_stride"]),
            own,
        )
        known = json.loads(metadata.get("memory", "null"))
        memory = LedgerMemory.from_dict(known) if known else None
        consumed = episode_ids(json.loads(metadata["consumed"]))
    except (SafetensorError, KeyError, TypeError, ValueError, AttributeError, RecursionError, OSError) as error:
        raise UserError(f"{path} is not a readable checkpoint ({error}): remove it, or name an older one") from error
    return Checkpoint(progress, consumed, weights, moments, memory)


def _progress(text: str) -> LearnerProgress:
    """Raises `TypeError` or `ValueError`."""
    progress = LearnerProgress(**json.loads(text))
    for name, first in asdict(LearnerProgress()).items():
        value = getattr(progress, name)
        if isinstance(value, bool) or not isinstance(value, int if isinstance(first, int) else int | float):
            raise ValueError(f"{name} is {value!r}")
    return progress


def restore_optimizer(
    optimizer: torch.optim.Optimizer, network: FactoredRecurrentActorCritic, moments: dict[str, Tensor]
) -> None:
    """Put saved moments and step counters back, by parameter name."""
    for name, p in network.named_parameters():
        prefix = f"{name}."
        own = {k.removeprefix(prefix): t for k, t in moments.items() if k.startswith(prefix)}
        own = {k: t for k, t in own.items() if "." not in k}
        if own:
            optimizer.state[p] = {k: t.clone().to(p.device) for k, t in own.items()}


def load_policy(path: str | Path = SHIPPED, slots: int | None = None) -> FactoredRecurrentActorCritic:
    """The policy of a checkpoint file or of a run folder's newest one, or without a path the one that comes with the
    package; ready to `act`, at another number of slots than it was trained with where `slots` says so. Raises
    `UserError`."""
    weights = read_weights(Path(path))
    spaces = spaces_of(weights)
    if slots is not None and not spaces.slots:
        raise UserError(f"{path} is a policy for an environment without slots")
    return from_weights(weights, spaces=spaces.with_slots(slots) if slots is not None else spaces)
