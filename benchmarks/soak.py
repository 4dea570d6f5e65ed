"""A whole run left alone: does what its processes hold grow?

`tamiyo train` with its learner and actors on a server of its own, and a policy server that follows it under a light
load. Every few seconds each process is looked at: memory that is its alone (USS), open descriptors, threads. After a
warm-up a straight line gives the growth of its memory in MiB an hour, with the standard error.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.form import Target, parser, publish
from benchmarks.soaking.subject import soaked
from benchmarks.soaking.watch import Trace, Watch

ALLOWED_MIB_PER_H = 16.0
ALLOWED_GAIN = 2  # descriptors or threads of one process, between the first and the last fifth of the time
WARM_UP = 0.25  # of the time
QUICK_S, QUICK_PACE_S, PACE_S = 6.0, 0.5, 5.0
SMALL = ("--env.tasks", "spirals", "--env.horizon_epochs", "4", "--env.inner_steps", "2",
         "--actors.envs_per_actor", "2", "--learner.batch_episodes", "4")  # fmt: skip
USUAL = ("--learner.batch_episodes", "16")


def main() -> None:
    known = parser("soak", __doc__ or "")
    known.add_argument("--minutes", type=float, default=20.0, help="how long it is watched (default: 20)")
    known.add_argument("--actors", type=int, default=2, help="actor processes (default: 2)")
    options = known.parse_args()
    seconds, pace_s = (QUICK_S, QUICK_PACE_S) if options.quick else (60.0 * options.minutes, PACE_S)
    count = 1 if options.quick else options.actors
    size = SMALL if options.quick else USUAL
    flags = (*size, "--actors.count", str(count), "--learner.updates", "1000000000")
    with tempfile.TemporaryDirectory(prefix="soak", dir="/tmp") as folder:
        with soaked(Path(folder), flags, 2.0 if options.quick else 10.0) as (subject, players):
            watch, before, began = Watch(subject.roots), subject.ledger(), time.monotonic()
            while time.monotonic() - began < seconds:
                due = time.monotonic() + pace_s
                watch.look()
                time.sleep(max(0.0, due - time.monotonic()))
            took_s, after = time.monotonic() - began, subject.ledger()
            after.check()
        if players.error:
            raise RuntimeError(f"the policy server failed a step: {players.error}")
    start_s = began + WARM_UP * seconds
    traces = watch.throughout(start_s)
    rows: list[dict[str, Any]] = [row(trace) for trace in traces]
    rows.append(
        {
            "minutes": took_s / 60,
            "episodes/s": (after.trained - before.trained) / took_s,
            "served steps/s": players.steps / took_s,
            "processes that came and went": watch.came_and_went(start_s),
        }
    )
    publish(rows, targets(traces), options.json)


def row(trace: Trace) -> dict[str, Any]:
    growth = trace.mib_per_h
    first, last = ends(trace.uss_bytes)
    return {
        "process": trace.name,
        "MiB first": first / 2**20,
        "MiB last": last / 2**20,
        "MiB/h": growth.per_h,
        "+/-": growth.error_per_h,
        "descriptors": ends(trace.descriptors)[0],
        "more": gain(trace.descriptors),
        "threads": ends(trace.threads)[0],
        "more threads": gain(trace.threads),
    }


def ends(values: Sequence[int]) -> tuple[float, float]:
    """Medians of the first and of the last fifth."""
    n = max(1, len(values) // 5)
    return float(np.median(values[:n])), float(np.median(values[-n:]))


def gain(values: Sequence[int]) -> float:
    first, last = ends(values)
    return last - first


def targets(traces: Sequence[Trace]) -> list[Target]:
    """Of every process that lived throughout: what it may grow by, less what it did."""
    found = []
    for trace in traces:
        grown = trace.mib_per_h
        grew = f"{grown.per_h:.1f} +/- {grown.error_per_h:.1f}"
        name = f"{trace.name}: {ALLOWED_MIB_PER_H:g} MiB/h less its growth of {grew}"
        found.append(Target(name, ALLOWED_MIB_PER_H - grown.per_h, 0.0))
    for what in ("descriptors", "threads"):
        gains = [gain(getattr(t, what)) for t in traces]
        found.append(
            Target(f"{ALLOWED_GAIN} {what} less the most that a process gained", ALLOWED_GAIN - max(gains), 0.0)
        )
    return found


if __name__ == "__main__":
    main()
