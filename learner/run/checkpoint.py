"""Checkpoints: everything that the next update depends on, in one file, written atomically.

One safetensors file holds the network and the optimizer's moments; its metadata holds counters, the architecture, the
ids of episodes that this checkpoint has consumed and whose acknowledgement may still be on its way, what the store's
ledger was, and a sha256 of all that. Minibatch order is a function of (seed, update), so there is no generator to save.

The lineage that survives is unique because of this invariant: *a learner claims its generation before it loads, writes
what it loaded as its generation's first file before it opens that generation, and settles nothing before it is open.*
Files are named by (generation, update) and sort so; "newest" is the last in that order.

- The store refuses older generations from the claim on (`claim_generation`). What was acknowledged before is in a file,
  as files precede acknowledgements, and loading, which comes after, finds it.
- A learner asks the store for its generation immediately before a file gets its name, yet it may be stopped between the
  answer and `link`. Its late file is harmless. Once a successor has its first file, the late one sorts below it and is
  no part of its lineage (`in_lineage`), so that the successor ignores it and removes it with the next checkpoint. If
  the successor died before it had one, nothing was settled either: the late file is the newest, and the episodes that
  it holds are still pending, named in it, and acknowledged by the learner that loads it.
- No learner overwrites another's file: a generation number belongs to one learner (`learner.run.lineage`), a name is
  given by `link`, which fails if the name is taken, and unfinished files have unique names.
"""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import secrets
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors.torch import save
from torch import Tensor

from actors.errors import UserError
from actors.policy.network import FactoredRecurrentActorCritic
from actors.policy.publish import from_weights, spaces_of, to_weights
from actors.policy.saved import (
    FORMAT,
    CheckpointKey,
    content_hash,
    find_checkpoint,
    read_saved,
    read_weights,
    refusing_unreadable,
)
from actors.policy.saved import list_checkpoints as list_checkpoints
from actors.transport.ledger import LedgerMemory, episode_ids
from actors.types.episode import Episode
from actors.types.weights import WeightSet
from learner.run.disk import NO_LINKS, NO_SYNC

Ancestors = tuple[CheckpointKey, ...]
"""The checkpoints that earlier generations of a lineage ended with, oldest first."""


@dataclass(frozen=True)
class LearnerProgress:
    """Counters of a run."""

    update: int = 0  # updates applied
    version: int = -1  # of the weights that these updates made; -1 = none published
    generation: int = 0
    episodes_trained: int = 0  # by all updates, abandoned ones included
    episodes_abandoned: int = 0  # of these, by updates that were rolled back
    env_steps: int = 0
    dropped_stale: int = 0
    elapsed_s: float = 0.0
    broken_updates: int = 0  # in a row up to here, whose gradients were not finite
    usual_advantage_std: float = 0.0  # of `PPOUpdate`

    def after_update(
        self, episodes: Sequence[Episode], elapsed_s: float, broken: bool, usual_advantage_std: float
    ) -> LearnerProgress:
        """Return the counters after one more update on these episodes. `broken` tells whether its gradients were not
        finite."""
        return dataclasses.replace(
            self,
            update=self.update + 1,
            version=self.version + 1,
            episodes_trained=self.episodes_trained + len(episodes),
            env_steps=self.env_steps + sum(map(len, episodes)),
            elapsed_s=elapsed_s,
            broken_updates=self.broken_updates + 1 if broken else 0,
            usual_advantage_std=usual_advantage_std,
        )


@dataclass(frozen=True)
class Checkpoint:
    progress: LearnerProgress
    consumed: tuple[str, ...]  # episode ids
    weights: WeightSet
    moments: dict[str, Tensor]
    memory: LedgerMemory | None = None  # of the store
    ancestors: Ancestors = ()


class UnreadableCheckpoint(RuntimeError):
    """A new checkpoint cannot be read back. The one before it remains the newest."""


def save_checkpoint(
    folder: Path,
    network: FactoredRecurrentActorCritic,
    optimizer: torch.optim.Optimizer,
    progress: LearnerProgress,
    consumed: tuple[str, ...],
    state_stride: int,
    keep: int,
    memory: LedgerMemory | None = None,
    ancestors: Ancestors = (),
    fence: Callable[[], None] = lambda: None,
    replace: bool = False,
) -> Path:
    """Write a checkpoint durably (see `write_checkpoint`). Then remove the oldest ones beyond `keep`, but never the
    newest sound one, and the files of fenced learners."""
    weights = to_weights(network, progress.version, progress.generation, state_stride)
    moments: dict[str, Tensor] = {}
    for name, p in network.named_parameters():
        state = optimizer.state.get(p, {})
        moments |= {f"{name}.{k}": v.detach().cpu().contiguous() for k, v in state.items()}
    checkpoint = Checkpoint(progress, consumed, weights, moments, memory, ancestors)
    path = write_checkpoint(folder, checkpoint, fence, replace)
    _prune(folder, keep, progress.generation, ancestors)
    return path


def write_checkpoint(
    folder: Path, checkpoint: Checkpoint, fence: Callable[[], None] = lambda: None, replace: bool = False
) -> Path:
    """Write, fsync, read back, call `fence` (which raises if the file must not appear), link, and fsync the folder.
    `replace` is for a file that the same learner has written for the same update. Raises `UnreadableCheckpoint`, and
    `FileExistsError` if the name is taken."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / CheckpointKey(checkpoint.progress.generation, checkpoint.progress.update).file_name

    def check(partial: Path) -> None:
        try:
            load_checkpoint(partial)
        except UserError as error:
            if not partial.exists():
                raise FileNotFoundError(f"{partial} is gone") from error  # a successor has removed it
            raise UnreadableCheckpoint(
                f"the checkpoint of update {checkpoint.progress.update} cannot be read back ({error.__cause__}): "
                "no episode of it is acknowledged; the checkpoint before it is the newest"
            ) from error
        fence()

    write_durably(path, _encode(checkpoint), check, replace)
    return path


def _encode(checkpoint: Checkpoint) -> bytes:
    weights = checkpoint.weights
    tensors = {f"network.{name}": torch.from_numpy(t) for name, t in weights.tensors.items()}
    tensors |= {f"optimizer.{name}": t for name, t in checkpoint.moments.items()}
    metadata = {
        "format": str(FORMAT),
        "progress": json.dumps(asdict(checkpoint.progress)),
        "consumed": json.dumps(checkpoint.consumed),
        "spaces_hash": weights.spaces_hash,
        "architecture": weights.architecture,
        "state_stride": str(weights.state_stride),
        "memory": json.dumps(checkpoint.memory.to_dict() if checkpoint.memory else None),
        "ancestors": json.dumps(checkpoint.ancestors),
    }
    metadata["sha256"] = content_hash({name: t.numpy() for name, t in tensors.items()}, metadata)
    return save(tensors, metadata)


def save_policy(checkpoint: Checkpoint, path: Path) -> None:
    """Write the weights alone, to act with: a checkpoint without the data that only the next update needs."""
    write_durably(path, _encode(Checkpoint(checkpoint.progress, (), checkpoint.weights, {})), replace=True)


def key_of(path: Path) -> CheckpointKey:
    """Return the key of a listed checkpoint, from its name."""
    key = CheckpointKey.parse(path.name)
    assert key is not None
    return key


def in_lineage(key: CheckpointKey, generation: int, ancestors: Sequence[CheckpointKey]) -> bool:
    """Whether a checkpoint of `generation` whose lineage is `ancestors` continues from the one named by `key`."""
    last = {ancestor.generation: ancestor.update for ancestor in ancestors}
    return key.generation == generation or key.update <= last.get(key.generation, -1)


def newest_sound(folder: Path, belongs: Callable[[CheckpointKey], bool] = lambda key: True) -> Path | None:
    """Return the newest checkpoint that `belongs` accepts and whose last update had finite gradients."""
    for path in reversed(list_checkpoints(folder)):
        key = key_of(path)
        if key.update == 0 or not belongs(key):
            continue
        if json.loads(_metadata(path)["progress"])["broken_updates"] == 0:
            return path
    return None


def _metadata(path: Path) -> dict[str, str]:
    """Read the metadata without the tensors. `safe_open` would map the whole file, and block every thread while a disk
    does not respond."""
    with path.open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    return dict(header["__metadata__"])


def _prune(folder: Path, keep: int, generation: int, ancestors: Ancestors) -> None:
    """Remove old files. Files of later generations are kept, because this learner may be the fenced one."""

    def belongs(key: CheckpointKey) -> bool:
        return in_lineage(key, generation, ancestors)

    found = list_checkpoints(folder)
    lineage = [path for path in found if belongs(key_of(path))]
    late = [path for path in found if key_of(path).generation < generation and path not in lineage]
    sound = newest_sound(folder, belongs)
    for path in [*late, *lineage[:-keep]]:
        if path != sound:
            path.unlink(missing_ok=True)
    for partial in folder.glob("*.partial"):
        key = CheckpointKey.parse(partial.name.rsplit(".", 2)[0])
        if key is not None and key.generation < generation:
            partial.unlink(missing_ok=True)


def write_durably(
    path: Path, data: bytes, check: Callable[[Path], None] = lambda partial: None, replace: bool = False
) -> None:
    """Write all of `data` to `path`, or nothing. `check` receives the file before it gets its name. Raises
    `FileExistsError` if the name is taken, unless `replace`."""
    partial = path.with_name(f"{path.name}.{secrets.token_hex(8)}.partial")
    try:
        with partial.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        check(partial)
        if replace:
            partial.replace(path)
        else:
            link(partial, path)
    finally:
        partial.unlink(missing_ok=True)  # on a full disk it would take the room that is left
    sync_folder(path.parent)


def link(partial: Path, path: Path) -> None:
    """Give a file a second name. Raises `FileExistsError` if the name is taken."""
    try:
        os.link(partial, path)
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        if path.exists():
            raise FileExistsError(errno.EEXIST, "there is a file of this name", str(path)) from error
        partial.rename(path)  # the name is this generation's, and no other learner uses it


def sync_folder(folder: Path) -> None:
    """Make names in `folder` durable, unless its file system, such as SMB or FUSE, does not support that."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in NO_SYNC:
            raise
    finally:
        os.close(descriptor)


def load_checkpoint(path: Path) -> Checkpoint:
    """Load a checkpoint file, or the newest checkpoint of a folder. Raises `UserError`."""
    path = find_checkpoint(path)
    with refusing_unreadable(path):
        weights, tensors, metadata = read_saved(path)
        moments = {
            key.removeprefix("optimizer."): torch.from_numpy(t)
            for key, t in tensors.items()
            if key.startswith("optimizer.")
        }
        known = json.loads(metadata["memory"])
        return Checkpoint(
            _progress(metadata["progress"]),
            episode_ids(json.loads(metadata["consumed"])),
            weights,
            moments,
            LedgerMemory.from_dict(known) if known else None,
            tuple(CheckpointKey(*map(int, pair)) for pair in json.loads(metadata["ancestors"])),
        )


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
    """Restore saved moments and step counters by parameter name."""
    for name, p in network.named_parameters():
        state = {k.rpartition(".")[2]: t for k, t in moments.items() if k.rpartition(".")[0] == name}
        if state:
            optimizer.state[p] = {k: t.clone().to(p.device) for k, t in state.items()}


def load_network(path: str | Path, slots: int | None = None) -> FactoredRecurrentActorCritic:
    """Load the policy of a checkpoint file or of the newest checkpoint in a run folder. It is ready to `act`. `slots`
    changes the number of slots from that of the training. Raises `UserError`."""
    weights = read_weights(Path(path))
    spaces = spaces_of(weights)
    if slots is not None and not spaces.slots:
        raise UserError(f"{path} is a policy for an environment without slots")
    return from_weights(weights, spaces=spaces.with_slots(slots) if slots is not None else spaces)
