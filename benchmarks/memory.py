"""The memory ladder: tasks that cannot be solved without memory, each beside a control that has none.

    python -m benchmarks.memory [--quick] [--json FILE] [--rungs NAME ...] [--seeds N] [--controls N] [--jobs N]

The real sampler, codec, transport (in memory) and learner, in one process. A control is the same policy under the same
settings with its state zeroed before each step, in acting and in learning. A run looks at its greedy policy on 40
selection seeds every few updates; when these reach the goal, or the budget is spent, its score is measured on 100 other
seeds (1000 for tasks of one bit), and only a score that reaches the goal ends the run before its budget. Returns are
not discounted.
"""

from __future__ import annotations

import argparse
import logging
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from actors.rollout.wave import Policy
from benchmarks.form import Target, parser, publish
from benchmarks.learning.in_process import Run, play
from benchmarks.learning.memory_rungs import RUNGS, Rung
from deploy.report.statistics import mean_interval

SELECTION, REPORTING = range(1_000_000, 1_000_040), 2_000_000  # seeds; the first of them


@dataclass(frozen=True)
class EpochOutcome:
    rung: str
    seed: int
    control: bool
    score: float
    steps: int  # acted until the score was measured
    seconds: float  # of this process


def climb(rung: Rung, seed: int, control: bool) -> EpochOutcome:
    """One run of one rung."""
    logging.disable(logging.WARNING)  # notices of the learner; the settings are chosen here
    began, measured = time.process_time(), [float("nan")]
    reporting = range(REPORTING, REPORTING + rung.episodes)
    with tempfile.TemporaryDirectory() as folder:
        run = Run(rung.acting(), rung.learner(), Path(folder), seed, forgetful=control)

        def score(policy: Policy, seeds: range) -> float:
            return rung.score(float(np.mean(play(run.sampler, policy, seed, seeds, deterministic=True))))

        def good(policy: Policy, acted: int) -> bool:
            if score(policy, SELECTION) < rung.goal:
                return False
            measured[0] = score(policy, reporting)
            return measured[0] >= rung.goal

        run.train(rung.budget_steps, good, rung.judge_every)
        final = measured[0] if measured[0] >= rung.goal else score(run.policy, reporting)
    return EpochOutcome(rung.name, seed, control, final, run.acted, time.process_time() - began)


def row(rung: Rung, outcomes: list[EpochOutcome]) -> dict[str, object]:
    learned = [o for o in outcomes if not o.control]
    controls = [o for o in outcomes if o.control]
    interval = mean_interval([o.score for o in learned]) if len(learned) > 1 else None
    reached = [o.steps for o in learned if o.score >= rung.goal]
    return {
        "rung": rung.name,
        "goal": rung.goal,
        "reached": f"{len(reached)}/{len(learned)}",
        "score": float(np.mean([o.score for o in learned])),
        "95%": f"{interval.low:.2f} to {interval.high:.2f}" if interval else "",
        "steps": int(np.median(reached)) if reached else "",
        "control": float(np.mean([o.score for o in controls])) if controls else "",
        "minutes": float(np.mean([o.seconds for o in outcomes])) / 60,
        "settings": rung.flags(),
    }


def targets(rung: Rung, outcomes: list[EpochOutcome]) -> list[Target]:
    learned = [o for o in outcomes if not o.control]
    share = float(np.mean([o.score >= rung.goal for o in learned]))
    promise = f"{rung.name}: share of seeds at {rung.goal:g} within {rung.budget_steps:,} steps"
    found = [Target(promise, share, rung.needed / 5)]
    controls = [o.score for o in outcomes if o.control]
    if controls:
        room = rung.control - max(controls)
        found.append(Target(f"{rung.name}: room between the best control and {rung.control:g}", room, 0.0))
    return found


def _options(parser: argparse.ArgumentParser) -> None:
    names = [r.name for r in RUNGS]
    parser.add_argument("--rungs", nargs="+", choices=names, default=names, help="which of them")
    parser.add_argument("--seeds", type=int, default=5, help="runs of each rung")
    parser.add_argument("--controls", type=int, default=2, help="runs of each rung without memory")
    parser.add_argument("--jobs", type=int, default=1, help="runs at once, a process each")


def main() -> None:
    known = parser("memory", "Tasks that need memory, each with a control that has none.")
    _options(known)
    options = known.parse_args()
    chosen = [r for r in RUNGS if r.name in options.rungs]
    seeds, controls = options.seeds, options.controls
    if options.quick:
        chosen, seeds, controls = [replace(RUNGS[0], budget_steps=6_000)], 1, 1
    kinds = [(seed, False) for seed in range(seeds)] + [(seed, True) for seed in range(controls)]
    plan = [(rung, seed, control) for rung in chosen for seed, control in kinds]
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn")) as pool:
        outcomes = []
        for outcome in pool.map(climb, *zip(*plan, strict=True)):
            print(
                f"{outcome.rung} seed {outcome.seed}{' control' if outcome.control else ''}: {outcome.score:.3f} "
                f"after {outcome.steps:,} steps, {outcome.seconds / 60:.1f} minutes",
                flush=True,
            )
            outcomes.append(outcome)
    by_rung = [(rung, [o for o in outcomes if o.rung == rung.name]) for rung in chosen]
    publish([row(*pair) for pair in by_rung], [t for pair in by_rung for t in targets(*pair)], options.json)


if __name__ == "__main__":
    main()
