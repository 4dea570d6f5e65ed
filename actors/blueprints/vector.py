"""The blueprints of the MLP host. All but `attention` add to their input; each is the identity at initialization."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from actors.blueprints.blueprint import NOOP, Blueprint, Param, Params, vector
from actors.layers.layer_norm import Units, layer_norm


def two_layer_shapes(width: int, hidden: int) -> dict[str, Param]:
    """Return the parameters of two layers with `hidden` units between them."""
    first = {"w1": Param((width, hidden), "fan_in"), "b1": vector(hidden)}
    return first | {"w2": Param((hidden, width), "zero"), "b2": vector(width)}


def _residual(p: Params, h: Tensor, units: Units | None = None) -> Tensor:
    return h + torch.relu(h @ p["w1"] + p["b1"]) @ p["w2"] + p["b2"]


def _residual_mlp(name: str, hidden: Callable[[int], int]) -> Blueprint:
    """Add a two-layer MLP of `hidden(width)` units."""
    return Blueprint(name, lambda width: two_layer_shapes(width, hidden(width)), _residual, "residual")


def norm_shapes(width: int) -> dict[str, Param]:
    """Return the parameters of a norm whose output is scaled, at first by 0."""
    return {"gain": vector(width, "one"), "bias": vector(width), "scale": vector(width)}


def _norm(p: Params, h: Tensor, units: Units | None = None) -> Tensor:
    """Add a scaled LayerNorm (Ba et al., 2016) of the input."""
    return h + p["scale"] * layer_norm(h, p["gain"], p["bias"], units)


def _gated_shapes(width: int) -> dict[str, Param]:
    matrix, zeros = Param((width, width), "fan_in"), vector(width)
    value = {"value_w": matrix, "value_b": zeros}
    return {"w1": matrix, "b1": zeros} | value | {"w2": Param((width, width), "zero"), "b2": zeros}


def _gated(p: Params, h: Tensor, units: Units | None = None) -> Tensor:
    """Add a gated linear unit (Dauphin et al., 2017)."""
    inner = torch.sigmoid(h @ p["w1"] + p["b1"]) * (h @ p["value_w"] + p["value_b"])
    return h + inner @ p["w2"] + p["b2"]


def _attention(p: Params, h: Tensor, units: Units | None = None) -> Tensor:
    """Scale each unit by a learned excitation, which starts at 2 * sigmoid(0) = 1 (after Hu et al., 2018)."""
    return h * (2.0 * torch.sigmoid(torch.relu(h @ p["w1"] + p["b1"]) @ p["w2"] + p["b2"]))


MLP_BLUEPRINTS: list[Blueprint] = [
    NOOP,
    Blueprint("norm", norm_shapes, _norm, "norm"),
    _residual_mlp("bottleneck", lambda width: max(2, width // 4)),
    _residual_mlp("dense", lambda width: width),
    Blueprint("gated", _gated_shapes, _gated, "gated"),
    Blueprint("attention", lambda width: two_layer_shapes(width, max(3, width // 2)), _attention, "excitation"),
    _residual_mlp("mlp_wide", lambda width: 4 * width),
]
