"""Blueprints: what a seed can be. One table per host family; every blueprint starts as the identity.

A blueprint is its parameters (`shapes`) and a pure function of them. Matrices are `[in, out]` and vectors `[1, n]`,
so that the same function runs one environment (`h [B, W]`) and a stacked fleet (`h [E, B, W]`, parameters `[E, ...]`).
Here are those of the MLP; `channel_blueprints` has those of the CNNs.
In a fleet the width is padded: padded parameters are 0 and stay 0, and what averages over units asks `Units` which are
real. Padded units of the output must be 0 where those of the input are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from actors.env.layers.fusion import fusible

Params = Mapping[str, Tensor]


class Param(NamedTuple):
    """Shape and start of one parameter; `fan_in` draws from U(-1/sqrt(in), 1/sqrt(in)).

    A matrix is `[in, out]`, a kernel `[out, in, *taps]`.
    """

    shape: tuple[int, ...]
    start: Literal["fan_in", "zero", "one"]

    @property
    def size(self) -> int:
        return prod(self.shape)

    def draw(self, rng: np.random.Generator) -> NDArray[np.float64]:
        if self.start == "fan_in":
            bound = (self.shape[0] if len(self.shape) == 2 else prod(self.shape[1:])) ** -0.5
            return rng.uniform(-bound, bound, self.shape)
        return np.full(self.shape, float(self.start == "one"))


class Units(NamedTuple):
    """Which hidden units of a padded width are real, per environment."""

    mask: Tensor  # [E, 1, W] 1 where real, 0 where padding
    share: Tensor  # [E, W, 1] 1 / width where real, 0 where padding

    def rows(self, index: Tensor | slice) -> Units:
        return Units(self.mask[index], self.share[index])


@fusible
def layer_norm(h: Tensor, gain: Tensor, bias: Tensor, units: Units | None = None, eps: float = 1e-5) -> Tensor:
    """Over the last dimension; over its real units alone where `units` is given, and 0 elsewhere."""
    if units is None:
        centred = h - h.mean(-1, keepdim=True)
        return centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + eps) * gain + bias
    centred = (h - h @ units.share) * units.mask
    return centred * torch.rsqrt(centred.square() @ units.share + eps) * gain + bias


Formula = Literal["norm", "residual", "gated", "excitation"]


@dataclass(frozen=True)
class Blueprint:
    name: str
    shapes: Callable[[int], dict[str, Param]]  # width at the slot -> parameters
    forward: Callable[[Params, Tensor, Units | None], Tensor]  # same shape out as in
    form: Formula | None = None
    """What it is among those that `actors.env.kernels` has machine code for; None where it is something else."""

    @cache  # noqa: B019 - there are a handful of blueprints, and they live as long as the process
    def cost(self, width: int) -> int:
        """Parameters that a seed of this blueprint adds, without its blend's gate."""
        return sum(p.size for p in self.shapes(width).values())

    def hidden(self, width: int) -> int:
        """Units of its inner layer; 0 where it has none."""
        inner = self.shapes(width).get("w1")
        return 0 if inner is None else inner.shape[1]


def _residual_mlp(name: str, hidden: Callable[[int], int]) -> Blueprint:
    def shapes(width: int) -> dict[str, Param]:
        k = hidden(width)
        return {
            "w1": Param((width, k), "fan_in"),
            "b1": Param((1, k), "zero"),
            "w2": Param((k, width), "zero"),
            "b2": Param((1, width), "zero"),
        }

    def forward(p: Params, h: Tensor, units: Units | None = None) -> Tensor:
        return h + torch.relu(h @ p["w1"] + p["b1"]) @ p["w2"] + p["b2"]

    return Blueprint(name, shapes, forward, "residual")


def _norm_shapes(width: int) -> dict[str, Param]:
    vector = Param((1, width), "zero")
    return {"gain": Param((1, width), "one"), "bias": vector, "scale": vector}


def _norm(p: Params, h: Tensor, units: Units | None = None) -> Tensor:
    return h + p["scale"] * layer_norm(h, p["gain"], p["bias"], units)


def _gated_shapes(width: int) -> dict[str, Param]:
    matrix, vector = Param((width, width), "fan_in"), Param((1, width), "zero")
    out = {"w2": Param((width, width), "zero"), "b2": vector}
    return {"w1": matrix, "b1": vector, "value_w": matrix, "value_b": vector} | out


def _gated(p: Params, h: Tensor, units: Units | None = None) -> Tensor:
    """A gated linear unit (Dauphin et al., 2017)."""
    inner = torch.sigmoid(h @ p["w1"] + p["b1"]) * (h @ p["value_w"] + p["value_b"])
    return h + inner @ p["w2"] + p["b2"]


def _attention_shapes(width: int) -> dict[str, Param]:
    k = max(3, width // 2)
    return {
        "w1": Param((width, k), "fan_in"),
        "b1": Param((1, k), "zero"),
        "w2": Param((k, width), "zero"),
        "b2": Param((1, width), "zero"),
    }


def _attention(p: Params, h: Tensor, units: Units | None = None) -> Tensor:
    # 2 * sigmoid(0) = 1: the excitation starts at one.
    return h * (2.0 * torch.sigmoid(torch.relu(h @ p["w1"] + p["b1"]) @ p["w2"] + p["b2"]))


def _identity(p: Params, h: Tensor, units: Units | None = None) -> Tensor:
    return h


NOOP = Blueprint("noop", lambda width: {}, _identity)

MLP_BLUEPRINTS: list[Blueprint] = [
    NOOP,
    Blueprint("norm", _norm_shapes, _norm, "norm"),
    _residual_mlp("bottleneck", lambda width: max(2, width // 4)),
    _residual_mlp("dense", lambda width: width),
    Blueprint("gated", _gated_shapes, _gated, "gated"),
    Blueprint("attention", _attention_shapes, _attention, "excitation"),
    _residual_mlp("mlp_wide", lambda width: 4 * width),
]
