"""A run has one learner: its folder is locked, and a learner that already trains it elsewhere is detected."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from actors.errors import UserError
from actors.transport.redis import Transport, connect, require_store
from deploy.config.schema import Config

MIN_WATCH_S = 1.5  # a learner that waits for episodes polls every half second
MAX_WATCH_S = 20.0


@contextmanager
def run_lock(run_dir: Path) -> Iterator[None]:
    """Hold a run folder while the context is open. Raises `UserError` if another process of this machine holds it.

    Embedded servers do not know of each other, so that the store does not tell. Where folders cannot be locked, as on
    NFS, a second learner still supersedes the first (see `learner.run.lineage`).
    """
    folder = os.open(run_dir, os.O_RDONLY)
    try:
        with suppress(OSError):
            try:
                fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise UserError(
                    f"another process of this machine trains in {run_dir}: stop it first, or start a run with another "
                    "--run.name"
                ) from error
        yield
    finally:
        os.close(folder)


def require_free_store(config: Config, run: str) -> None:
    """Raise `UserError` if the server cannot be used, or if another learner is training this run on it."""
    require_store(config.run.redis, config.queue, run)
    with closing(connect(config.run.redis, config.queue, run)) as transport:
        refuse_second_learner(transport, run)


def refuse_second_learner(consumer: Transport, run: str) -> None:
    """Raise `UserError` if another learner is training this run.

    A live learner increments `turn` in the ledger with each poll. The ledger is watched for longer than the learner's
    last update took, because a learner does not poll during an update.
    """
    before = consumer.ledger().turn
    if not before:
        return
    health = consumer.health().learner
    busy_s = health.get("update_s", 0.0) + health.get("checkpoint_s", 0.0)
    deadline = time.monotonic() + min(MAX_WATCH_S, MIN_WATCH_S + 2.0 * busy_s)
    while time.monotonic() < deadline:
        time.sleep(0.1)
        if consumer.ledger().turn != before:
            raise UserError(
                f"a learner is training run {run!r} already, and a run has only one: stop it first, or give this run "
                "another --run.name"
            )
