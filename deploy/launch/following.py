"""Follow a local or remote run: show its progress and log lines, and print its outcome."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Protocol
from urllib.parse import quote, urlsplit

from rich.console import Console

from actors.errors import UserError
from actors.transport.redis_server import password_from
from deploy.config.schema import Config
from deploy.launch.process_settings import acting, learner_settings
from deploy.launch.supervision.supervisor import FINISHED, Phase, RunPlan, RunStatus
from deploy.report.progress import ProgressDisplay

ACTORS_PASSWORD_VARIABLE = "TAMIYO_ACTORS_REDIS_PASSWORD"


class PollableRun(Protocol):
    """A local or remote supervisor."""

    def poll(self, notes_seen: int = 0) -> RunStatus: ...


def make_run_plan(config: Config, run_dir: Path, redis: str) -> RunPlan:
    """Collect everything that the supervisor of a run needs."""
    learner = learner_settings(config, run_dir.resolve(), redis)
    for_actors = with_password(config.run.actors_redis, ACTORS_PASSWORD_VARIABLE) or redis
    return RunPlan(
        run_dir.absolute().name,
        acting(config),
        learner,
        config.run.reference_episodes,
        for_actors,
        bool(config.external.spaces),
        bool(config.run.address),
    )


def with_password(url: str, variable: str) -> str:
    """Insert the password from an environment variable into `url`, for processes without that variable."""
    parts, password = urlsplit(url), password_from(variable)
    if not url or parts.password or not password:
        return url
    user, _, host = parts.netloc.rpartition("@")
    return parts._replace(netloc=f"{user}:{quote(password, safe='')}@{host}").geturl()


def follow(
    run: PollableRun,
    stop: threading.Event,
    console: Console,
    title: str,
    extra_notes: Callable[[], list[str]] = list,
    quiet: bool = False,
) -> RunStatus:
    """Show progress and notes until the run has finished or `stop` is set.

    `extra_notes` is called on each poll and returns further lines to print; `quiet` prints only notes.
    """
    seen = 0
    with ProgressDisplay(title, console) as progress:
        while True:
            status = run.poll(seen)
            seen = status.notes_total
            for note in status.notes + extra_notes():
                progress.note(note)
            if not quiet and status.phase is Phase.TRAINING:
                progress.update(status.snapshot)
            if status.phase in FINISHED or stop.wait(0.25):
                return status


def write_run_report(run_dir: Path) -> tuple[str, Path]:
    """Write the report of a run. Returns its headline and the path of the page."""
    from deploy.report.page import headline, write_report

    page = write_report(run_dir)
    return headline(run_dir), page


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
    console.print(headline, soft_wrap=True)
    console.print(f"report: {page}", soft_wrap=True)
    return 0
