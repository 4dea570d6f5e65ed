"""Tamiyo: `python -m benchmarks.peers.ours`."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path

from gymnasium.envs.registration import register

from benchmarks.peers.probe import ACTIONS, Claim, ProbeEnv, illegal_share, report

register("bench/Probe-v0", entry_point=ProbeEnv)


def _recurrent(actions: str) -> str:
    from actors.config import ActingConfig, ActorsConfig, GymConfig
    from benchmarks.learning.in_process import Run
    from deploy.config.schema import PRESETS

    preset = PRESETS["general"]
    acting = ActingConfig(
        gym=GymConfig(id="benchmarks.peers.ours:bench/Probe-v0", kwargs=(f"actions={actions}",)),
        policy=preset.policy,
        actors=ActorsConfig(count=1, envs_per_actor=2),
    )
    learner = replace(preset.learner, device="cpu", batch_episodes=2, batch_steps=64, minibatches=1, updates=100)
    with tempfile.TemporaryDirectory() as folder:
        run = Run(acting, learner, Path(folder), seed=0)
        run.train(512)
        trained = f"{run.transport.head()} updates"
    return f"{trained}, {illegal_share()}" if ProbeEnv(actions).choices else trained


CLAIMS: list[Claim] = [(f"LSTM with masks, {actions} actions", partial(_recurrent, actions)) for actions in ACTIONS]

if __name__ == "__main__":
    report(("gymnasium", "torch"), CLAIMS)
