"""`tamiyo grow SCRIPT`: run a training script with a policy, and print the decisions as a timeline."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from math import nan
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from actors.env.episode.timeline import Timeline
from actors.errors import UserError
from actors.growth.controller import LOG_VARIABLE
from actors.growth.decision import Decision, read_log
from actors.growth.policy_advisor import ADDRESS_VARIABLE, find_policy
from deploy.commands.rollout import check_picture, draw, timeline_table


def grow(
    script: Path, arguments: list[str], policy: str | None, picture: Path | None = None, console: Console | None = None
) -> int:
    """Run the script and return its exit status; with a picture, run it again without growth, for comparison.

    Raises `UserError` if the script is missing or makes no decision, or if the policy answers none.
    """
    check_picture(picture)
    if not script.is_file():
        raise UserError(f"script {script} does not exist: give a Python file that creates a tamiyo.GrowthController")
    if policy:
        find_policy(policy, policy)  # refuses what is no policy before the script runs
        policy = str(Path(policy).absolute()) if Path(policy).exists() else policy
    status, decisions = _run(script, arguments, policy)
    if status == 0 and not decisions:
        raise UserError(f"{script} made no decision: it must create a tamiyo.GrowthController and call its step()")
    if decisions:
        _show(decisions, console or Console(highlight=False))
    if status == 0 and not any(d.asked for d in decisions):
        raise UserError(f"the policy answered none of {len(decisions)} decisions ({decisions[-1].reason})")
    if status == 0 and picture is not None:
        alone = _run(script, arguments, "never")[1]
        # The last decision comes after all training; its accuracy ends the last epoch.
        episode = replace(
            timeline(decisions[:-1]), task=" ".join([script.name, *arguments]), accuracy=points(decisions)
        )
        draw(episode, points(alone), picture)
    return status


def _run(script: Path, arguments: list[str], policy: str | None) -> tuple[int, list[Decision]]:
    """Run the script with the policy. Returns its exit status and its decisions."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "decisions.jsonl"
        environment = os.environ | {LOG_VARIABLE: str(log)} | ({ADDRESS_VARIABLE: policy} if policy else {})
        ended = subprocess.run([sys.executable, str(script), *arguments], env=environment, check=False)
        return ended.returncode, read_log(log) if log.is_file() else []


def _show(decisions: list[Decision], console: Console) -> None:
    last = decisions[-1]
    accuracy = "" if last.accuracy is None else f"accuracy {last.accuracy:.1f}   "
    answered = sum(bool(d.asked) for d in decisions)
    console.width = max(console.width, 66 + 42 * len(last.slots))
    console.print(
        Text.assemble(
            (f"{len(decisions)} decisions, {answered} by the policy   ", "dim"),
            (f"loss {last.loss:.3f}   {accuracy}", "bold"),
            (f"{last.added_params} parameters grown   doublings {last.doublings:.2f}, ", "dim"),
            (f"of compute {last.compute_doublings:.2f}", "dim"),
        )
    )
    console.print(timeline_table(timeline(decisions), last.slots))


def points(decisions: list[Decision]) -> list[float]:
    """Return the accuracy in percent, or the metric in points, at each decision."""
    return [nan if d.accuracy is None else d.accuracy for d in decisions]


def timeline(decisions: list[Decision]) -> Timeline:
    """Convert decisions to a timeline: one step per decision, with the accuracy at that time."""
    slots = decisions[0].slots
    columns = ("stages", "alphas", "blueprints", "contributions", "gradient_health")
    by_slot: dict[str, Any] = {
        name: [[getattr(d, name)[s] for d in decisions] for s in range(len(slots))] for name in columns
    }
    return Timeline(
        task="",
        seed=0,
        horizon=len(decisions),
        kinds=["STREAM"] * len(slots),
        names=list(slots),
        accuracy=[nan, *points(decisions)],
        host_width=0,
        points_per_doubling=nan,
        points_per_compute_doubling=0.0,
        ops=[d.op for d in decisions],
        op_slots=[slots.index(d.slot) if d.op != "WAIT" else -1 for d in decisions],
        doublings=[d.doublings for d in decisions],
        compute_doublings=[d.compute_doublings for d in decisions],
        **by_slot,
    )
