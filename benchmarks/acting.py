"""One step of the policy: the compiled kernel against the network itself and sb3-contrib, and what the endpoint gains.

    python -m benchmarks.acting [--quick] [--json FILE] [--endpoint]

`flat` is the network of `benchmarks.learner` (observations of 16 numbers, 4 actions), whose peer is sb3-contrib's
recurrent policy of the same sizes; `seeds` is the default policy with five slots. All sides call `act` (or `predict`)
in turns in one process on one thread; the least CPU time per call counts. `--endpoint` also runs two policy servers,
one with kernels and one without, and loads them in turns with closed loops; CPU time per step is that of
the server's process.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
import psutil
import torch

from actors.config import PolicyConfig
from actors.policy.acting.policy import ActingPolicy
from actors.policy.network import FactoredRecurrentActorCritic
from actors.types.actions import ActionMasks
from benchmarks.form import Target, parser, publish
from benchmarks.learner import our_network
from benchmarks.learning.peers import Shape, have_sb3, sb3_learner
from benchmarks.serving.load import LoadResult, closed_loop
from benchmarks.serving.process import SPACES, ServerProcess, running_server

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
    spec = spaces.action
    obs = rng.standard_normal((count, spaces.obs_size)).astype(np.float32)
    blueprints = rng.integers(-1, max(1, spaces.num_blueprints), (count, spaces.slots))
    noise = rng.random((count, len(spec.heads)))
    by_slot = (spec.num_ops, spec.num_slots) if spec.conditioned else ()
    op, rest = (np.ones((count, *shape), np.bool_) for shape in ((spec.num_ops,), (*by_slot, spec.rest_size)))
    masks = ActionMasks(op, np.ones((count, *by_slot), np.bool_) if spec.conditioned else None, rest)
    state = policy.initial_state(count)

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


def in_turns(sides: dict[str, Call], rounds: int, calls: int) -> dict[str, float]:
    """Return the CPU time of a call of each side in microseconds: the least of several rounds of turns."""
    best = dict.fromkeys(sides, float("inf"))
    for _ in range(rounds):
        for side, call in sides.items():
            call()
            began = time.process_time()
            for _ in range(calls):
                call()
            best[side] = min(best[side], (time.process_time() - began) / calls * 1e6)
    return best


def compare(name: str, network: FactoredRecurrentActorCritic, shape: Shape | None, rounds: int) -> list[dict[str, Any]]:
    kernel, eager = ActingPolicy(network), without_kernels(network)
    rows = []
    for count in SIZES:
        sides = {"kernel": acting(kernel, count), "eager": acting(eager, count)}
        if shape is not None and have_sb3():
            sides["sb3-contrib"] = peer(count, shape)
        for side, us in (found := in_turns(sides, rounds, max(10, 400 // count))).items():
            per_s, over = count / us * 1e6, us / found["kernel"]
            rows.append({"policy": name, "N": count, "side": side, "us": us, "steps/s": per_s, "kernel over it": over})
    return rows


def endpoint(seconds: float, rounds: int) -> list[dict[str, Any]]:
    """Load the servers alternately with one session and with 16, by unary calls and by streams."""
    rows = []
    with running_server("policy") as kernel, running_server("eager") as eager, running_server("echo") as echo:
        servers = {"kernel": kernel, "eager": eager, "echo": echo}
        for kind, sessions in (("unary", 1), ("unary", 16), ("stream", 1), ("stream", 16)):
            loads: dict[str, list[tuple[LoadResult, float]]] = {side: [] for side in servers}
            for _ in range(rounds):
                for side, server in servers.items():
                    loads[side].append(loaded(server, sessions, kind == "stream", seconds))
            for side, found in loads.items():
                pairs = zip(loads["kernel"], found, strict=True)
                rows.append(
                    {
                        "calls": kind,
                        "sessions": sessions,
                        "server": side,
                        "steps/s": float(np.median([x.steps_per_s for x, _ in found])),
                        "p50 ms": float(np.median([x.p50_ms for x, _ in found])),
                        "p99 ms": float(np.median([x.p99_ms for x, _ in found])),
                        "CPU us/step": float(np.median([us for _, us in found])),
                        "kernel over it": float(np.median([k.steps_per_s / x.steps_per_s for (k, _), (x, _) in pairs])),
                    }
                )
    return rows


def loaded(server: ServerProcess, sessions: int, stream: bool, seconds: float) -> tuple[LoadResult, float]:
    """Run a closed loop; return its result, and the server's CPU time per step in microseconds."""
    process = psutil.Process(server.pid)
    before = process.cpu_times()
    load = asyncio.run(closed_loop(server.address, sessions, stream, seconds))
    after = process.cpu_times()
    used_s = after.user + after.system - before.user - before.system
    return load, used_s / (1.2 * seconds * load.steps_per_s) * 1e6  # with its warm-up of a fifth


def main() -> None:
    known = parser("acting", __doc__.splitlines()[0])
    known.add_argument("--endpoint", action="store_true", help="also measure the policy server")
    args = known.parse_args()
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
    if args.endpoint:
        rows += endpoint(0.5 if args.quick else 1.5, 1 if args.quick else 5)
    publish(rows, targets, args.json)


if __name__ == "__main__":
    main()
