"""The update of recurrent PPO: steps per second against sb3-contrib and RLlib.

    python -m benchmarks.learner [--quick] [--json FILE] [--device cpu|cuda] [--repeats N]

All sides run in one process on one thread, on the same shapes: observations of 16 numbers, 4 actions, an encoder of
128, an LSTM of 128, heads of 64. An update is all of it: advantages, batching and every pass; steps per second count
each pass. `unbroken` streams hold no episode's start, which is sb3-contrib's fast path; with ends every 25 steps it
falls back to a loop over time, and that is what its targets are measured with.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from actors.config import PolicyConfig
from actors.policy.network import FactoredRecurrentActorCritic
from actors.types.actions import ActionSpec, Head
from actors.types.episode import EndReason, Episode
from actors.types.spaces import Spaces
from benchmarks.form import Side, Target, add_device, in_turns, parser, publish, seconds
from benchmarks.peers.learners import Prepare, Shape, have_rllib, have_sb3, rllib_learner, sb3_learner
from learner.config import LearnerConfig
from learner.ppo.batch import make_batch
from learner.ppo.optimizer import make_optimizer
from learner.ppo.update import PPOUpdate
from tests.support.builders import make_episode

STRIDE = 8


def our_network(shape: Shape, device: str) -> FactoredRecurrentActorCritic:
    head = Head("action", tuple(str(a) for a in range(shape.actions)))
    spec = ActionSpec((head,), ((True,),) * shape.actions, conditioned=False)
    config = PolicyConfig(hidden_size=shape.hidden, encoder_size=shape.features, head_size=shape.head)
    torch.manual_seed(0)
    return FactoredRecurrentActorCritic(Spaces.flat(spec, shape.obs_size), config).to(device)


def our_episodes(shape: Shape, network: FactoredRecurrentActorCritic) -> list[Episode]:
    """What the actors would have shipped: the streams, cut where episodes end."""
    length = shape.episode_steps or shape.steps
    lengths = [min(length, shape.steps - first) for first in range(0, shape.steps, length)]
    episodes = []
    for n, steps in enumerate(lengths * shape.envs):
        episode = make_episode(
            n, steps=steps, features=shape.obs_size, slots=0, head_sizes=(shape.actions,), hidden=shape.hidden,
            state_stride=STRIDE, sequence=n, spaces_hash=network.spaces.hash,
            log_probs=np.full((steps, 1), -np.log(shape.actions), dtype=np.float32),
        )  # fmt: skip
        ended = steps == shape.episode_steps
        reason = EndReason.ENVIRONMENT if ended else EndReason.CUT
        episodes.append(replace(episode, terminated=ended, truncated=not ended, end_reason=reason))
    return episodes


def our_learner(shape: Shape, device: str) -> Prepare:
    network = our_network(shape, device)
    config = LearnerConfig(
        update_epochs=shape.epochs,
        minibatches=shape.batch_steps // shape.minibatch_steps,
        gamma=0.99,
        gae_lambda=0.95,
        target_kl=1e9,
        state_stride=STRIDE,
    )
    ppo = PPOUpdate(network, make_optimizer(network, 2.5e-4, 0.0), config)
    episodes = our_episodes(shape, network)

    def update() -> None:
        ppo(make_batch(episodes, network.spaces), update=0, version=0)

    return lambda: update


def compare(sides: dict[str, Prepare], shape: Shape, name: str, device: str, repeats: int) -> list[dict[str, Any]]:
    def timed(prepare: Prepare) -> Side:
        return lambda: seconds(prepare(), device)

    best = in_turns({side: timed(prepare) for side, prepare in sides.items()}, repeats)
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


def main() -> None:
    known = parser("learner", __doc__.splitlines()[0])
    add_device(known)
    known.add_argument("--repeats", type=int, default=3, help="turns, of which the best counts")
    args = known.parse_args()
    device, quick = args.device, args.quick
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
    if not have_sb3():
        print("left out: sb3-contrib, which is not installed: pip install 'tamiyo[bench]'")
    if not have_rllib():
        print("left out: RLlib, which is not installed: pip install 'ray[rllib]'")
    publish(rows, targets, args.json)


if __name__ == "__main__":
    main()
