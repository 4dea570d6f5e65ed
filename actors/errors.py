"""Errors that are shown to the user: one line that says what was wrong and what to do."""

from __future__ import annotations

import sysconfig
import traceback


class UserError(Exception):
    """Bad input or a missing service. Entry points print only the message and exit with status 2."""


def described(error: BaseException) -> str:
    """Return type and message of an error in a user's code, and where it arose, on one line."""
    what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    if isinstance(error, SystemExit):
        what = f"it called sys.exit({error.code!r})"
    library = sysconfig.get_path("stdlib")
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)[1:]  # without the caller, which has caught it
        if not frame.filename.startswith((library, "<")) and "site-packages" not in frame.filename
    ]
    return " ".join((f"{what} ({frames[-1].filename}, line {frames[-1].lineno})" if frames else what).split())
