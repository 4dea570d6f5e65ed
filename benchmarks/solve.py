"""Environment steps and core-seconds until tasks are solved, by the whole command and by sb3-contrib's RecurrentPPO.

    python -m benchmarks.solve [--quick] [--json FILE] [--tasks NAME ...] [--seeds N] [--sides NAME ...] [--steps N]

Ours is `tamiyo train --env` with preset `general`. sb3-contrib has the settings that its zoo publishes for the task,
or for the nearest one (`Task.sb3`). A task is solved when the last 100 whole episodes of the training average its goal.
Core-seconds are those of all processes from the start of the command, imports included.
"""

from __future__ import annotations

import importlib
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from benchmarks.form import parser, publish
from benchmarks.learning.peers import sb3_updates

LOOK_S = 0.5
SIDES = ("tamiyo", "sb3-contrib")
MARK = "TAMIYO_BENCHMARK"  # variable by which the processes of a run are found


@dataclass(frozen=True)
class Task:
    env: str
    goal: float
    steps: int  # budget
    wrappers: tuple[str, ...] = ()  # MODULE:CLASS, for both sides
    sb3: dict[str, Any] = field(default_factory=dict)
    sb3_envs: int = 8
    sb3_normalize: bool = False


_GENERIC = {"n_steps": 128, "batch_size": 256, "gae_lambda": 0.95, "gamma": 0.99, "n_epochs": 4, "ent_coef": 0.01}
_MINIGRID = _GENERIC | {"learning_rate": lambda left: 1e-3 * left}
TASKS = {
    "Acrobot": Task(
        "Acrobot-v1",
        -100,
        1_000_000,
        sb3={"n_steps": 256, "gae_lambda": 0.94, "gamma": 0.99, "n_epochs": 4, "ent_coef": 0.0},
        sb3_envs=16,
        sb3_normalize=True,
    ),
    "LunarLander": Task(
        "LunarLander-v3",
        200,
        2_000_000,
        sb3={"n_steps": 1024, "batch_size": 64, "gae_lambda": 0.98, "gamma": 0.999, "n_epochs": 4, "ent_coef": 0.01},
        sb3_envs=16,
    ),
    "VelocityOnlyCartpoleEasy": Task(
        "popgym:popgym-VelocityOnlyCartpoleEasy-v0",
        0.95,
        1_000_000,
        sb3={
            "n_steps": 32,
            "batch_size": 256,
            "gae_lambda": 0.8,
            "gamma": 0.98,
            "n_epochs": 20,
            "ent_coef": 0.0,
            "learning_rate": lambda left: 1e-3 * left,
            "clip_range": lambda left: 0.2 * left,
        },
    ),
    "HigherLowerEasy": Task("popgym:popgym-HigherLowerEasy-v0", 0.45, 1_000_000, sb3=_GENERIC),
    "CountRecallEasy": Task("popgym:popgym-CountRecallEasy-v0", 0.0, 2_000_000, sb3=_GENERIC),
    "MemoryS7": Task(
        "minigrid:MiniGrid-MemoryS7-v0",
        0.85,
        2_000_000,
        ("minigrid.wrappers:ImgObsWrapper",),
        sb3=_MINIGRID,
    ),
    "MemoryS7-one-hot": Task(
        "minigrid:MiniGrid-MemoryS7-v0",
        0.85,
        2_000_000,
        ("minigrid.wrappers:OneHotPartialObsWrapper", "minigrid.wrappers:ImgObsWrapper"),
        sb3=_MINIGRID,
    ),
}


def _ours(task: Task, seed: int, steps: int, flags: Sequence[str]) -> dict[str, Any]:
    mark, seconds = uuid.uuid4().hex, dict[int, float]()
    with tempfile.TemporaryDirectory() as root:
        run = Path(root) / "run"
        command = ["tamiyo", "train", "--env", task.env, "--run.root", root, "--run.name", "run"]
        command += ["--gym.wrappers", *task.wrappers] if task.wrappers else []
        command += ["--run.seed", str(seed), "--run.reference_episodes", "0", "--learner.updates", "1000000", *flags]
        environment = os.environ | {MARK: mark, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        with (Path(root) / "log").open("w") as log:
            process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        rows, episodes, last = _Tail(run / "metrics.jsonl"), _Tail(run / "episodes.jsonl"), deque[float](maxlen=100)
        acted, best = 0, -np.inf
        while process.poll() is None and acted < steps and not (len(last) == 100 and np.mean(last) >= task.goal):
            time.sleep(LOOK_S)
            seconds |= _core_seconds(mark)
            for row in rows.new():
                acted = int(row["env_steps"])
            for episode in episodes.new():
                if episode["end_reason"] != "cut":
                    last.append(episode["return"])
                    best = max(best, float(np.mean(last))) if len(last) == 100 else best
        if process.poll() is not None:
            raise RuntimeError(f"{shlex.join(command)} ended by itself: {(Path(root) / 'log').read_text()[-500:]}")
        process.send_signal(signal.SIGINT)
        process.wait()
    return {"steps": acted, "core_s": sum(seconds.values()), "last": float(np.mean(last)), "best": best}


class _Tail:
    """The rows that a growing file has gained since the last look."""

    def __init__(self, path: Path) -> None:
        self.path, self.at = path, 0

    def new(self) -> Iterator[dict[str, Any]]:
        with suppress(FileNotFoundError), self.path.open("rb") as file:
            file.seek(self.at)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self.at += len(line)
                yield json.loads(line)


def _core_seconds(mark: str) -> dict[int, float]:
    found = {}
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get(MARK) == mark:
                found[process.pid] = sum(process.cpu_times()[:2])
    return found


def run_sb3(task: Task, seed: int, steps: int) -> dict[str, Any]:
    import gymnasium
    import torch
    from sb3_contrib import RecurrentPPO
    from stable_baselines3.common.monitor import Monitor
    from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

    torch.set_num_threads(1)

    def make() -> Any:
        env: Any = gymnasium.make(task.env)
        for wrapper in task.wrappers:
            module, name = wrapper.split(":")
            env = getattr(importlib.import_module(module), name)(env)
        space = env.observation_space
        flat = isinstance(space, gymnasium.spaces.Box) and len(space.shape) == 1
        return Monitor(env if flat else gymnasium.wrappers.FlattenObservation(env))

    envs: Any = DummyVecEnv([make] * task.sb3_envs)
    if task.sb3_normalize:
        envs = VecNormalize(envs)
    model = RecurrentPPO("MlpLstmPolicy", envs, seed=seed, device="cpu", **task.sb3)
    mean, best = -np.inf, -np.inf
    for _ in sb3_updates(model, steps):
        last = model.ep_info_buffer  # of the last 100 episodes
        mean = float(np.mean([episode["r"] for episode in last])) if last else -np.inf
        if len(last) == 100:
            best = max(best, mean)
            if mean >= task.goal:
                break
    return {"steps": model.num_timesteps, "core_s": time.process_time(), "last": mean, "best": best}


def _in_own_process(name: str, seed: int, steps: int) -> dict[str, Any]:
    """Run sb3-contrib in a process of its own, whose time counts."""
    command = [
        sys.executable,
        "-c",
        f"import json; from benchmarks.solve import *; print(json.dumps(run_sb3(TASKS[{name!r}], {seed}, {steps})))",
    ]
    reply: dict[str, Any] = json.loads(
        subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1]
    )
    return reply


def main() -> None:
    known = parser("solve", __doc__.splitlines()[0])
    known.add_argument("--tasks", nargs="+", choices=list(TASKS), default=list(TASKS), help="which of them")
    known.add_argument("--seeds", type=int, default=3, help="runs of each side")
    known.add_argument("--sides", nargs="+", choices=SIDES, default=SIDES, help="who takes part")
    known.add_argument("--flags", default="", help="more flags of `tamiyo train`, in one argument")
    known.add_argument("--steps", type=int, default=10**9, help="at most, in the place of a larger budget of a task")
    options = known.parse_args()
    tasks, seeds = (["Acrobot"], 1) if options.quick else (options.tasks, options.seeds)
    rows = []
    for name in tasks:
        for seed in range(seeds):
            for side in options.sides:
                steps = 20_000 if options.quick else min(options.steps, TASKS[name].steps)
                if side == "tamiyo":
                    result = _ours(TASKS[name], seed, steps, shlex.split(options.flags))
                else:
                    result = _in_own_process(name, seed, steps)
                solved = result["best"] >= TASKS[name].goal
                rows.append(
                    {"task": name, "goal": TASKS[name].goal, "side": side, "seed": seed, "solved": solved} | result
                )
                print(
                    *(f"{k} {v:.2f}" if isinstance(v, float) else f"{k} {v}" for k, v in rows[-1].items()), flush=True
                )
    publish(rows, [], options.json)


if __name__ == "__main__":
    main()
