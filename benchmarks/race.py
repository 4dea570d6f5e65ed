"""Time to solve CartPole without velocities, against sb3-contrib.

In seconds of one core until 40 greedy episodes average 475:

    python -m benchmarks.race [--quick] [--json FILE] [--seeds N] [--sides NAME ...]

Each side has its own settings: ours those of the memory ladder, sb3-contrib's those that its zoo publishes for this
task. A run stops at 100,000 steps, which counts as not solved. Looking at the score is not timed; the clock is that of
this process, which does all the work.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from torch import nn

from benchmarks.form import Target, parser, publish
from benchmarks.learning.in_process import Run, play
from benchmarks.learning.memory_rungs import RUNGS
from benchmarks.learning.memory_tasks import masked_cart_pole
from benchmarks.learning.peers import sb3_updates
from benchmarks.memory import SELECTION

GOAL, BUDGET, LOOK_EVERY = 475.0, 100_000, 5_000  # mean return, steps, steps between two looks
Runner = Iterator[tuple[int, Callable[[], float]]]
"""Yields, each `LOOK_EVERY` steps or so, the steps so far and what measures the greedy mean return then."""

warnings.filterwarnings("ignore")


def _ours(seed: int) -> Runner:
    rung = next(r for r in RUNGS if r.name == "masked-cartpole")
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory() as folder:
        run = Run(rung.acting(), rung.learner(), Path(folder), seed)
        while run.acted < BUDGET:
            run.train(run.acted + LOOK_EVERY)
            yield run.acted, lambda: float(np.mean(play(run.sampler, run.policy, seed, SELECTION, True)))


def _sb3(seed: int) -> Runner:
    from sb3_contrib import RecurrentPPO
    from stable_baselines3.common.evaluation import evaluate_policy
    from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

    def make() -> gymnasium.Env[Any, Any]:
        return gymnasium.wrappers.TimeLimit(masked_cart_pole(), 500)

    envs = VecNormalize(DummyVecEnv([make] * 8), gamma=0.98)
    model = RecurrentPPO(
        "MlpLstmPolicy",
        envs,
        learning_rate=lambda left: 1e-3 * left,
        clip_range=lambda left: 0.2 * left,
        n_steps=32,
        batch_size=256,
        n_epochs=20,
        gamma=0.98,
        gae_lambda=0.8,
        ent_coef=0.0,
        seed=seed,
        device="cpu",
        policy_kwargs={
            "ortho_init": False,
            "activation_fn": nn.ReLU,
            "lstm_hidden_size": 64,
            "enable_critic_lstm": True,
            "net_arch": {"pi": [64], "vf": [64]},
        },
    )

    def score() -> float:
        tested = VecNormalize(DummyVecEnv([make] * 8), training=False, norm_reward=False)
        tested.obs_rms = envs.obs_rms
        tested.seed(SELECTION.start)
        return float(evaluate_policy(model, tested, len(SELECTION), warn=False)[0])

    for update, steps in enumerate(sb3_updates(model, BUDGET), 1):
        if update % (LOOK_EVERY // 256) == 0:
            yield steps, score


SIDES: dict[str, Callable[[int], Runner]] = {"tamiyo": _ours, "sb3-contrib": _sb3}


def race(side: str, seed: int, budget: int) -> dict[str, Any]:
    """`seconds` of this process while it trained, and the last score."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    seconds, start, steps, score = 0.0, time.process_time(), 0, float("nan")
    running = SIDES[side](seed)
    with contextlib.closing(running):  # type: ignore[type-var]
        for steps, look in running:
            seconds += time.process_time() - start
            score = look()
            if score >= GOAL or steps >= budget:
                break
            start = time.process_time()
    return {"side": side, "seed": seed, "solved": score >= GOAL, "score": score, "steps": steps, "seconds": seconds}


def main() -> None:
    known: argparse.ArgumentParser = parser("race", __doc__.splitlines()[0])
    known.add_argument("--seeds", type=int, default=3, help="runs of each side")
    known.add_argument("--sides", nargs="+", choices=list(SIDES), default=list(SIDES), help="who takes part")
    options = known.parse_args()
    budget, seeds = (5_000, 1) if options.quick else (BUDGET, options.seeds)
    rows = []
    for seed in range(seeds):
        for side in options.sides:
            rows.append(race(side, seed, budget))
            print(*(f"{k} {v:.1f}" if isinstance(v, float) else f"{k} {v}" for k, v in rows[-1].items()), flush=True)
    took = {side: float(np.mean([r["seconds"] for r in rows if r["side"] == side])) for side in options.sides}
    targets = [
        Target(f"seconds of {side} over ours", seconds / took["tamiyo"], 1.0)
        for side, seconds in took.items()
        if side != "tamiyo" and "tamiyo" in took
    ]
    publish(rows, targets, options.json)


if __name__ == "__main__":
    main()
