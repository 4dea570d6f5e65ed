"""What `--resume` names: a run by its folder, or one of its checkpoints to go back to."""

from __future__ import annotations

from pathlib import Path

from actors.errors import UserError


def resumed_folder(resume: Path) -> Path:
    """The run's folder. Raises `UserError`."""
    if resume.is_file():
        if resume.absolute().parent.name != "checkpoints":
            raise UserError(
                f"cannot resume: {resume} is not in the checkpoints folder of a run; give a run's folder or one of its "
                "own checkpoints, or start a new run from these weights with --init-from"
            )
        return resume.absolute().parent.parent
    if not resume.is_dir():
        raise UserError(f"cannot resume: there is no run folder {resume}")
    return resume
