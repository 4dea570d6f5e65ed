"""A blueprint of your own: a seed that mixes units through a sine. Run: python examples/own_blueprint.py"""

from __future__ import annotations

import torch
from torch import Tensor

import tamiyo


def shapes(width: int) -> dict[str, tamiyo.Param]:
    """The last layer starts at 0, so that germinating the seed does not change the host's output."""
    inner = {"w1": tamiyo.Param((width, width), "fan_in"), "b1": tamiyo.Param((1, width), "zero")}
    return inner | {"w2": tamiyo.Param((width, width), "zero")}


def forward(p: tamiyo.Params, h: Tensor, units: tamiyo.Units | None = None) -> Tensor:
    """Serves one host, `h [B, W]`, and a fleet of hosts, `h [E, B, W]`. Padded units stay 0, because sin(0) is 0."""
    return h + torch.sin(h @ p["w1"] + p["b1"]) @ p["w2"]


def register() -> int:
    """Register the blueprint for MLP hosts; `sequence=` and `image=` take blueprints for convolutional hosts."""
    return tamiyo.register_blueprint(vector=tamiyo.Blueprint("sine", shapes, forward))


def main() -> None:
    sine = register()
    env = tamiyo.make_env(tasks=("spirals",), horizon_epochs=12)
    env.reset(seed=1)
    advance = tamiyo.SeedAction(tamiyo.Op.ADVANCE, slot=0)
    plan = {
        0: tamiyo.SeedAction(tamiyo.Op.GERMINATE, slot=0, blueprint=sine, alpha_target=2),
        1: advance,
        4: advance,
    }
    for epoch in range(12):
        env.step(plan.get(epoch, tamiyo.SeedAction(tamiyo.Op.WAIT)))
    played = env.episode.timeline
    for epoch, (stage, accuracy) in enumerate(zip(played.stages[0], played.accuracy[1:], strict=True)):
        print(f"epoch {epoch:2}  {stage:12} {accuracy:5.1f}%")


if __name__ == "__main__":
    main()
