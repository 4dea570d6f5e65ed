"""A learner in a forked process that records its updates, and can suspend or kill itself at a given point."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from actors.errors import UserError
from actors.transport import redis_server
from actors.transport.base import Fenced
from actors.transport.redis import Transport, connect
from actors.transport.retry import Retry
from learner.run import checkpoint as checkpoint_module
from learner.run.checkpoint import list_checkpoints
from learner.train import Learner
from tests.support.learning.toy_learner import make_learner

BATCH = 4
FENCED, BROKEN = 3, 4  # exit statuses


def hash_of(tensors: Mapping[str, NDArray[Any]]) -> str:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(name.encode() + tensors[name].tobytes())
    return digest.hexdigest()


def weights_hash(learner: Learner) -> str:
    return hash_of({name: tensor.numpy() for name, tensor in learner.network.state_dict().items()})


POINTS: dict[str, Callable[[Learner], tuple[Any, str, bool]]] = {
    "claimed in the folder": lambda learner: (learner.transport, "claim_generation", False),
    "claimed in the store": lambda learner: (learner.transport, "claim_generation", True),
    "loaded": lambda learner: (learner.state.lineage, "newest", True),
    "before it opens": lambda learner: (learner.transport, "open_generation", False),
    "opened": lambda learner: (learner.transport, "open_generation", True),
    "recovered": lambda learner: (learner.intake, "recover", True),
    "taken": lambda learner: (learner.transport, "take", True),
    "updated": lambda learner: (learner, "_update", True),
    "before it asks for the fence": lambda learner: (learner.state.lineage, "fence", False),
    "before the link": lambda learner: (checkpoint_module, "link", False),
    "after the link": lambda learner: (checkpoint_module, "link", True),
    "before it removes old files": lambda learner: (checkpoint_module, "_prune", False),
    "before it acknowledges": lambda learner: (learner.transport, "ack", False),
    "acknowledged": lambda learner: (learner.transport, "ack", True),
    "published": lambda learner: (learner.transport, "publish", True),
}
"""Where a learner can be suspended or killed: the object, the name of its method, and whether after the call."""


@dataclass(frozen=True)
class Fault:
    """What a learner does to itself: it sends itself the signal `action` at the nth call of `point`."""

    point: str
    nth: int
    action: signal.Signals


def prepare(learner: Learner, fault: Fault, action: Callable[[], None]) -> None:
    """Run `action` at the nth call of the fault's point. After a call, only one that returned anything counts."""
    subject, name, late = POINTS[fault.point](learner)
    original, left = getattr(subject, name), [fault.nth]

    def count() -> None:
        left[0] -= 1
        if left[0] == 0:
            action()

    def wrapped(*args: Any, **options: Any) -> Any:
        if not late:
            count()
        result = original(*args, **options)
        if late and result != []:
            count()
        return result

    setattr(subject, name, wrapped)


@dataclass
class LearnerProcess:
    """A learner's process, as its parent sees it."""

    pid: int
    cable: int
    stopped: bool = False
    status: int | None = None

    @property
    def was_killed(self) -> bool:
        return self.status is not None and os.WIFSIGNALED(self.status)


def train(
    url: str, socket: Path, namespace: str, folder: Path, number: int, fault: Fault | None, changes: dict[str, Any]
) -> int:
    """Train in the run of `folder` until its file `stop` exists, over the connection at `socket`.

    Returns the exit status. Appends each update to `applied.jsonl`; `number` identifies the learner in it.
    """
    redis_server.SOCKET_TIMEOUT_S = 1.0
    password = url.split("@")[0].rpartition(":")[2]
    address = f"unix://:{password}@{socket}"
    try:
        transport = Retry()(lambda: connect(address, None, namespace))
        learner = _learner(folder / "run", transport, changes)
        update = learner._update

        def recorded(episodes: Any, elapsed_s: float) -> dict[str, float]:
            row = {"before": weights_hash(learner), "ids": [e.episode_id for e in episodes]}
            metrics = update(episodes, elapsed_s)
            row |= {"after": weights_hash(learner), "update": learner.progress.update}
            row |= {"learner": number, "generation": learner.progress.generation}
            with (folder / "applied.jsonl").open("a") as file:
                file.write(json.dumps(row) + "\n")
            return metrics

        learner._update = recorded
        if fault is not None:

            def fail() -> None:
                (folder / f"fault{number}").write_text(f"{fault.action.name} at: {fault.point}")
                os.kill(os.getpid(), fault.action)

            prepare(learner, fault, fail)
        learner.run((folder / "stop").exists)
    except Fenced:
        return FENCED
    except BaseException:
        (folder / f"broken{number}").write_text(traceback.format_exc())
        return BROKEN
    return 0


def _learner(run_dir: Path, transport: Transport, changes: dict[str, Any]) -> Learner:
    resume = bool(list_checkpoints(run_dir / "checkpoints"))
    with suppress(UserError):  # the checkpoint was removed meanwhile: start without it
        return make_learner(run_dir, transport, resume, updates=10**6, batch_episodes=BATCH, **changes)
    return make_learner(run_dir, transport, updates=10**6, batch_episodes=BATCH, **changes)
