"""Sample Factory and PufferLib in the race: `python racers.py LIBRARY ENV FOLDER SEED [WRAPPER ...]`, in a Python of
their own, since neither runs beside Tamiyo's NumPy and Gymnasium. It trains until it is stopped, with an LSTM, in two
processes of environments, and appends the length and return of every episode to files in FOLDER.

Sample Factory has the command of its example for Gymnasium (`sf_examples/train_gym_env.py`), with recurrence; PufferLib
the settings of its `default.ini`, and as many environments as they need.
"""

from __future__ import annotations

import ast
import configparser
import importlib
import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium

WORKERS = 2
SAMPLE_FACTORY = (
    "--algo=APPO --use_rnn=True --rnn_type=lstm --rnn_size=128 --num_envs_per_worker=20 --policy_workers_per_policy=2"
    " --with_vtrace=False --batch_size=512 --experiment=race --device=cpu --train_for_env_steps=1000000000"
)


class Episodes(gymnasium.Wrapper):  # type: ignore[type-arg]
    """Writes a line for each episode: its length and return."""

    def __init__(self, env: Any, folder: str) -> None:
        super().__init__(env)
        self.folder, self.length, self.total = Path(folder), 0, 0.0

    def step(self, action: Any) -> Any:
        result = self.env.step(action)
        self.length, self.total = self.length + 1, self.total + float(result[1])
        if result[2] or result[3]:
            with (self.folder / f"{os.getpid()}.episodes").open("a") as file:
                file.write(f"{self.length} {self.total}\n")
            self.length, self.total = 0, 0.0
        return result


def flat_env(env_id: str, wrappers: Sequence[str]) -> Any:
    """Make an environment in `wrappers`, MODULE:CLASS, with flat observations."""
    env: Any = gymnasium.make(env_id)
    for wrapper in wrappers:
        module, name = wrapper.split(":")
        env = getattr(importlib.import_module(module), name)(env)
    space = env.observation_space
    flat = isinstance(space, gymnasium.spaces.Box) and len(space.shape) == 1
    return env if flat else gymnasium.wrappers.FlattenObservation(env)


def make(env_id: str, folder: str, wrappers: list[str], *_: Any, **__: Any) -> Any:
    """Ignores what Sample Factory says of itself."""
    old = env_id.replace("LunarLander-v3", "LunarLander-v2")  # Gymnasium 0.29 has no v3
    return Episodes(flat_env(old, wrappers), folder)


def make_emulated(env_id: str, folder: str, wrappers: list[str], **buffers: Any) -> Any:
    from pufferlib.emulation import GymnasiumPufferEnv

    return GymnasiumPufferEnv(make(env_id, folder, wrappers), **buffers)


def sample_factory(env_id: str, folder: str, seed: int, wrappers: list[str]) -> None:
    from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
    from sample_factory.envs.env_utils import register_env
    from sample_factory.train import run_rl

    register_env("race", partial(make, env_id, folder, wrappers))
    argv = [*SAMPLE_FACTORY.split(), "--env=race", f"--num_workers={WORKERS}", f"--seed={seed}"]
    argv += [f"--train_dir={folder}", f"--reward_scale={0.1 if 'CartPole-v' in env_id else 1.0}"]
    parser, _ = parse_sf_args(argv=argv)
    run_rl(parse_full_cfg(parser, argv))


def pufferlib(env_id: str, folder: str, seed: int, wrappers: list[str]) -> None:
    import pufferlib as puffer
    import torch
    from pufferlib import models, pufferl, vector

    torch.set_num_threads(1)
    torch.manual_seed(seed)
    read = configparser.ConfigParser()
    read.read(Path(puffer.__file__).parent / "config" / "default.ini")
    train = {key: puffer_value(text) for key, text in read["train"].items()}
    train |= {"device": "cpu", "seed": seed, "use_rnn": True, "env": "race", "data_dir": folder}
    envs = train["minibatch_size"] // train["bptt_horizon"]
    creators = [partial(make_emulated, env_id, folder, wrappers)] * envs
    fleet = vector.make(creators, env_args=[[]] * envs, env_kwargs=[{}] * envs, backend=vector.Multiprocessing,
                        num_envs=envs, num_workers=WORKERS, seed=seed)  # fmt: skip
    policy = models.LSTMWrapper(fleet.driver_env, models.Default(fleet.driver_env))
    trainer = pufferl.PuffeRL(train, fleet, policy)
    while True:
        trainer.evaluate()
        trainer.train()


def puffer_value(text: str) -> Any:
    """Return a setting as a number, a truth value or text."""
    try:
        return ast.literal_eval(text)
    except (SyntaxError, ValueError):
        return text


if __name__ == "__main__":
    _library, _env, _folder, _seed, *_wrappers = sys.argv[1:]
    {"sample-factory": sample_factory, "pufferlib": pufferlib}[_library](_env, _folder, int(_seed), _wrappers)
