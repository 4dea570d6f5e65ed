"""The update of recurrent PPO: steps per second against sb3-contrib and RLlib, and acting at several batch sizes.

    python -m benchmarks.learner [--quick] [--json FILE] [--device cpu|cuda] [--repeats N]

All sides run in one process on one thread, on the same shapes: observations of 16 numbers, 4 actions, an encoder of
128, an LSTM of 128, heads of 64. An update is all of it: advantages, batching and every pass; steps per second count
each pass. `unbroken` streams hold no episode's start, which is sb3-contrib's fast path; with ends every 25 steps it
falls back to a loop over time, and that is what its targets are measured with. On CUDA two rows more say how close our
update comes to the arithmetic of its LSTM alone (its roofline, from a measured matrix product), and how much of the
device's time the fused LSTM has.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from actors.config import PolicyConfig
from actors.policy.acting.policy import ActingPolicy
from actors.policy.network import FactoredRecurrentActorCritic
from actors.types.actions import ActionMasks, ActionSpec, Head
from actors.types.episode import EndReason, Episode, RecurrentState
from actors.types.spaces import Spaces
from benchmarks.environment.roofline import peaks
from benchmarks.form import Target, parser, publish
from benchmarks.learning.peers import Prepare, Shape, have_rllib, have_sb3, rllib_learner, sb3_learner
from learner.config import LearnerConfig
from learner.ppo.batch import make_batch
from learner.ppo.optimizer import make_optimizer
from learner.ppo.update import PPOUpdate

STRIDE = 8


def our_network(shape: Shape, device: str) -> FactoredRecurrentActorCritic:
    head = Head("action", tuple(str(a) for a in range(shape.actions)))
    spec = ActionSpec((head,), ((True,),) * shape.actions, conditioned=False)
    config = PolicyConfig(hidden_size=shape.hidden, encoder_size=shape.features, head_size=shape.head)
    torch.manual_seed(0)
    return FactoredRecurrentActorCritic(Spaces.flat(spec, shape.obs_size), config).to(device)


def our_episodes(shape: Shape, network: FactoredRecurrentActorCritic) -> list[Episode]:
    """What the actors would have shipped: the streams, cut where episodes end."""
    rng = np.random.default_rng(0)
    length = shape.episode_steps or shape.steps
    episodes = []
    for env in range(shape.envs):
        for first in range(0, shape.steps, length):
            steps = min(length, shape.steps - first)
            ended = shape.episode_steps is not None and steps == length
            episodes.append(_episode(rng, f"{env}/{first}", steps, ended, shape, network.spaces.hash))
    return episodes


def _episode(rng: np.random.Generator, name: str, steps: int, ended: bool, shape: Shape, spaces_hash: str) -> Episode:
    def state(count: int) -> RecurrentState:
        h, c = (0.1 * rng.standard_normal((1, count, shape.hidden)).astype(np.float32) for _ in "hc")
        none = np.zeros((0, count, 0), dtype=np.float32)
        return RecurrentState(h, c, none, none)

    masks = np.ones((steps, shape.actions), dtype=np.bool_)
    obs = rng.standard_normal((steps + 1, shape.obs_size)).astype(np.float32)
    values = np.zeros(steps, dtype=np.float32)
    return Episode(
        episode_id=f"run/{name}",
        env_id="noise",
        task_id="noise",
        seed=0,
        spaces_hash=spaces_hash,
        generation=1,
        policy_version=np.zeros(steps, dtype=np.int64),
        obs=obs[:-1],
        blueprint_indices=np.zeros((steps, 0), dtype=np.int64),
        actions=rng.integers(0, shape.actions, (steps, 1)),
        log_probs=np.full((steps, 1), -np.log(shape.actions), dtype=np.float32),
        masks=masks,
        values=values,
        baseline_values=values,
        rewards=rng.standard_normal(steps).astype(np.float32),
        end_reason=EndReason.ENVIRONMENT if ended else EndReason.CUT,
        terminated=ended,
        truncated=not ended,
        final_obs=obs[-1],
        final_blueprint_indices=np.zeros(0, dtype=np.int64),
        final_masks=masks[0],
        bootstrap_value=0.0,
        initial_state=state(1),
        states=state(-(-steps // STRIDE)),
        state_stride=STRIDE,
    )


def our_learner(shape: Shape, device: str, **changes: Any) -> Prepare:
    network = our_network(shape, device)
    config = LearnerConfig(
        update_epochs=shape.epochs,
        minibatches=shape.batch_steps // shape.minibatch_steps,
        gamma=0.99,
        gae_lambda=0.95,
        target_kl=1e9,
        state_stride=STRIDE,
        **changes,
    )
    ppo = PPOUpdate(network, make_optimizer(network, 2.5e-4, 0.0), config)
    episodes = our_episodes(shape, network)

    def update() -> None:
        ppo(make_batch(episodes, network.spaces), update=0, version=0)

    return lambda: update


def seconds(run: Callable[[], None], device: str) -> float:
    """CPU time on a CPU, where others may be working; wall-clock around a synchronized device."""
    clock = time.process_time if device == "cpu" else time.perf_counter
    start = clock()
    run()
    if device == "cuda":
        torch.cuda.synchronize()
    return clock() - start


def compare(sides: dict[str, Prepare], shape: Shape, name: str, device: str, repeats: int) -> list[dict[str, Any]]:
    """The sides take turns, after one update each to warm up; the best of each counts."""
    best = dict.fromkeys(sides, float("inf"))
    for turn in range(repeats + 1):
        for side, prepare in sides.items():
            taken = seconds(prepare(), device)
            if turn > 0:
                best[side] = min(best[side], taken)
    rate = {side: shape.batch_steps * shape.epochs / s for side, s in best.items()}
    return [
        {
            "what": name,
            "minibatch": shape.minibatch_steps,
            "side": side,
            "steps/s": r,
            "ours over it": rate["tamiyo"] / r,
        }
        for side, r in rate.items()
    ]


def acting(shape: Shape, device: str, calls: int) -> list[dict[str, Any]]:
    policy = ActingPolicy(our_network(shape, device).eval())
    peer = sb3_learner(replace(shape, steps=2), device)[1] if have_sb3() else None
    rows = []
    for n in (1, 16, 256):
        rng = np.random.default_rng(0)
        obs = rng.standard_normal((n, shape.obs_size)).astype(np.float32)
        blueprints, noise = np.zeros((n, 0), dtype=np.int64), rng.random((n, 1))
        legal = np.ones((n, shape.actions), dtype=np.bool_)
        masks, starts = ActionMasks(legal, None, legal[:, :0]), np.zeros(n, dtype=np.float32)

        def ours(obs: Any = obs, n: int = n, b: Any = blueprints, m: ActionMasks = masks, u: Any = noise) -> None:
            state = policy.initial_state(n)
            for _ in range(calls):
                _, state = policy.act(obs, b, m, state, u)

        def theirs(obs: Any = obs, starts: Any = starts) -> None:
            state = None
            for _ in range(calls):
                _, state = peer.predict(obs, state, starts)

        taken: dict[str, Callable[[], None]] = {"tamiyo": ours} | ({"sb3-contrib": theirs} if peer is not None else {})
        best = {side: min(seconds(run, device) for _ in range(3)) for side, run in taken.items()}
        rows += [
            {
                "what": "acting",
                "minibatch": n,
                "side": side,
                "steps/s": n * calls / s,
                "ours over it": s / best["tamiyo"],
            }
            for side, s in best.items()
        ]
    return rows


def fused_lstm(shape: Shape) -> list[dict[str, Any]]:
    """Share of the device's time inside the fused LSTM, and of the steps per second that its arithmetic allows."""
    from torch.profiler import ProfilerActivity, profile

    update = our_learner(shape, "cuda")()
    update()
    taken = min(seconds(update, "cuda") for _ in range(3))
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
        update()
        torch.cuda.synchronize()
    events = seen.key_averages()
    total = sum(e.self_device_time_total for e in events if e.device_type == torch.autograd.DeviceType.CUDA)
    inside = sum(e.device_time_total for e in events if e.key in ("aten::_cudnn_rnn", "aten::_cudnn_rnn_backward"))
    flops = 3 * 2 * 4 * shape.hidden * (shape.features + shape.hidden) * shape.batch_steps * shape.epochs
    device, rate = torch.cuda.get_device_name(), shape.batch_steps * shape.epochs / taken
    return [
        {"of the update, %": name, "minibatch": shape.minibatch_steps, "device": device, "steps/s": rate, "%": 100 * x}
        for name, x in (
            ("device time in the fused LSTM", inside / max(1.0, total)),
            ("roofline of the LSTM", flops / taken / peaks("cuda")[0]),
        )
    ]


def main() -> None:
    known = parser("learner", __doc__.splitlines()[0])
    known.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="where networks run")
    known.add_argument("--repeats", type=int, default=3, help="turns, of which the best counts")
    args = known.parse_args()
    device, quick = args.device, args.quick
    if device == "cuda" and not torch.cuda.is_available():
        known.error("--device cuda: PyTorch finds no CUDA device on this machine")
    repeats, epochs = (1, 2) if quick else (args.repeats, 10)
    goals = (4.0, 2.0, 2.0) if device == "cpu" else (10.0, 10.0, 5.0)
    rows: list[dict[str, Any]] = []
    targets = []
    for name, ends in (("unbroken", None), ("ends every 25", 25)):
        small = Shape(episode_steps=ends, epochs=epochs)
        large = replace(small, envs=64, minibatch_steps=2048)
        for shape, goal in ((small, goals[0]), (large, goals[1])):
            sides: dict[str, Prepare] = {"tamiyo": our_learner(shape, device)}
            if have_sb3():
                sides["sb3-contrib"] = sb3_learner(shape, device)[0]
            if shape is large and ends and have_rllib() and not quick:
                sides["rllib"] = rllib_learner(shape, device)
            found = compare(sides, shape, name, device, repeats)
            rows += found
            wanted = {"sb3-contrib": goal, "rllib": goals[2]} if ends else {}
            title = f"update, {name} steps, minibatches of {shape.minibatch_steps}: ours over"
            targets += [
                Target(f"{title} {row['side']}", row["ours over it"], wanted[row["side"]])
                for row in found
                if row["side"] in wanted
            ]
    rows += acting(Shape(), device, 20 if quick else 200)
    if device == "cuda":
        rows += fused_lstm(replace(Shape(), envs=256, minibatch_steps=32768, epochs=4))
    if not have_sb3():
        print("left out: sb3-contrib, which is not installed: pip install 'tamiyo[bench]'")
    if not have_rllib():
        print("left out: RLlib, which is not installed: pip install 'ray[rllib]'")
    publish(rows, targets, args.json)


if __name__ == "__main__":
    main()
