"""`ActorFailure`: an error in an actor; `ActorReports`: tells the user, on the terminal and in the actors' logs."""

from __future__ import annotations

import traceback
from collections.abc import Callable

from ray.exceptions import RayTaskError

from actors.gym.frames import own_frames
from actors.workers.faults.actor_logs import ActorLogs


class ActorFailure(Exception):
    """Consists of strings, because the class of a user's error may not exist elsewhere, or not survive pickling.

    Its message is the error's type and message on one line. `frames` are those of the environment, "" if there are
    none; `trace` is the whole traceback.
    """

    def __init__(self, message: str, frames: str, trace: str) -> None:
        super().__init__(message, frames, trace)
        self.message, self.frames, self.trace = message, frames, trace

    def __str__(self) -> str:
        return self.message

    @classmethod
    def from_error(cls, error: BaseException) -> ActorFailure:
        """Describe an error."""
        # AsyncVectorEnv raises TYPE(error) for an error in one of its processes, whose frames are a note.
        inner = bool(error.args) and type(error.args[0]) is type(error)
        origin = error.args[0] if inner else error
        frames = "\n".join(getattr(origin, "__notes__", [])) if inner else own_frames(error)
        message = " ".join(f"{type(origin).__name__}: {origin}".split()).removesuffix(":")
        trace = "".join(traceback.format_exception(error))
        return cls(message, frames, trace if frames in trace else f"{trace}{frames}\n")


class ActorReports:
    """Prints lines by `warn`; those of `once`, which may be many, only the first time."""

    def __init__(self, logs: ActorLogs, warn: Callable[[str], None]) -> None:
        self.logs, self.warn = logs, warn
        self._told: set[str] = set()

    def once(self, lines: str) -> None:
        """Print lines that have not been printed yet."""
        if lines and lines not in self._told:
            self._told.add(lines)
            self.warn(lines)

    def failed(self, name: str, error: RayTaskError) -> str:
        """Tell that an actor failed, in which frames of its environment, and where the whole traceback is: in its log,
        or, without a log, on the terminal. Returns the cause as one line."""
        failure = error.cause if isinstance(error.cause, ActorFailure) else None
        trace = failure.trace if failure else error.traceback_str
        self.logs.append(name, trace)
        path = self.logs.path(name)
        found = last_line(error) + (f"; the traceback is in {path}" if path else "")
        self.warn(f"{name} failed ({found})")
        self.once(failure.frames if failure and path else trace)
        return found


def last_line(error: BaseException) -> str:
    """Return type and message of an error that carries a remote traceback, on one line."""
    cause = getattr(error, "cause", None)
    if isinstance(cause, ActorFailure):
        return str(cause)
    if isinstance(cause, BaseException):
        return " ".join(f"{type(cause).__name__}: {cause}".split())
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[-1].strip() if lines else type(error).__name__
