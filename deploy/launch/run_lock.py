"""`run_lock`: a run folder belongs to one command of this machine."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from actors.errors import UserError


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
