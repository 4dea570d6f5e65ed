"""sb3-contrib: `python -m benchmarks.peers.sb3`, with sb3-contrib installed."""

from __future__ import annotations

from functools import partial
from typing import Any

from benchmarks.peers.probe import ACTIONS, Claim, ProbeEnv, illegal_share, report


def _recurrent(actions: str) -> str:
    from sb3_contrib import RecurrentPPO

    env: Any = ProbeEnv(actions)
    RecurrentPPO("MlpLstmPolicy", env, n_steps=64, batch_size=32, n_epochs=1, device="cpu").learn(128)
    return illegal_share() if env.choices else "trained"


def _masked(actions: str) -> str:
    from sb3_contrib import MaskablePPO

    env: Any = ProbeEnv(actions)
    MaskablePPO("MlpPolicy", env, n_steps=64, batch_size=32, n_epochs=1, device="cpu").learn(128)
    return illegal_share()


def _both() -> str:
    """Fail where the library has no class for masks and recurrence."""
    import sb3_contrib

    both = [name for name in sb3_contrib.__all__ if "Mask" in name and "Recurrent" in name]
    if not both:
        raise NotImplementedError(f"none of {', '.join(sb3_contrib.__all__)} has both")
    return ", ".join(both)


CLAIMS: list[Claim] = [
    *((f"RecurrentPPO, {actions} actions", partial(_recurrent, actions)) for actions in ACTIONS),
    *((f"MaskablePPO, {actions} actions", partial(_masked, actions)) for actions in ACTIONS),
    ("masks and recurrence in one algorithm", _both),
]

if __name__ == "__main__":
    report(("sb3-contrib", "stable-baselines3", "torch"), CLAIMS)
