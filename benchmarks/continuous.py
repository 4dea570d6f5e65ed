"""Continuous actions: Pendulum, with and without velocities, against sb3-contrib's RecurrentPPO.

    python -m benchmarks.continuous [--quick] [--json FILE] [--tasks NAME ...] [--sides NAME ...] [--seeds N] [--jobs N]
        [--whole]

The sides are ours with an LSTM, the control (ours with a feedforward network), and sb3-contrib. Every 8,192 steps the
greedy policy plays 40 selection seeds, and where their mean return reaches the goal, also 100 reporting seeds. A seed
determines the first state of an episode, on all sides. A run ends with the first policy that reaches the goal on both,
or with its budget; with `--whole` only with its budget. Steps are those of the environment, seconds those of the
process while it trained.
"""

from __future__ import annotations

import logging
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch

from benchmarks.form import Target, parser, publish
from benchmarks.learning.continuous_tasks import TASKS, ContinuousTask
from benchmarks.learning.in_process import Run, play
from benchmarks.learning.recurrent_ppo import ENVS, ROLLOUT_STEPS, RecurrentPPORun

LOOK_EVERY = 2 * ROLLOUT_STEPS * ENVS  # steps
SELECTION, REPORTING = range(1_000_000, 1_000_040), range(2_000_000, 2_000_100)  # seeds

Score = Callable[[range], float]
Looks = Iterator[tuple[int, Score]]
"""Yields the steps so far, and what measures the greedy mean return on seeds: first before training."""

warnings.filterwarnings("ignore")


@dataclass(frozen=True)
class Outcome:
    task: str
    side: str
    seed: int
    steps: int  # until it was solved, or the budget
    seconds: float  # of this process, while it trained for so many steps
    score: float  # mean return on reporting seeds at the end of the run
    solved: bool


def _ours(task: ContinuousTask, core: str, seed: int, budget: int) -> Looks:
    logging.disable(logging.WARNING)  # notices of the learner; the settings are chosen here
    with tempfile.TemporaryDirectory() as folder:
        run = Run(task.acting(core), task.learner(), Path(folder), seed)

        def score(seeds: range) -> float:
            return float(np.mean(play(run.sampler, run.policy, seed, seeds, deterministic=True)))

        yield 0, score
        while run.acted < budget:
            run.train(min(budget, run.acted + LOOK_EVERY))
            yield run.acted, score


def _sb3(task: ContinuousTask, seed: int, budget: int) -> Looks:
    run = RecurrentPPORun(task.make, seed, budget)

    def score(seeds: range) -> float:
        return float(np.mean(run.returns(seeds)))

    yield 0, score
    for steps in run.updates():
        if steps % LOOK_EVERY == 0 or steps >= budget:
            yield steps, score


SIDES: dict[str, Callable[[ContinuousTask, int, int], Looks]] = {
    "tamiyo": lambda task, seed, budget: _ours(task, "lstm", seed, budget),
    "control": lambda task, seed, budget: _ours(task, "feedforward", seed, budget),
    "sb3-contrib": _sb3,
}


def train(task: ContinuousTask, side: str, seed: int, budget: int, whole: bool) -> Outcome:
    """Train one side on one task, and print the mean returns that it is seen at."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    looks = SIDES[side](task, seed, budget)
    next(looks)
    seconds, start, seen = 0.0, time.process_time(), []
    solved: tuple[int, float] | None = None
    final = float("nan")
    for steps, score in looks:
        seconds += time.process_time() - start
        seen.append(score(SELECTION))
        reached = solved is None and seen[-1] >= task.goal
        last = steps >= budget
        if reached or last:
            final = score(REPORTING)
        if reached and final >= task.goal:
            solved = steps, seconds
        if last or (solved and not whole):
            break
        start = time.process_time()
    outcome = Outcome(task.name, side, seed, *(solved or (steps, seconds)), final, solved is not None)
    print(outcome, "seen:", *(f"{value:.4g}" for value in seen), flush=True)
    return outcome


def row(outcome: Outcome) -> dict[str, object]:
    return {
        "task": outcome.task,
        "side": outcome.side,
        "seed": outcome.seed,
        "solved": outcome.solved,
        "return": outcome.score,
        "steps": outcome.steps,
        "core-seconds": outcome.seconds,
        "steps/s": outcome.steps / outcome.seconds,
    }


def targets(task: ContinuousTask, outcomes: Sequence[Outcome]) -> Iterator[Target]:
    """What is expected of one task. A run that does not solve it counts with its whole budget."""
    ours, control, theirs = ([o for o in outcomes if o.side == side] for side in SIDES)
    if ours:
        share = float(np.mean([o.solved for o in ours]))
        yield Target(f"{task.name}: share of seeds at {task.goal:g} within {task.budget_steps:,} steps", share, 1.0)
    if control and task.control is not None:
        room = task.control - max(o.score for o in control)
        yield Target(f"{task.name}: room between the best control and {task.control:g}", room, 0.0)
    if ours and theirs:
        for unit in ("steps", "seconds"):
            own, other = (float(np.mean([getattr(o, unit) for o in side])) for side in (ours, theirs))
            yield Target(f"{task.name}: {unit} of sb3-contrib over ours", other / own, 1.0)


def main() -> None:
    known = parser("continuous", __doc__.splitlines()[0])
    names = [task.name for task in TASKS]
    known.add_argument("--tasks", nargs="+", choices=names, default=names, help="which of them")
    known.add_argument("--sides", nargs="+", choices=list(SIDES), default=list(SIDES), help="who takes part")
    known.add_argument("--seeds", type=int, default=3, help="runs of each side")
    known.add_argument("--jobs", type=int, default=1, help="runs at once, a process each")
    known.add_argument("--whole", action="store_true", help="train to the end of the budget also after the goal")
    options = known.parse_args()
    chosen, seeds = [task for task in TASKS if task.name in options.tasks], options.seeds
    if options.quick:
        chosen, seeds = [task for task in chosen if task.name == "masked-pendulum"], 1
    plan = [
        (task, side, seed, 1_024 if options.quick else task.budget_steps, options.whole)
        for task in chosen
        for seed in range(seeds)
        for side in options.sides
        if side != "control" or task.control is not None
    ]
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn")) as pool:
        outcomes = list(pool.map(train, *zip(*plan, strict=True)))
    found = [t for task in chosen for t in targets(task, [o for o in outcomes if o.task == task.name])]
    publish([row(outcome) for outcome in outcomes], found, options.json)


if __name__ == "__main__":
    main()
