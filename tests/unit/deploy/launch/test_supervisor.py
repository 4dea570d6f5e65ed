"""The end of a run whose folder can no longer be written."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path
from typing import Any

from deploy.launch.supervision.supervisor import Phase, Supervisor


def raise_full() -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_run_ends_whose_error_cannot_be_written(tmp_path: Path) -> None:
    """Otherwise a command that follows the run would never learn that it has ended."""
    supervisor: Any = object.__new__(Supervisor)
    supervisor._run_dir = tmp_path / "gone"
    supervisor._train, supervisor.trained = raise_full, threading.Event()
    supervisor._run()
    assert supervisor._phase is Phase.FAILED
    assert "No space left" in supervisor._error
    assert "error.txt cannot be written either" in supervisor._error
    assert supervisor.trained.is_set()  # the thread that waits for the end of the training continues
