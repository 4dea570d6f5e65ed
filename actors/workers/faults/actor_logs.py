"""`ActorLogs`: a file for each actor with what its environments print, and with the tracebacks of its failures."""

from __future__ import annotations

import os
import shutil
import socket
import sys
import time
from contextlib import suppress
from pathlib import Path

LIMIT_BYTES = 16 * 2**20  # of a file, beside one of the same size with what came before
CHECK_INTERVAL_S = 2.0
TAIL_LINES = 12
START = "--- "  # begins the line that each process of an actor writes first
CRASH = "Fatal Python error"  # begins the report of Python's fault handler


def log_path(folder: str, name: str) -> Path:
    """Return the path of an actor's log in the run folder `folder`."""
    return Path(folder) / "actors" / f"{name}.log"


def redirect_output(path: Path) -> None:
    """Append to a file, from now on, what this process and those that it starts print, and why Python crashes."""
    try:
        path.parent.mkdir(exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    except OSError:  # the run folder is not on this machine, or cannot be written to
        return
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
        os.dup2(descriptor, stream.fileno())
    os.close(descriptor)
    began = time.strftime("%Y-%m-%d %H:%M:%S")
    sys.stdout.write(f"{START}{path.stem}, process {os.getpid()} on {socket.gethostname()}, {began}\n")


class ActorLogs:
    """The logs of a pool's actors in the run folder. Without a folder there are none."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._checked_at_s = time.monotonic()

    def path(self, name: str) -> Path | None:
        """Return the path of an actor's log, or None if there is none."""
        path = log_path(self._folder, name)
        return path if self._folder and path.exists() else None

    def append(self, name: str, text: str) -> None:
        """Append lines to an actor's log."""
        if not self._folder:
            return
        with suppress(OSError):
            path = log_path(self._folder, name)
            path.parent.mkdir(exist_ok=True)
            with path.open("a", encoding="utf-8", errors="backslashreplace") as log:
                log.write(text)

    def tail(self, name: str) -> str:
        """Return the last lines that an actor's last process printed, or why Python crashed; "" if there are none."""
        path = self.path(name)
        if path is None:
            return ""
        with path.open("rb") as log:
            log.seek(max(0, path.stat().st_size - 2**14))
            lines = log.read().decode(errors="replace").splitlines()
        start = max((k + 1 for k, line in enumerate(lines) if line.startswith(START)), default=0)
        crash = next((k for k in range(start, len(lines)) if lines[k].startswith(CRASH)), None)
        return "\n".join(lines[start:][-TAIL_LINES:] if crash is None else lines[crash:][:TAIL_LINES])

    def limit(self) -> None:
        """Move the contents of files that exceed `LIMIT_BYTES` to another file, which replaces the one before."""
        if not self._folder or time.monotonic() < self._checked_at_s + CHECK_INTERVAL_S:
            return
        self._checked_at_s = time.monotonic()
        for path in (Path(self._folder) / "actors").glob("*.log"):
            with suppress(OSError):
                if path.stat().st_size > LIMIT_BYTES:
                    shutil.copyfile(path, path.with_suffix(".log.1"))
                    os.truncate(path, 0)  # processes that write to it have it open
