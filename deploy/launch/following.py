"""Follow a local or remote run: show its progress and log lines, and print its outcome."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from rich.console import Console

from actors.errors import UserError
from deploy.launch.supervision.supervisor import FINISHED, Phase, RunStatus
from deploy.report.progress import ProgressDisplay


def follow(
    poll: Callable[[int], RunStatus],
    stop: threading.Event,
    console: Console,
    title: str,
    extra_notes: Callable[[], list[str]] = list,
    seen: int = 0,
    quiet: bool = False,
) -> RunStatus:
    """Show progress and notes until the run has finished or `stop` is set.

    `poll` is that of a supervisor; `extra_notes` is called with it and returns further lines to print; the first
    `seen` notes were printed before; `quiet` prints only notes.
    """
    with closing(ProgressDisplay(title, console)) as progress:
        while True:
            status = poll(seen)
            seen = status.notes_total
            for note in status.notes + extra_notes():
                progress.note(note)
            if not quiet and status.phase is Phase.TRAINING:
                progress.update(status.progress)
            if status.phase in FINISHED or stop.wait(0.25):
                return status


def write_run_report(run_dir: Path) -> tuple[str, Path]:
    """Write the report of a run. Returns its headline and the path of the page."""
    from deploy.report.page import write_report  # loads Matplotlib

    return write_report(run_dir)


def print_outcome(
    status: RunStatus, console: Console, report: Callable[[Path], tuple[str, Path]] = write_run_report
) -> int:
    """Print how the run ended. Returns the exit status; raises `UserError` if the run failed."""
    run_dir = Path(status.run_dir)
    if status.phase is Phase.FAILED:
        raise UserError(status.error)
    if status.phase is Phase.STOPPED:
        saved = "the checkpoint is written" if status.saved else "the newest checkpoint is an earlier one"
        console.print(f"stopped; {saved}. Continue with: tamiyo train --resume {run_dir}", soft_wrap=True)
        return 130
    headline, page = report(run_dir)
    console.print(f"{headline}\nreport: {page}", soft_wrap=True)
    return 0
