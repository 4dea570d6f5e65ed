"""PufferLib: `python -m benchmarks.peers.pufferlib`, with pufferlib installed.

Its package has environments' emulation, models and distributions, and no training loop: a claim is a forward pass, a
sample and a gradient.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from benchmarks.peers.probe import Claim, ProbeEnv, illegal_share, report

ACTIONS = ("discrete", "factored", "factored_tuple", "box", "mixed")


def _act(actions: str) -> str:
    import pufferlib.cleanrl
    import pufferlib.emulation
    import pufferlib.models
    import pufferlib.vector
    import torch

    def make() -> pufferlib.emulation.GymnasiumPufferEnv:
        return pufferlib.emulation.GymnasiumPufferEnv(env=ProbeEnv(actions))

    envs = pufferlib.vector.make(make, num_envs=2, backend=pufferlib.vector.Serial)
    driver = envs.driver_env
    policy = pufferlib.cleanrl.RecurrentPolicy(pufferlib.models.LSTMWrapper(driver, pufferlib.models.Default(driver)))
    obs, _ = envs.reset(seed=0)
    state = None
    for _ in range(32):
        action, log_prob, _, _, state = policy(torch.as_tensor(np.array(obs)), state)
        obs, *_ = envs.step(action.numpy().reshape(2, -1).squeeze())
    log_prob.sum().backward()
    gradient = policy.lstm.weight_hh_l0.grad
    if gradient is None or not gradient.isfinite().all():
        raise RuntimeError("no gradient of the LSTM")
    return illegal_share() if ProbeEnv(actions).choices else "acted"


def _trains() -> str:
    """Fail if no module of the package trains a policy."""
    from importlib.metadata import files

    names = [str(path) for path in files("pufferlib") or () if path.name in ("pufferl.py", "clean_pufferl.py")]
    if not names:
        raise NotImplementedError("the package has no training loop")
    return ", ".join(names)


CLAIMS: list[Claim] = [
    *((f"LSTM, {actions} actions", partial(_act, actions)) for actions in ACTIONS),
    ("training loop in the package", _trains),
]

if __name__ == "__main__":
    report(("pufferlib", "gymnasium", "torch"), CLAIMS)
