"""CartPole without velocities, played by programs of their own, against actors of the run: steps until it is solved.

    python -m benchmarks.external [--quick] [--json FILE] [--seeds N] [--node FOLDER]

Both sides are `tamiyo train` with the settings of the memory ladder and four environments. The external side has four
client processes; with --node, a folder in which @grpc/grpc-js and @grpc/proto-loader are installed, one is
examples/external/cartpole.js. A checkpoint counts as solved when 40 greedy episodes average 475; the steps are those
that it was trained on. A run that does not get there stops at 150,000 steps, which then count.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from actors.policy.acting.policy import ActingPolicy
from actors.rollout.sampler import EpisodeSeeds, StreamSampler
from benchmarks.form import Target, parser, publish
from benchmarks.learning.in_process import play
from benchmarks.learning.memory_rungs import RUNGS, Rung
from benchmarks.memory import SELECTION
from learner.run.checkpoint import list_checkpoints, load_checkpoint, load_policy

GOAL, BUDGET, CLIENTS, LOOK_EVERY = 475.0, 150_000, 4, 5  # mean return, steps, processes, updates
ROOT = Path(__file__).parents[1]
PYTHON_CLIENT = """
import sys
import gymnasium, tamiyo
import benchmarks.learning.memory_tasks
tamiyo.serve_env(gymnasium.make("bench/MaskedCartPole-v1"), sys.argv[1])
"""


def _flags(rung: Rung, folder: Path, seed: int, updates: int) -> list[str]:
    settings = {
        **{f"learner.{name}": value for name, value in rung.settings.items()},
        "learner.device": "cpu", "learner.updates": updates, "learner.checkpoint_every": LOOK_EVERY,
        "learner.checkpoints_kept": 10_000, "run.root": folder, "run.name": "bench", "run.seed": seed,
        "run.reference_episodes": 2,
    }  # fmt: skip
    named = {name: "none" if value is None else value for name, value in settings.items()}
    return [str(part) for name, value in named.items() for part in (f"--{name}", value)]


def _run(rung: Rung, side: str, seed: int, node: Path | None, updates: int, goal: float) -> dict[str, Any]:
    """Train until `goal` is reached, and stop everything."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder, start_s = Path(name), time.monotonic()
        flags = _flags(rung, folder, seed, updates)
        if side == "external":
            (folder / "spaces.json").write_text('{"observation_size": 2, "actions": [2]}')
            address = f"127.0.0.1:{_free_port()}"
            flags += ["--env", "external", "--spaces", str(folder / "spaces.json"), "--external.listen", address]
            flags += ["--external.max_segment_steps", str(rung.max_segment_steps)]
        else:
            flags += ["--env", rung.env_id, "--gym.max_segment_steps", str(rung.max_segment_steps)]
            flags += ["--actors.count", "1", "--actors.envs_per_actor", str(CLIENTS)]
        run = _start(stack, [sys.executable, "-m", "deploy.cli", "train", *flags], ROOT, folder / "run.out")
        if side == "external":
            for number in range(CLIENTS):
                command, cwd = [sys.executable, "-c", PYTHON_CLIENT, address], ROOT
                if node is not None and not number:
                    shutil.copy(ROOT / "examples/external/cartpole.js", node)
                    command = ["node", "cartpole.js", str(ROOT / "proto"), address, "1000000", "--hide-velocities"]
                    cwd = node
                stack.callback(_start(stack, command, cwd, folder / f"client{number}.out", wait=30).kill)
        steps, score = _watch(rung, folder / "bench", run, seed, goal)
        run.terminate()
        run.wait(60)
        return {
            "side": side, "seed": seed, "steps": steps, "score": round(score, 1), "solved": score >= GOAL,
            "seconds": round(time.monotonic() - start_s),
        }  # fmt: skip


def _start(stack: ExitStack, command: list[str], cwd: Path, out: Path, wait: float = 0.0) -> subprocess.Popen[bytes]:
    """Start a process whose output goes to `out`."""
    file = stack.enter_context(out.open("wb"))
    process = subprocess.Popen(command, cwd=cwd, stdout=file, stderr=file)
    stack.callback(process.wait, wait or None)
    return process


def _watch(rung: Rung, folder: Path, run: subprocess.Popen[bytes], seed: int, goal: float) -> tuple[int, float]:
    """Play each new checkpoint until one reaches `goal`. Returns its steps and its score."""
    gym = replace(rung.acting().gym, max_segment_steps=1024)
    sampler = StreamSampler(gym, 8, seed, EpisodeSeeds(seed, 0, None))
    seen, steps, score = set[Path](), 0, 0.0
    while (not steps or score < goal) and steps < BUDGET:
        ended = run.poll() is not None
        fresh = [c for c in list_checkpoints(folder / "checkpoints") if c not in seen]
        for path in fresh:
            seen.add(path)
            steps = load_checkpoint(path).progress.env_steps
            score = float(np.mean(play(sampler, ActingPolicy(load_policy(path)), seed, SELECTION, True)))
            if (steps and score >= goal) or steps >= BUDGET:
                return steps, score
        if ended and not fresh:
            break
        time.sleep(0.5)
    return steps, score


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def main() -> None:
    known = parser("external", "Programs that play at an endpoint, against actors of the run.")
    known.add_argument("--seeds", type=int, default=3, help="runs of each side")
    known.add_argument("--node", type=Path, help="folder with the Node packages of one client")
    options = known.parse_args()
    rung = next(r for r in RUNGS if r.name == "masked-cartpole")
    seeds, updates, goal = (1, 2, 1.0) if options.quick else (options.seeds, 100_000, GOAL)
    sides = ("external",) if options.quick else ("external", "actors")
    rows = []
    for seed in range(seeds):
        for side in sides:
            rows.append(_run(rung, side, seed, options.node, updates, goal))
            print(rows[-1], flush=True)
    means = {side: float(np.mean([row["steps"] for row in rows if row["side"] == side])) for side in sides}
    targets = [] if options.quick else [
        Target("steps of actors / steps of external programs", means["actors"] / means["external"], 1 / 1.3)
    ]  # fmt: skip
    publish(rows, targets, options.json)


if __name__ == "__main__":
    main()
