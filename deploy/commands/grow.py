"""`tamiyo grow SCRIPT`: run a training script next to a policy server, and print the decisions as a timeline."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from math import nan
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from actors.env.episode.timeline import Timeline
from actors.errors import UserError
from actors.growth.controller import LOG_VARIABLE
from actors.growth.decision import Decision, read_log
from actors.growth.policy_advisor import ADDRESS_VARIABLE
from actors.policy.saved import read_weights
from actors.rules.names import is_rule
from actors.serving.options import ServeOptions
from actors.serving.server.models import ServedRule
from actors.serving.server.server import serve_in_thread
from deploy.commands.rollout import timeline_table
from deploy.launch.server_log import configure_log


def grow(script: Path, arguments: list[str], policy: str | None, console: Console | None = None) -> int:
    """Run the script and return its exit status. Raises `UserError` if it is missing or makes no decision, or if the
    policy answers none."""
    if not script.is_file():
        raise UserError(f"script {script} does not exist: give a Python file that creates a tamiyo.GrowthController")
    with tempfile.TemporaryDirectory() as folder, _served(policy) if policy else nullcontext("") as address:
        log = Path(folder) / "decisions.jsonl"
        environment = os.environ | {LOG_VARIABLE: str(log)} | ({ADDRESS_VARIABLE: address} if address else {})
        ended = subprocess.run([sys.executable, str(script), *arguments], env=environment, check=False)
        decisions = read_log(log) if log.is_file() else []
    if ended.returncode == 0 and not decisions:
        raise UserError(f"{script} made no decision: it must create a tamiyo.GrowthController and call its step()")
    if decisions:
        _show(decisions, console or Console(highlight=False))
    if ended.returncode == 0 and not any(d.asked for d in decisions):
        raise UserError(f"the policy answered none of {len(decisions)} decisions ({decisions[-1].reason})")
    return ended.returncode


@contextmanager
def _served(policy: str) -> Iterator[str]:
    """Serve a checkpoint or a rule while the context is open. Yields the address of the server."""
    named = is_rule(policy) and not Path(policy).exists()
    source = ServedRule(policy) if named else read_weights(Path(policy))
    configure_log("text", logging.WARNING)
    with serve_in_thread(ServeOptions(listen="127.0.0.1:0", max_sessions=8), source) as running:
        yield running.address


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


def timeline(decisions: list[Decision]) -> Timeline:
    """Convert decisions to a timeline: one step per decision, with the accuracy at that time."""
    slots = decisions[0].slots
    columns = ("stages", "alphas", "blueprints", "contributions", "gradient_health")
    by_slot: dict[str, Any] = {
        name: [[getattr(d, name)[s] for d in decisions] for s in range(len(slots))] for name in columns
    }
    points = [nan if d.accuracy is None else d.accuracy for d in decisions]
    return Timeline(
        task="",
        seed=0,
        horizon=len(decisions),
        kinds=["STREAM"] * len(slots),  # their names say where they are
        accuracy=[nan, *points],
        host_width=0,
        points_per_doubling=nan,
        points_per_compute_doubling=0.0,
        ops=[d.op for d in decisions],
        op_slots=[slots.index(d.slot) if d.op != "WAIT" else -1 for d in decisions],
        doublings=[d.doublings for d in decisions],
        compute_doublings=[d.compute_doublings for d in decisions],
        **by_slot,
    )
