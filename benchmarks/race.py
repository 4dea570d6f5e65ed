"""Environment steps and core-seconds until tasks are solved, by the whole command and by other libraries.

    python -m benchmarks.race [--quick] [--json FILE] [--tasks NAME ...] [--seeds N] [--sides NAME ...] [--steps N]

Ours is `tamiyo train --env` with preset `general`, except for `Task.flags`; sb3-contrib's RecurrentPPO has the settings
that its zoo publishes for the task, or for the nearest one; for Sample Factory and PufferLib see `peers/racers.py`. A
task is solved when the last 100 whole episodes of the training average its goal. Core-seconds are those of all
processes from the start of the command, imports included.
"""

from __future__ import annotations

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
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from benchmarks.form import parser, publish
from benchmarks.peers.racers import flat_env

LOOK_S = 0.5
OTHERS = ("sample-factory", "pufferlib")  # in a Python of their own
SIDES = ("tamiyo", "sb3-contrib", *OTHERS)
MARK = "TAMIYO_BENCHMARK"  # variable by which the processes of a run are found


@dataclass(frozen=True)
class Task:
    env: str
    goal: float
    steps: int  # budget
    flags: str = ""  # of `tamiyo train`
    wrappers: tuple[str, ...] = ()  # MODULE:CLASS, for all sides
    sb3: dict[str, Any] = field(default_factory=dict)
    sb3_envs: int = 8
    sb3_normalize: bool = False


_CARTPOLE = {"n_steps": 32, "batch_size": 256, "gae_lambda": 0.8, "gamma": 0.98, "n_epochs": 20, "ent_coef": 0.0}
_CARTPOLE |= {"learning_rate": lambda left: 1e-3 * left, "clip_range": lambda left: 0.2 * left}
_ACROBOT = {"n_steps": 256, "gae_lambda": 0.94, "gamma": 0.99, "n_epochs": 4, "ent_coef": 0.0}
_LANDER = {"n_steps": 1024, "batch_size": 64, "gae_lambda": 0.98, "gamma": 0.999, "n_epochs": 4, "ent_coef": 0.01}
_GENERIC = {"n_steps": 128, "batch_size": 256, "gae_lambda": 0.95, "gamma": 0.99, "n_epochs": 4, "ent_coef": 0.01}
_MINIGRID = _GENERIC | {"learning_rate": lambda left: 1e-3 * left}
TASKS = {
    "CartPole": Task("CartPole-v1", 475, 300_000, sb3=_CARTPOLE),
    "Acrobot": Task("Acrobot-v1", -100, 1_000_000, sb3=_ACROBOT, sb3_envs=16, sb3_normalize=True),
    "LunarLander": Task("LunarLander-v3", 200, 2_000_000, sb3=_LANDER, sb3_envs=16),
    "VelocityOnlyCartpoleEasy": Task("popgym:popgym-VelocityOnlyCartpoleEasy-v0", 0.95, 1_000_000, sb3=_CARTPOLE),
    "HigherLowerEasy": Task("popgym:popgym-HigherLowerEasy-v0", 0.45, 1_000_000, sb3=_GENERIC),
    "CountRecallEasy": Task(
        "popgym:popgym-CountRecallEasy-v0",
        0.0,
        2_000_000,
        "--learner.gamma 0.01 --learner.lr 5e-4 --learner.target_kl 0.05",
        sb3=_GENERIC,
    ),
    "MemoryS7": Task(
        "minigrid:MiniGrid-MemoryS7-v0",
        0.85,
        2_000_000,
        "--learner.lr 1e-3 --learner.batch_steps 2048 --learner.batch_episodes 2 --learner.target_kl 0.05",
        ("minigrid.wrappers:OneHotPartialObsWrapper", "minigrid.wrappers:ImgObsWrapper"),
        sb3=_MINIGRID,
    ),
}


def _watched(
    command: list[str], new: Callable[[], tuple[int, list[float]]], task: Task, steps: int, folder: Path
) -> dict[str, Any]:
    """Run a command until the task is solved. `new` returns the steps so far, and the returns since the last look."""
    mark, seconds, last = uuid.uuid4().hex, dict[int, float](), deque[float](maxlen=100)
    acted, best = 0, -np.inf
    environment = os.environ | {MARK: mark, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, env=environment, cwd=folder, stdout=log, stderr=log)
    while process.poll() is None and acted < steps and best < task.goal:
        time.sleep(LOOK_S)
        seconds |= _core_seconds(mark)
        acted, returns = new()
        for value in returns:
            last.append(value)
            best = max(best, float(np.mean(last))) if len(last) == 100 else best
    if process.poll() is not None:
        raise RuntimeError(f"{shlex.join(command)} ended by itself: {(folder / 'log').read_text()[-500:]}")
    process.send_signal(signal.SIGINT)
    with suppress(subprocess.TimeoutExpired):
        process.wait(30)
    for left in psutil.process_iter():
        with suppress(psutil.Error):
            if left.environ().get(MARK) == mark:
                left.kill()
    return {"steps": acted, "core_s": sum(seconds.values()), "best": best}


def _ours(task: Task, seed: int, steps: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as root:
        command = ["tamiyo", "train", "--env", task.env, "--run.root", root, "--run.name", "run"]
        command += ["--gym.wrappers", *task.wrappers] if task.wrappers else []
        command += ["--run.seed", str(seed), "--run.reference_episodes", "0", "--learner.updates", "1000000"]
        command += shlex.split(task.flags)
        rows, episodes = _Tail(Path(root) / "run" / "metrics.jsonl"), _Tail(Path(root) / "run" / "episodes.jsonl")
        acted = [0]

        def new() -> tuple[int, list[float]]:
            acted.extend(int(json.loads(row)["env_steps"]) for row in rows.new())
            found = [json.loads(episode) for episode in episodes.new()]
            return acted[-1], [episode["return"] for episode in found if episode["end_reason"] != "cut"]

        return _watched(command, new, task, steps, Path(root))


def _other(library: str, python: str, task: Task, seed: int, steps: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as root:
        racers = Path(__file__).parent / "peers" / "racers.py"
        command = [python, "-P", str(racers), library, task.env, root, str(seed), *task.wrappers]
        files, lengths = dict[Path, _Tail](), list[int]()

        def new() -> tuple[int, list[float]]:
            returns = []
            for path in Path(root).glob("*.episodes"):
                for length, value in map(str.split, files.setdefault(path, _Tail(path)).new()):
                    lengths.append(int(length))
                    returns.append(float(value))
            return sum(lengths), returns

        return _watched(command, new, task, steps, Path(root))


class _Tail:
    """The lines that a growing file has gained since the last look."""

    def __init__(self, path: Path) -> None:
        self.path, self.at = path, 0

    def new(self) -> Iterator[str]:
        with suppress(FileNotFoundError), self.path.open("rb") as file:
            file.seek(self.at)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self.at += len(line)
                yield line.decode()


def _core_seconds(mark: str) -> dict[int, float]:
    found = {}
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get(MARK) == mark:
                found[process.pid] = sum(process.cpu_times()[:2])
    return found


def run_sb3(task: Task, seed: int, steps: int) -> dict[str, Any]:
    import torch
    from sb3_contrib import RecurrentPPO
    from stable_baselines3.common.monitor import Monitor
    from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

    torch.set_num_threads(1)

    envs: Any = DummyVecEnv([lambda: Monitor(flat_env(task.env, task.wrappers))] * task.sb3_envs)
    if task.sb3_normalize:
        envs = VecNormalize(envs, gamma=task.sb3["gamma"])
    model = RecurrentPPO("MlpLstmPolicy", envs, seed=seed, device="cpu", **task.sb3)
    best, newest = -np.inf, None

    def unsolved(*_: Any) -> bool:
        nonlocal best, newest
        last = model.ep_info_buffer  # of the last 100 episodes
        if last is not None and len(last) == 100 and last[-1] is not newest:
            newest = last[-1]
            best = max(best, float(np.mean([episode["r"] for episode in last])))
        return best < task.goal

    model.learn(steps, callback=unsolved)
    return {"steps": model.num_timesteps, "core_s": time.process_time(), "best": best}


def _in_own_process(name: str, seed: int, steps: int) -> dict[str, Any]:
    """Run sb3-contrib in a process of its own, whose time counts."""
    code = f"import json; from benchmarks.race import *; print(json.dumps(run_sb3(TASKS[{name!r}], {seed}, {steps})))"
    ended = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    reply: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return reply


def main() -> None:
    known = parser("race", __doc__.splitlines()[0])
    known.add_argument("--tasks", nargs="+", choices=list(TASKS), default=list(TASKS), help="which of them")
    known.add_argument("--seeds", type=int, default=3, help="runs of each side")
    known.add_argument("--sides", nargs="+", choices=SIDES, default=SIDES[:2], help="who takes part")
    known.add_argument("--python", default="", help="that of Sample Factory and PufferLib")
    known.add_argument("--steps", type=int, default=10**9, help="at most, in the place of a larger budget of a task")
    options = known.parse_args()
    tasks, seeds = (["Acrobot"], 1) if options.quick else (options.tasks, options.seeds)
    rows = []
    for name in tasks:
        for seed in range(seeds):
            for side in options.sides:
                task, steps = TASKS[name], 10_000 if options.quick else min(options.steps, TASKS[name].steps)
                if side in OTHERS:
                    result = _other(side, options.python or sys.executable, task, seed, steps)
                else:
                    result = _ours(task, seed, steps) if side == "tamiyo" else _in_own_process(name, seed, steps)
                result |= {"solved": result["best"] >= task.goal, "steps/s": result["steps"] / result["core_s"]}
                rows.append({"task": name, "goal": task.goal, "side": side, "seed": seed} | result)
                print(rows[-1], flush=True)
    publish(rows, [], options.json)


if __name__ == "__main__":
    main()
