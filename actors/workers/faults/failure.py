"""`ActorFailure`: an error in an actor, with the frames in which the user finds its cause."""

from __future__ import annotations

import traceback

from actors.gym.frames import own_frames


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
    def of(cls, error: BaseException) -> ActorFailure:
        """Describe an error."""
        # AsyncVectorEnv raises TYPE(error) for an error in one of its processes, whose frames are a note.
        inner = bool(error.args) and type(error.args[0]) is type(error)
        origin = error.args[0] if inner else error
        frames = "\n".join(getattr(origin, "__notes__", [])) if inner else own_frames(error)
        message = " ".join(f"{type(origin).__name__}: {origin}".split()).removesuffix(":")
        trace = "".join(traceback.format_exception(error))
        return cls(message, frames, trace if frames in trace else f"{trace}{frames}\n")
