"""Handles full disks, which are reported once and waited for, and file systems without hard links."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from actors.errors import UserError
from actors.transport.retry import Backoff

T = TypeVar("T")
FULL = (errno.ENOSPC, errno.EDQUOT)
READ_ONLY = (errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO)
NO_LINKS = (errno.EPERM, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)  # of file systems without hard links
NO_SYNC = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)  # of those that cannot sync folders


@contextmanager
def unwritable_reported(folder: Path) -> Iterator[None]:
    """Raise `UserError` if a file cannot be written because of its file system or its permissions."""
    try:
        yield
    except OSError as error:
        if error.errno not in READ_ONLY:
            raise
        raise UserError(
            f"cannot write to the run folder {folder} ({error.strerror}): make it writable for this user, then "
            "continue with --resume"
        ) from error


def until_there_is_room(
    write: Callable[[], T], folder: Path, tell: Callable[[str], None], stop: Callable[[], bool]
) -> T:
    """Return `write()`, repeating it while the disk is full. Raises `UserError` if `stop` ends the wait."""
    backoff = Backoff(0.25, 5.0)
    while True:
        try:
            result = write()
        except OSError as error:
            if error.errno not in FULL:
                raise
            trouble = f"no space left on the disk of {folder}"
            if not backoff.failures:
                tell(f"{trouble}: training waits until there is space")
            wait_until = time.monotonic() + backoff.fail()
            while time.monotonic() < wait_until:
                if stop():
                    raise UserError(
                        f"{trouble}, and the last update could not be written: free some space, then continue "
                        "with --resume"
                    ) from error
                time.sleep(0.05)
            continue
        if backoff.failures:
            tell("the disk has space again; training continues")
        return result
