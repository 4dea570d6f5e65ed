"""sb3-contrib: `python -m benchmarks.peers.sb3`, with sb3-contrib installed."""

from __future__ import annotations

from functools import partial
from typing import Any

from benchmarks.peers.probe import ACTIONS, Claim, ProbeEnv, illegal_share, report


def _trained(algorithm: str, policy: str, actions: str) -> str:
    import sb3_contrib

    make: Any = getattr(sb3_contrib, algorithm)
    make(policy, ProbeEnv(actions), n_steps=64, batch_size=32, n_epochs=1, device="cpu").learn(128)
    return illegal_share()


def _both() -> str:
    """Fail where the library has no class for masks and recurrence."""
    import sb3_contrib

    both = [name for name in sb3_contrib.__all__ if "Mask" in name and "Recurrent" in name]
    if not both:
        raise NotImplementedError(f"none of {', '.join(sb3_contrib.__all__)} has both")
    return ", ".join(both)


CLAIMS: list[Claim] = [
    *(
        (f"{algorithm}, {actions} actions", partial(_trained, algorithm, policy, actions))
        for algorithm, policy in (("RecurrentPPO", "MlpLstmPolicy"), ("MaskablePPO", "MlpPolicy"))
        for actions in ACTIONS
    ),
    ("masks and recurrence in one algorithm", _both),
]

if __name__ == "__main__":
    report(("sb3-contrib", "stable-baselines3", "torch"), CLAIMS)
