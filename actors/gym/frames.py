"""Frames of a stack that belong to the user's environment rather than to this package or Gymnasium."""

from __future__ import annotations

import os
import traceback
from pathlib import Path
from traceback import FrameSummary
from types import FrameType

import gymnasium

PACKAGE = str(Path(__file__).parents[1]) + os.sep
INTERNAL = (PACKAGE, str(Path(gymnasium.__file__).parent) + os.sep)


def own_frames(error: BaseException) -> str:
    """Return the frames of an error's traceback that belong to the environment, or "" if there are none."""
    frames = traceback.extract_tb(error.__traceback__)
    return _formatted([frame for frame in frames if not frame.filename.startswith(INTERNAL)])


def current_frames(frame: FrameType) -> str:
    """Return the frames of a running thread that belong to the environment, or the last one if there are none."""
    frames = traceback.extract_stack(frame)
    ours = [k for k, frame in enumerate(frames) if frame.filename.startswith(PACKAGE)]
    inner = frames[ours[-1] :] if ours else frames
    return _formatted([frame for frame in inner if not frame.filename.startswith(INTERNAL)] or inner[-1:])


def _formatted(frames: list[FrameSummary]) -> str:
    return "".join(traceback.format_list(frames)).rstrip()
