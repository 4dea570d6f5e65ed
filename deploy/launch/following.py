"""Following a run, wherever its supervisor lives: progress, notes, and how it ended."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Protocol
from urllib.parse import quote, urlsplit

from rich.console import Console

from actors.errors import UserError
from actors.transport.redis_server import password_from
from actors.types.names import NAME_RULE, is_name
from deploy.config.schema import Config
from deploy.launch.process_settings import acting, learner_settings
from deploy.launch.supervisor import OVER, Phase, RunPlan, RunStatus
from deploy.report.progress import Progress

ACTORS_PASSWORD_VARIABLE = "TAMIYO_ACTORS_REDIS_PASSWORD"


class RunOutcome(Protocol):
    """A supervisor, here or elsewhere."""

    def poll(self, notes_seen: int = 0) -> RunStatus: ...


def named(config: Config, run_dir: Path) -> Config:
    """With its folder's name, where it has none: what keeps it apart on a server and on a cluster."""
    folder = run_dir.absolute().name
    if not is_name(folder):  # it becomes part of every episode's id
        raise UserError(f"the run's folder is named {folder!r}: rename it to {NAME_RULE}")
    return replace(config, run=replace(config.run, name=config.run.name or folder))


def plan(config: Config, run_dir: Path, redis: str) -> RunPlan:
    learner = learner_settings(config, run_dir.resolve(), redis)
    for_actors = with_password(config.run.actors_redis, ACTORS_PASSWORD_VARIABLE) or redis
    return RunPlan(run_dir.absolute().name, acting(config), learner, config.run.reference_episodes, for_actors)


def with_password(url: str, variable: str) -> str:
    """The url with the password that the environment has for it, as processes without that environment need it."""
    parts, password = urlsplit(url), password_from(variable)
    if not url or parts.password or not password:
        return url
    user, _, place = parts.netloc.rpartition("@")
    return parts._replace(netloc=f"{user}:{quote(password, safe='')}@{place}").geturl()


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
        written = "the checkpoint is written" if status.saved else "the newest checkpoint is an earlier one"
        console.print(f"stopped; {written}. Go on with: tamiyo train --resume {run_dir}", soft_wrap=True)
        return 130
    headline, page = report(run_dir)
    console.print(headline, soft_wrap=True)
    console.print(f"report: {page}", soft_wrap=True)
    return 0
