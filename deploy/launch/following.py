"""Following a run, wherever its supervisor lives: progress, notes, and how it ended."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from rich.console import Console

from actors.errors import UserError
from deploy.config.schema import Config
from deploy.launch.run import acting, learner_settings
from deploy.launch.supervisor import OVER, Phase, RunPlan, RunStatus
from deploy.report.progress import Progress


class RunOutcome(Protocol):
    """A supervisor, here or elsewhere."""

    def poll(self, notes_seen: int = 0) -> RunStatus: ...


def named(config: Config, run_dir: Path) -> Config:
    """With its folder's name, where it has none: what keeps it apart on a server and on a cluster."""
    return replace(config, run=replace(config.run, name=config.run.name or run_dir.name))


def plan(config: Config, run_dir: Path, redis: str) -> RunPlan:
    learner = learner_settings(config, run_dir.resolve(), redis)
    return RunPlan(run_dir.name, acting(config), learner, config.run.reference_episodes)


def follow(
    run: RunOutcome,
    stop: threading.Event,
    console: Console,
    title: str,
    each_look: Callable[[], list[str]] = list,
    quiet: bool = False,
) -> RunStatus:
    """Show the run until it is over, or until `stop`."""
    seen = 0
    with Progress(title, console) as progress:
        while True:
            status = run.poll(seen)
            seen = status.noted
            for note in status.notes + each_look():
                progress.note(note)
            if not quiet and status.phase is Phase.TRAINING:
                progress.update(status.snapshot)
            if status.phase in OVER or stop.wait(0.25):
                return status


def write_and_tell(run_dir: Path) -> tuple[str, Path]:
    """The report of a run: its headline, and its page."""
    from deploy.report.page import headline, write_report

    page = write_report(run_dir)
    return headline(run_dir), page


def conclude(status: RunStatus, console: Console, report: Callable[[Path], tuple[str, Path]] = write_and_tell) -> int:
    """Say how it ended; returns the exit status. Raises `UserError` for a run that failed."""
    run_dir = Path(status.run_dir)
    if status.phase is Phase.FAILED:
        raise UserError(status.error)
    if status.phase is Phase.STOPPED:
        console.print(
            f"stopped; the checkpoint is written. Go on with: tamiyo train --resume {run_dir}", soft_wrap=True
        )
        return 130
    headline, page = report(run_dir)
    console.print(headline, soft_wrap=True)
    console.print(f"report: {page}", soft_wrap=True)
    return 0
