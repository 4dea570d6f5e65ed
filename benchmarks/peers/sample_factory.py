"""Sample Factory: `python -m benchmarks.peers.sample_factory`, with sample-factory installed."""

from __future__ import annotations

import tempfile
from functools import partial
from typing import Any

from benchmarks.peers.probe import Claim, ProbeEnv, illegal_share, report

ACTIONS = ("discrete", "factored", "factored_tuple", "box", "mixed")


def make_env(name: str, cfg: Any, env_config: Any, render_mode: str | None = None) -> ProbeEnv:
    """The actions are the end of the environment's name."""
    return ProbeEnv(name.removeprefix("probe_"))


def _train(actions: str) -> str:
    from sample_factory.cfg.arguments import parse_full_cfg, parse_sf_args
    from sample_factory.envs.env_utils import register_env
    from sample_factory.train import run_rl

    register_env(f"probe_{actions}", make_env)
    with tempfile.TemporaryDirectory() as folder:
        options = {
            "algo": "APPO",
            "env": f"probe_{actions}",
            "experiment": "probe",
            "train_dir": folder,
            "device": "cpu",
            "serial_mode": True,
            "async_rl": False,
            "use_rnn": True,
            "num_workers": 1,
            "num_envs_per_worker": 2,
            "worker_num_splits": 1,
            "rollout": 8,
            "recurrence": 8,
            "batch_size": 32,
            "num_batches_per_epoch": 1,
            "num_epochs": 1,
            "train_for_env_steps": 256,
        }
        argv = [f"--{name}={value}" for name, value in options.items()]
        parser, _ = parse_sf_args(argv=argv)
        status = run_rl(parse_full_cfg(parser, argv))
    if status != 0:
        raise RuntimeError(f"status {status}")
    return illegal_share()


CLAIMS: list[Claim] = [(f"APPO with RNN, {actions} actions", partial(_train, actions)) for actions in ACTIONS]

if __name__ == "__main__":
    report(("sample-factory", "gymnasium", "torch"), CLAIMS)
