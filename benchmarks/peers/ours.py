"""Tamiyo: `python -m benchmarks.peers.ours`."""

from __future__ import annotations

import tempfile
from functools import partial

from gymnasium.envs.registration import register

from benchmarks.peers.probe import ACTIONS, Claim, ProbeEnv, illegal_share, report

UPDATES = 6
register("bench/Probe-v0", entry_point=ProbeEnv)


def _recurrent(actions: str) -> str:
    from deploy.config.schema import PRESETS
    from deploy.config.yaml import overlay
    from deploy.launch.in_process import train_in_process

    with tempfile.TemporaryDirectory() as folder:
        settings = {
            "run": {"root": folder, "evaluate_every": 0, "reference_episodes": 0},
            "gym": {"id": "benchmarks.peers.ours:bench/Probe-v0", "kwargs": [f"actions={actions}"]},
            "actors": {"count": 1, "envs_per_actor": 2},
            "learner": {"device": "cpu", "batch_episodes": 2, "batch_steps": 64, "minibatches": 1, "updates": UPDATES},
        }
        if train_in_process(overlay(PRESETS["general"], settings)) != 0:
            raise RuntimeError("the training did not end as it should")
    return f"{UPDATES} updates, {illegal_share()}"


CLAIMS: list[Claim] = [(f"LSTM with masks, {actions} actions", partial(_recurrent, actions)) for actions in ACTIONS]

if __name__ == "__main__":
    report(("gymnasium", "torch"), CLAIMS)
