"""`WeightCache`: weights that all processes of this user on this machine share, in the memory at /dev/shm.

The learner adds what it publishes. On other machines, the first process that needs a version reads it from the store
and checks its sha256. The others read the file, whose name is that hash. So a version crosses the network once per
machine and is hashed once. Without a usable /dev/shm, each process reads the store.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import secrets
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")
KEPT = 2  # files per namespace: the newest version, and the one before it, which may be about to be read
MAX_SHARE = 0.1  # of the free memory there that a payload may take
WAIT_S = 1.0  # longest wait for another process that is reading the store
POLL_S = 0.002


class WeightCache:
    """The cache of one namespace. `folder` is created if it is missing; it must belong to this user alone."""

    def __init__(self, namespace: str, folder: Path | None = None) -> None:
        self._namespace = namespace
        self._folder = folder or SHARED_MEMORY / f"tamiyo-weights-{os.getuid()}"
        self._lock_path = self._folder / f"{namespace}.lock"
        self._used = False

    def payload(self, sha256: str, read_store: Callable[[], bytes | None]) -> tuple[bytes | None, bool]:
        """Return the payload with this hash, and whether a process of this machine has checked the hash.

        `read_store` reads the payload from the store; its result is returned unchecked if it has another hash, or if
        there is no usable folder.
        """
        if not self._is_usable():
            return read_store(), False
        path = self._path(sha256)
        with self._turn(path):
            with suppress(OSError):
                return path.read_bytes(), True
            payload = read_store()
            if payload is None or hashlib.sha256(payload).hexdigest() != sha256:
                return payload, False
            self._write(path, payload)
            return payload, True

    def add(self, sha256: str, payload: bytes) -> None:
        """Keep a payload that this process has made, for the others on this machine."""
        if self._is_usable():
            self._write(self._path(sha256), payload)

    def clear(self) -> None:
        """Remove the files of this namespace if this process used them; other processes read the store again."""
        if self._used:
            for path in (*self._files(), self._lock_path):
                path.unlink(missing_ok=True)

    def _path(self, sha256: str) -> Path:
        return self._folder / f"{self._namespace}~{sha256}"

    def _is_usable(self) -> bool:
        """Whether nobody else can write to the folder, which is used from then on."""
        try:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            status = self._folder.lstat()
        except OSError:
            return False
        private = status.st_uid == os.getuid() and not stat.S_IMODE(status.st_mode) & 0o077
        usable = stat.S_ISDIR(status.st_mode) and private
        self._used |= usable
        return usable

    @contextmanager
    def _turn(self, path: Path) -> Iterator[None]:
        """Wait until `path` exists or no other process is about to create it, at most `WAIT_S`."""
        lock = -1
        try:
            deadline = time.monotonic() + WAIT_S
            while not path.exists() and time.monotonic() < deadline:
                if lock < 0:
                    lock = os.open(self._lock_path, os.O_CREAT | os.O_RDWR, 0o600)
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    time.sleep(POLL_S)
            yield
        finally:
            if lock >= 0:
                os.close(lock)  # releases it, as the death of the process does

    def _write(self, path: Path, payload: bytes) -> None:
        """Create the file at once under its name if there is memory for it, and remove the oldest of the namespace."""
        partial = self._folder / f"{self._namespace}~{secrets.token_hex(8)}.partial"
        try:
            memory = os.statvfs(self._folder)
            if len(payload) > MAX_SHARE * memory.f_bavail * memory.f_frsize:
                return
            with open(os.open(partial, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file:
                file.write(payload)
            partial.rename(path)
        except OSError:
            partial.unlink(missing_ok=True)
            return
        for old in self._files()[KEPT:]:
            old.unlink(missing_ok=True)

    def _files(self) -> list[Path]:
        """The files of this namespace, newest first."""
        found = []
        for path in self._folder.glob(f"{self._namespace}~*"):
            with suppress(OSError):
                found.append((path.stat().st_mtime_ns, path))
        return [path for _, path in sorted(found, reverse=True)]
