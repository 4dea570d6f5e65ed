"""Wrap a function so that a process kills itself, or does something else, before or after one of its calls."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

Call = Callable[..., Any]


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def before(original: Call, nth: int, action: Callable[[], None] = die) -> Call:
    """Wrap a function so that `action` runs before its nth call."""
    left = [nth]

    def wrapped(*args: Any, **options: Any) -> Any:
        left[0] -= 1
        if left[0] == 0:
            action()
        return original(*args, **options)

    return wrapped


def after(original: Call, nth: int, action: Callable[[], None] = die) -> Call:
    """Wrap a function so that `action` runs after its nth call that returned anything but an empty list."""
    left = [nth]

    def wrapped(*args: Any, **options: Any) -> Any:
        result = original(*args, **options)
        counts = result != []
        left[0] -= counts
        if counts and left[0] == 0:
            action()
        return result

    return wrapped
