"""Run everything that needs a GPU, each step with its own time limit, and write one JSON.

    python -m benchmarks.gpu [--json FILE] [--wheels FOLDER | --no-install] [--only NAME] [--device cpu --quick]

It needs Python 3.11 or newer, PyTorch 2.11 or newer with CUDA, and the packages of deploy/gpu-requirements.txt. Those
that are missing are installed into a folder of their own, from `--wheels` or from the registry that pip is configured
for. `--device cpu --quick` takes the same steps without a GPU, as a test of this program.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.gpu import report
from benchmarks.gpu.packages import ROOT, install, installed, missing, normalized, packages_dir, required
from benchmarks.gpu.runner import Outcome, run_step
from benchmarks.gpu.steps import DRY_RUN, STEPS, TOTAL_S, Step

LEAST_TORCH = (2, 11)
LEAST_S = 10.0  # a step that is left less time than this does not start
PROBE = """
import json, os, platform, torch
there = torch.cuda.is_available()
print(json.dumps({
    "platform": platform.platform(), "python": platform.python_version(), "cores": os.cpu_count(),
    "torch": torch.__version__, "cuda build": torch.version.cuda,
    "cuda": torch.cuda.get_device_name() if there else None,
    "memory GiB": round(torch.cuda.get_device_properties(0).total_memory / 2**30, 1) if there else None,
}))
"""


def main() -> int:
    args = _arguments()
    args.json.parent.mkdir(parents=True, exist_ok=True)
    began, longer = time.monotonic(), 1.0 if args.device == "cuda" else DRY_RUN
    machine, hindrance = probe(args.device)
    absent = [] if hindrance else prepare(args)
    print(" ".join(f"{key}: {value};" for key, value in machine.items()) or "no PyTorch", flush=True)
    outcomes: list[Outcome] = []
    steps = [step for step in STEPS if not args.only or step.name in args.only]
    for step in steps:
        left_s = longer * TOTAL_S - (time.monotonic() - began)
        outcome = attempt(step, args, hindrance, absent, min(longer * step.limit_s, left_s))
        outcomes.append(outcome)
        print(report.line(outcome), flush=True)
        report.write(args.json, machine, outcomes, complete=len(outcomes) == len(steps))
    if hindrance:
        print(f"nothing ran: {hindrance}; see {args.json}", file=sys.stderr)
        return 2
    print("\n".join(report.summary(outcomes)))
    print(f"\n{args.json}: {len(steps)} steps in {time.monotonic() - began:.0f} s")
    return int(any(outcome.bad or outcome.status == "left out" for outcome in outcomes))


def prepare(args: argparse.Namespace) -> list[str]:
    """Install what is missing, unless `--no-install`. Return the names of packages that are missing still."""
    wanted = required()
    lacking = missing(wanted, installed())
    if not lacking or args.no_install:
        return lacking
    print(f"installing into {packages_dir().relative_to(ROOT)}: {', '.join(lacking)}", flush=True)
    said = install(lacking, wanted, args.wheels)
    if said:
        print(f"pip: {said}", flush=True)
    return missing(wanted, installed())


def probe(device: str) -> tuple[dict[str, Any], str]:
    """Ask PyTorch about this machine, in another process. Return what it said, and why no step can run, or ""."""
    paths = [str(packages_dir()), *filter(None, [os.environ.get("PYTHONPATH")])]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    asked = subprocess.run([sys.executable, "-c", PROBE], env=environ, capture_output=True, text=True, check=False)
    if asked.returncode != 0:
        reason = (asked.stderr.strip().splitlines() or ["no answer"])[-1]
        return {}, f"{sys.executable} cannot import PyTorch ({reason}): give make gpu PYTHON=... another"
    machine: dict[str, Any] = json.loads(asked.stdout)
    if tuple(map(int, machine["torch"].split("+")[0].split(".")[:2])) < LEAST_TORCH:
        return machine, f"PyTorch is {machine['torch']}, and {'.'.join(map(str, LEAST_TORCH))} or newer is needed"
    if device == "cuda" and machine["cuda"] is None:
        build = f"built for CUDA {machine['cuda build']}" if machine["cuda build"] else "a CPU build"
        return machine, f"no CUDA device: PyTorch {machine['torch']} is {build} and finds none"
    return machine, ""


def attempt(step: Step, args: argparse.Namespace, hindrance: str, absent: list[str], limit_s: float) -> Outcome:
    """Run a step, or say why it is left out."""
    needed = {normalized(name) for name in step.packages}
    lacking = [name for name in absent if normalized(name) in needed]
    if hindrance:
        return Outcome(step.name, "left out", hindrance)
    if lacking:
        return Outcome(step.name, "left out", f"it needs {', '.join(lacking)}: see deploy/gpu-requirements.txt")
    if limit_s < min(LEAST_S, step.limit_s):
        return Outcome(step.name, "left out", f"the {TOTAL_S:g} s of all steps are over")
    folder = args.json.parent / "logs"
    folder.mkdir(exist_ok=True)
    return run_step(step, step.cuda if args.device == "cuda" else step.cpu, limit_s, folder)


def _arguments() -> argparse.Namespace:
    known = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=(__doc__ or "").splitlines()[0])
    known.add_argument("--json", type=Path, default=ROOT / ".gpu" / "result.json", help="the result")
    known.add_argument("--wheels", type=Path, help="folder of wheels to install from, instead of a registry")
    known.add_argument("--no-install", action="store_true", help="leave out what needs packages that are missing")
    known.add_argument("--only", action="append", choices=[step.name for step in STEPS], help="run this step alone")
    known.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="cpu: a dry run, with --quick")
    known.add_argument("--quick", action="store_true", help="with --device cpu, whose figures mean nothing")
    args = known.parse_args()
    if args.quick is not (args.device == "cpu"):
        known.error("a dry run is --device cpu --quick: give both or neither")
    if args.wheels is not None and not args.wheels.is_dir():
        known.error(f"--wheels {args.wheels}: there is no such folder")
    args.json = args.json.resolve()
    return args


if __name__ == "__main__":
    sys.exit(main())
