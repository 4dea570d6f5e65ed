"""One step of the policy: the compiled kernel against the network itself and sb3-contrib.

    python -m benchmarks.acting [--quick] [--json FILE]

`flat` is the network of `benchmarks.learner` (observations of 16 numbers, 4 actions), whose peer is sb3-contrib's
recurrent policy of the same sizes; `seeds` is the default policy with five slots. All sides call `act` (or `predict`)
in turns in one process on one thread; the least CPU time per call counts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from actors.config import PolicyConfig
from actors.policy.acting.policy import ActingPolicy
from actors.policy.network import FactoredRecurrentActorCritic
from actors.types.actions import ActionMasks
from benchmarks.form import Side, Target, in_turns, parser, publish, seconds
from benchmarks.learner import our_network
from benchmarks.peers.learners import Shape, have_sb3, sb3_learner
from benchmarks.serving.process import SPACES

SIZES = (1, 16, 64, 256)
GOALS = {1: 3.0, 16: 2.0, 256: 1.3}
Call = Callable[[], object]


def without_kernels(network: FactoredRecurrentActorCritic) -> ActingPolicy:
    """Return a policy that acts by the network itself, as where there are no kernels."""
    with patch.object(FactoredRecurrentActorCritic, "has_kernels", False):
        return ActingPolicy(network)


def acting(policy: ActingPolicy, count: int) -> Call:
    """Return a function that acts once for `count` environments, from where the last call left their states."""
    spaces, rng = policy.network.spaces, np.random.default_rng(0)
    obs = rng.standard_normal((count, spaces.obs_size)).astype(np.float32)
    blueprints = rng.integers(-1, max(1, spaces.num_blueprints), (count, spaces.slots))
    noise = rng.random((count, len(spaces.action.heads)))
    masks, state = ActionMasks.all_legal(spaces.action, count), policy.initial_state(count)

    def act() -> None:
        nonlocal state
        _, state = policy.act(obs, blueprints, masks, state, noise)

    return act


def peer(count: int, shape: Shape) -> Call:
    """Return a function that calls sb3-contrib's policy once."""
    model = sb3_learner(replace(shape, steps=2), "cpu")[1]
    obs = np.random.default_rng(0).standard_normal((count, shape.obs_size)).astype(np.float32)
    starts, state = np.zeros(count, np.float32), None

    def predict() -> None:
        nonlocal state
        _, state = model.predict(obs, state, starts)

    return predict


def _repeated(call: Call, times: int) -> Side:
    """Return a side whose seconds are those of one call, the mean of several."""
    return lambda: seconds(lambda: [call() for _ in range(times)]) / times


def compare(name: str, network: FactoredRecurrentActorCritic, shape: Shape | None, rounds: int) -> list[dict[str, Any]]:
    kernel, eager = ActingPolicy(network), without_kernels(network)
    rows = []
    for count in SIZES:
        sides = {"kernel": acting(kernel, count), "eager": acting(eager, count)}
        if shape is not None and have_sb3():
            sides["sb3-contrib"] = peer(count, shape)
        found = in_turns({side: _repeated(call, max(10, 400 // count)) for side, call in sides.items()}, rounds)
        for side, s in found.items():
            us, per_s, over = 1e6 * s, count / s, s / found["kernel"]
            rows.append({"policy": name, "N": count, "side": side, "us": us, "steps/s": per_s, "kernel over it": over})
    return rows


def main() -> None:
    args = parser("acting", __doc__.splitlines()[0]).parse_args()
    rounds = 2 if args.quick else 10
    torch.manual_seed(0)
    default = FactoredRecurrentActorCritic(SPACES, PolicyConfig()).eval()
    rows = compare("seeds", default, None, rounds)
    rows += compare("flat", our_network(Shape(), "cpu").eval(), Shape(), rounds)
    targets = [
        Target(f"{row['policy']}, {row['N']} rows: kernel over eager", row["kernel over it"], GOALS[row["N"]])
        for row in rows
        if row["side"] == "eager" and row["N"] in GOALS
    ]
    if not have_sb3():
        print("sb3-contrib is not installed, so it is left out: pip install 'tamiyo[bench]'")
    publish(rows, targets, args.json)


if __name__ == "__main__":
    main()
