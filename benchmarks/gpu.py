"""Run everything that needs a GPU, each step with its own time limit, and write one JSON.

    python -m benchmarks.gpu [--json FILE] [--wheels FOLDER] [--only NAME] [--dry-run]

It needs Python 3.11 or newer, PyTorch 2.11 or newer with CUDA, and the packages of deploy/gpu-requirements.txt. Those
that are missing are installed into a folder of their own, from `--wheels` or from the registry that pip is configured
for, so that the given Python and its PyTorch stay as they are. `--dry-run` takes the same steps without a GPU, as a
test of this program, and installs nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from importlib.metadata import Distribution
from pathlib import Path
from typing import Any, Literal

ROOT = Path(__file__).resolve().parents[1]
REQUIREMENTS = ROOT / "deploy" / "gpu-requirements.txt"
PACKAGES = ROOT / ".gpu" / f"packages-{sys.version_info.major}.{sys.version_info.minor}"
LIMIT_S = 540.0
"""Limit of all steps together: a machine with a GPU is often lent for ten minutes at a time."""
DRY_RUN = 4.0
"""A dry run may take this many times as long."""
LEAST_S, INSTALL_S, GRACE_S = 10.0, 120.0, 5.0  # to start a step, to install packages, to end after an interrupt
LEFT_OUT = "left out: "
"""A line that begins with this tells what a step did without."""
PROBE = """
import json, os, platform, sys, torch
if tuple(map(int, torch.__version__.split("+")[0].split(".")[:2])) < (2, 11):
    sys.exit(f"PyTorch is {torch.__version__}, and 2.11 or newer is needed")
there = torch.cuda.is_available()
if sys.argv[1] == "cuda" and not there:
    sys.exit(f"no CUDA device: PyTorch {torch.__version__}, built for CUDA {torch.version.cuda}, finds none")
print(json.dumps({
    "platform": platform.platform(), "python": platform.python_version(), "cores": os.cpu_count(),
    "torch": torch.__version__, "cuda build": torch.version.cuda,
    "cuda": torch.cuda.get_device_name() if there else None,
    "memory GiB": round(torch.cuda.get_device_properties(0).total_memory / 2**30, 1) if there else None,
}))
"""


@dataclass(frozen=True)
class Step:
    """A program, started as `python -m PROGRAM FLAGS`, whose result is that of `benchmarks.form`, or pytest's."""

    name: str
    program: str
    limit_s: float
    cuda: Sequence[str]  # flags on a GPU
    dry: Sequence[str]  # flags of a dry run, which takes the same way through the code


def _fleet(name: str, limit_s: float, *flags: str) -> Step:
    host = name.split(",")[0].split()[-1]
    dry = ("--quick", "--backend", "torch", "--hosts", host)
    return Step(name, "benchmarks.env", limit_s, ("--device", "cuda", "--hosts", host, *flags), dry)


_TESTS = ("-q", "-m", "cuda", "-p", "no:cacheprovider", "--timeout", "150", "tests")
STEPS = (
    Step("cuda tests", "pytest", 140.0, _TESTS, _TESTS),
    Step("learner", "benchmarks.learner", 60.0, ("--device", "cuda", "--repeats", "2"), ("--quick",)),
    _fleet("fleet of mlp", 70.0, "--budget", "3", "--sizes", "256,1024"),
    _fleet("fleet of mlp, CUDA graph", 60.0, "--budget", "3", "--sizes", "256", "--cuda-graph"),
    _fleet("fleet of cnn1d", 65.0, "--budget", "3", "--sizes", "256"),
    _fleet("fleet of cnn2d", 75.0, "--budget", "3", "--sizes", "64"),
    Step("serve", "benchmarks.serve", 70.0, ("--device", "cuda", "--brief"), ("--quick",)),
)
"""In the order in which they run: what must be right first, then how fast it is."""


@dataclass
class Outcome:
    """What became of a step."""

    name: str
    status: Literal["passed", "failed", "timed out", "left out"]
    why: str = ""  # unless it passed: one line
    seconds: float = 0.0
    limit_s: float = 0.0
    command: str = ""
    left_out: list[str] = field(default_factory=list)
    targets: list[dict[str, Any]] = field(default_factory=list)
    rows: list[dict[str, Any]] = field(default_factory=list)
    tail: list[str] = field(default_factory=list)  # the last lines of its output, if it failed or timed out

    def __str__(self) -> str:
        took = f" in {self.seconds:.0f} of {self.limit_s:.0f} s" if self.limit_s else ""
        return f"{self.name}: {self.status}{took}{': ' * bool(self.why)}{self.why}"


def main() -> int:
    args = _arguments()
    args.json.parent.mkdir(parents=True, exist_ok=True)
    args.json.unlink(missing_ok=True)
    command = [sys.executable, "-c", PROBE, "cpu" if args.dry_run else "cuda"]
    asked = subprocess.run(command, env=_environment(), capture_output=True, text=True, check=False)
    if asked.returncode != 0:
        reason = (asked.stderr.strip().splitlines() or ["no answer"])[-1]
        print(f"nothing ran: {sys.executable}: {reason}", file=sys.stderr)
        return 2
    machine = json.loads(asked.stdout)
    print(" ".join(f"{key}: {value};" for key, value in machine.items()), flush=True)
    began = time.monotonic()
    if not args.dry_run and (lacking := missing(REQUIREMENTS.read_text())):
        install(lacking, args.wheels)
    outcomes: list[Outcome] = []
    for step in (step for step in STEPS if not args.only or step.name in args.only):
        factor, flags = (DRY_RUN, step.dry) if args.dry_run else (1.0, step.cuda)
        left_s = factor * LIMIT_S - (time.monotonic() - began)
        if left_s < LEAST_S:
            outcomes.append(Outcome(step.name, "left out", f"the {LIMIT_S:g} s of all steps are over"))
        else:
            outcomes.append(run_step(step, flags, min(factor * step.limit_s, left_s), args.json.parent / "logs"))
        print(outcomes[-1], flush=True)
        # After every step: whatever ends the program leaves what was measured.
        args.json.write_text(json.dumps({"machine": machine, "steps": [asdict(o) for o in outcomes]}, indent=1) + "\n")
    print("\n".join(summary(outcomes)))
    print(f"\n{args.json}: {len(outcomes)} steps in {time.monotonic() - began:.0f} s")
    return int(any(outcome.status != "passed" for outcome in outcomes))


def missing(requirements: str) -> list[str]:
    """Return the lines `NAME>=VERSION` for which a package is absent or older."""
    lacking, path = [], [str(PACKAGES), *sys.path]
    for line in requirements.splitlines():
        name, _, least = line.partition(">=")
        if least:
            found = next(iter(Distribution.discover(name=name, path=path)), None)
            if found is None or _numbers(found.version) < _numbers(least):
                lacking.append(line)
    return lacking


def _numbers(version: str) -> list[int]:
    """Return the leading numbers of a version: enough to compare releases."""
    return [int(part) for part in re.split(r"[^\d.]", version)[0].split(".") if part]


def install(lacking: Sequence[str], wheels: Path | None) -> None:
    """Install these packages into `PACKAGES`, all or none, from the folder `wheels` if it is given. A step that does
    without them says which it needs."""
    print(f"installing into {PACKAGES.relative_to(ROOT)}: {', '.join(lacking)}", flush=True)
    source = ["--retries", "0", "--timeout", "10"] if wheels is None else ["--no-index", "--find-links", str(wheels)]
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--only-binary=:all:", "--no-compile", "--upgrade", "--target", str(PACKAGES), *source, *lacking]
    with suppress(subprocess.TimeoutExpired):
        subprocess.run(command, timeout=INSTALL_S, check=False)


def _accept_interrupts() -> None:
    """Let SIGINT interrupt a new process, also where a shell started this one in the background, which ignores it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def run_step(step: Step, flags: Sequence[str], limit_s: float, folder: Path) -> Outcome:
    """Run `step`; its output and its result go to files in `folder`."""
    folder.mkdir(exist_ok=True)
    name, is_pytest = step.name.replace(",", "").replace(" ", "-"), step.program == "pytest"
    log, result = folder / f"{name}.log", folder / f"{name}.{'xml' if is_pytest else 'json'}"
    result.unlink(missing_ok=True)
    where = (f"--junitxml={result}",) if is_pytest else ("--json", str(result))
    began, timed_out = time.monotonic(), False
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", step.program, *flags, *where],
            cwd=ROOT, env=_environment(), stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
            start_new_session=True, preexec_fn=_accept_interrupts,
        )  # fmt: skip
        try:
            process.wait(limit_s)
        except subprocess.TimeoutExpired:
            timed_out = True
            with suppress(ProcessLookupError, subprocess.TimeoutExpired):
                os.killpg(process.pid, signal.SIGINT)  # so that its output says where it was
                process.wait(GRACE_S)
        finally:
            with suppress(ProcessLookupError):  # what it started ends with it
                os.killpg(process.pid, signal.SIGKILL)
        status = process.wait()
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    outcome = Outcome(
        step.name,
        "timed out" if timed_out else "failed" if status else "passed",
        seconds=time.monotonic() - began,
        limit_s=limit_s,
        command=f"python -m {step.program} {' '.join(flags)}",
        left_out=[line.removeprefix(LEFT_OUT) for line in lines if line.startswith(LEFT_OUT)],
    )
    if not result.exists():
        if outcome.status == "passed":
            outcome.status, outcome.why = "failed", "it ended without writing its result"
    elif is_pytest:
        _read_junit(result, outcome)
    else:
        content = json.loads(result.read_text())
        outcome.targets, outcome.rows = content["targets"], content["rows"]
    if outcome.status != "passed":
        outcome.tail = lines[-25:]
        last = lines[-1].strip() if lines else "no output"
        outcome.why = f"more than {limit_s:.0f} s" if timed_out else outcome.why or last
    return outcome


def _environment() -> dict[str, str]:
    paths = [str(ROOT), str(PACKAGES), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {"OMP_NUM_THREADS": "1", **os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1"}


def _read_junit(path: Path, outcome: Outcome) -> None:
    """A row for each test, and a target for the share that passed of those that ran."""
    for case in ElementTree.parse(path).iter("testcase"):
        name = f"{case.get('classname', '').replace('.', '/')}.py::{case.get('name')}"
        kind, message = "passed", ""
        for child in case:
            if child.tag in ("failure", "error", "skipped"):
                kind, message = child.tag, (child.get("message") or "").strip().split("\n")[0]
        outcome.rows.append({"test": name, "outcome": kind, "s": float(case.get("time", 0)), "message": message})
    kinds = Counter(row["outcome"] for row in outcome.rows)
    outcome.left_out += [row["message"] for row in outcome.rows if row["outcome"] == "skipped"]
    failed = [f"{row['test']}: {row['message']}" for row in outcome.rows if row["outcome"] in ("failure", "error")]
    outcome.why = failed[0] if failed else ""
    if ran := len(outcome.rows) - kinds["skipped"]:
        share = kinds["passed"] / ran
        name = f"cuda tests, share of {ran} that passed"
        outcome.targets = [{"name": name, "value": share, "goal": 1.0, "met": share >= 1.0}]


def summary(outcomes: Sequence[Outcome]) -> list[str]:
    """Return the lines at the end: what failed, missed targets, what was left out, and targets that were met."""
    lines: list[str] = []
    for outcome in (o for o in outcomes if o.status in ("failed", "timed out")):
        lines += ["", f"FAILED {outcome}", f"  {outcome.command}", *(f"  | {text}" for text in outcome.tail)]
    targets: dict[bool, list[str]] = {False: [], True: []}
    for target in (target for o in outcomes for target in o.targets):
        targets[target["met"]].append(f"{target['name']}: {target['value']:,.2f}, goal {target['goal']:,.2f}")
    left_out = Counter(text for o in outcomes for text in o.left_out)
    without = [text if count == 1 else f"{text} ({count} times)" for text, count in left_out.items()]
    for title, found in (("Targets missed", targets[False]), ("Left out", without), ("Targets met", targets[True])):
        lines += ["", title, *(f"  {text}" for text in found)] if found else []
    return [*lines, "", *map(str, outcomes)]


def _arguments() -> argparse.Namespace:
    known = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=(__doc__ or "").splitlines()[0])
    known.add_argument("--json", type=Path, default=ROOT / ".gpu" / "result.json", help="the result")
    known.add_argument("--wheels", type=Path, help="folder of wheels to install from, instead of a registry")
    known.add_argument("--only", action="append", choices=[step.name for step in STEPS], help="run this step alone")
    known.add_argument("--dry-run", action="store_true", help="without a GPU; the figures mean nothing")
    args = known.parse_args()
    if args.wheels is not None and not args.wheels.is_dir():
        known.error(f"--wheels {args.wheels}: there is no such folder")
    args.json = args.json.resolve()
    return args


if __name__ == "__main__":
    sys.exit(main())
