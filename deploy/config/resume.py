"""The argument of `--resume`: a run folder, or one of its checkpoints to roll back to."""

from __future__ import annotations

from pathlib import Path

from actors.errors import UserError


def resumed_folder(resume: Path) -> Path:
    """Return the run folder that `resume` refers to. Raises `UserError` if it does not exist."""
    if resume.is_file():
        if resume.absolute().parent.name != "checkpoints":
            raise UserError(
                f"cannot resume: {resume} is not in the checkpoints folder of a run; give a run folder or one of its "
                "checkpoints, or start a new run from these weights with --init-from"
            )
        return resume.absolute().parent.parent
    if not resume.is_dir():
        raise UserError(f"cannot resume: run folder {resume} does not exist")
    return resume
