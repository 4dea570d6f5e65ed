"""A blueprint of one's own: a seed that mixes units through a sine. Run: python -m examples.own_blueprint"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from actors.env import make_env
from actors.env.blueprints.blueprint import Blueprint, Param, Params, Units
from actors.env.blueprints.family import register_blueprint


def shapes(width: int) -> dict[str, Param]:
    """The last layer starts at 0, so that germinating never moves the host's function."""
    inner = {"w1": Param((width, width), "fan_in"), "b1": Param((1, width), "zero")}
    return inner | {"w2": Param((width, width), "zero")}


def forward(p: Params, h: Tensor, units: Units | None = None) -> Tensor:
    """The same for one host, `h [B, W]`, and a fleet, `h [E, B, W]`; padded units stay 0 where sin(0) meets w2 = 0."""
    return h + torch.sin(h @ p["w1"] + p["b1"]) @ p["w2"]


def register() -> int:
    """For the MLP; `sequence=` and `image=` take blueprints of the CNNs (see `actors.env.blueprints.channel`)."""
    return register_blueprint(vector=Blueprint("sine", shapes, forward))


def main() -> None:
    number = register()
    env = make_env(tasks=("spirals",), horizon_epochs=12)
    env.reset(seed=1)
    script = {0: [1, 0, number, 0, 2, 0], 1: [5, 0, 0, 0, 0, 0], 4: [5, 0, 0, 0, 0, 0]}
    for epoch in range(12):
        env.step(np.array(script.get(epoch, [0] * 6)))
    for epoch, (stage, accuracy) in enumerate(zip(env.timeline.stages[0], env.timeline.accuracy[1:], strict=False)):
        print(f"epoch {epoch:2}  {stage:12} {accuracy:5.1f}%")


if __name__ == "__main__":
    main()
