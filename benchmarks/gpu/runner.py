"""`run_step`: runs one step in a process of its own, with a time limit, and reads what came out."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from benchmarks.gpu.packages import ROOT, packages_dir
from benchmarks.gpu.steps import Step

Status = Literal["passed", "failed", "timed out", "left out"]
LEFT_OUT = "left out: "
"""A line that begins with this tells what a step did without."""
GRACE_S = 5.0


@dataclass
class Outcome:
    """What became of a step."""

    name: str
    status: Status
    why: str = ""  # unless it passed: one line
    seconds: float = 0.0
    limit_s: float = 0.0
    command: str = ""
    left_out: list[str] = field(default_factory=list)
    targets: list[dict[str, Any]] = field(default_factory=list)
    rows: list[dict[str, Any]] = field(default_factory=list)
    tail: list[str] = field(default_factory=list)  # the last lines of its output, unless it passed

    @property
    def bad(self) -> bool:
        return self.status in ("failed", "timed out")


def run_step(step: Step, flags: Sequence[str], limit_s: float, folder: Path) -> Outcome:
    """Run `step`; its output and its result go to files in `folder`."""
    name = step.name.replace(",", "").replace(" ", "-")
    log, result = folder / f"{name}.log", folder / f"{name}.{'xml' if step.junit else 'json'}"
    result.unlink(missing_ok=True)
    where = (f"--junitxml={result}",) if step.junit else ("--json", str(result))
    command = [sys.executable, "-m", step.program, *flags, *where]
    paths = [str(ROOT), str(packages_dir()), *filter(None, [os.environ.get("PYTHONPATH")])]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1"}
    environ.setdefault("OMP_NUM_THREADS", "1")
    began = time.monotonic()
    with log.open("wb") as out:
        process = subprocess.Popen(
            command, cwd=ROOT, env=environ, stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
            start_new_session=True, preexec_fn=_accept_interrupts,
        )  # fmt: skip
        try:
            status = process.wait(limit_s)
            timed_out = False
        except subprocess.TimeoutExpired:
            status, timed_out = _stop(process), True
        finally:
            with suppress(ProcessLookupError):  # what it started ends with it
                os.killpg(process.pid, signal.SIGKILL)
    lines = log.read_text(errors="replace").splitlines()
    outcome = Outcome(
        step.name,
        "timed out" if timed_out else "failed" if status else "passed",
        seconds=time.monotonic() - began,
        limit_s=limit_s,
        command=f"python -m {step.program} {' '.join(flags)}",
        left_out=[line.removeprefix(LEFT_OUT) for line in lines if line.startswith(LEFT_OUT)],
    )
    if result.exists():
        (_read_junit if step.junit else _read_result)(result, outcome)
    elif outcome.status == "passed":
        outcome.status, outcome.why = "failed", "it ended without writing its result"
    if outcome.bad:
        outcome.tail = [line for line in lines if line.strip()][-25:]
        last = outcome.tail[-1].strip() if outcome.tail else f"it ended with status {status}"
        outcome.why = f"more than {limit_s:.0f} s" if timed_out else outcome.why or last
    return outcome


def _accept_interrupts() -> None:
    """Let SIGINT interrupt a new process, also where a shell started this one in the background, which ignores it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _stop(process: subprocess.Popen[bytes]) -> int:
    """Interrupt the process, so that its output says where it was; kill it if that does not end it."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGINT)
    try:
        return process.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def _read_result(path: Path, outcome: Outcome) -> None:
    content = json.loads(path.read_text())
    outcome.targets, outcome.rows = content["targets"], content["rows"]


def _read_junit(path: Path, outcome: Outcome) -> None:
    """A row for each test; a target for their share that passed, of those that ran."""
    first = ""
    for case in ElementTree.parse(path).iter("testcase"):
        name = f"{case.get('classname', '').replace('.', '/')}.py::{case.get('name')}"
        kind, message = "passed", ""
        for child in case:
            if child.tag in ("failure", "error", "skipped"):
                kind, message = child.tag, (child.get("message") or "").strip().split("\n")[0]
        outcome.rows.append({"test": name, "outcome": kind, "s": float(case.get("time", 0)), "message": message})
        if kind in ("failure", "error") and not first:
            first = f"{name}: {message}"
        if kind == "skipped":
            outcome.left_out.append(f"{name}: {message}")
    if first:
        outcome.why = first
    ran = [row for row in outcome.rows if row["outcome"] != "skipped"]
    if ran:
        share = sum(row["outcome"] == "passed" for row in ran) / len(ran)
        target = {"name": f"cuda tests, share of {len(ran)} that passed", "value": share, "goal": 1.0}
        outcome.targets = [target | {"met": share >= 1.0}]
