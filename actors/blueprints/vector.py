"""The blueprints of the MLP host. All but `attention` add to their input; each is the identity at initialization."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from actors.blueprints.blueprint import NOOP, Blueprint, Param, Params
from actors.layers.layer_norm import Units, layer_norm


def _two_layers(hidden: Callable[[int], int]) -> Callable[[int], dict[str, Param]]:
    """Return the shapes of two layers with `hidden(width)` units between them."""

    def shapes(width: int) -> dict[str, Param]:
        k, vector = hidden(width), Param((1, width), "zero")
        return {
            "w1": Param((width, k), "fan_in"),
            "b1": Param((1, k), "zero"),
            "w2": Param((k, width), "zero"),
            "b2": vector,
        }

    return shapes


def _residual(p: Params, h: Tensor, units: Units | None = None) -> Tensor:
    return h + torch.relu(h @ p["w1"] + p["b1"]) @ p["w2"] + p["b2"]


def _residual_mlp(name: str, hidden: Callable[[int], int]) -> Blueprint:
    """Add a two-layer MLP of `hidden(width)` units."""
    return Blueprint(name, _two_layers(hidden), _residual, "residual")


def _norm_shapes(width: int) -> dict[str, Param]:
    vector = Param((1, width), "zero")
    return {"gain": Param((1, width), "one"), "bias": vector, "scale": vector}


def _norm(p: Params, h: Tensor, units: Units | None = None) -> Tensor:
    """Add a scaled LayerNorm (Ba et al., 2016) of the input."""
    return h + p["scale"] * layer_norm(h, p["gain"], p["bias"], units)


def _gated_shapes(width: int) -> dict[str, Param]:
    matrix, vector = Param((width, width), "fan_in"), Param((1, width), "zero")
    out = {"w2": Param((width, width), "zero"), "b2": vector}
    return {"w1": matrix, "b1": vector, "value_w": matrix, "value_b": vector} | out


def _gated(p: Params, h: Tensor, units: Units | None = None) -> Tensor:
    """Add a gated linear unit (Dauphin et al., 2017)."""
    inner = torch.sigmoid(h @ p["w1"] + p["b1"]) * (h @ p["value_w"] + p["value_b"])
    return h + inner @ p["w2"] + p["b2"]


def _attention(p: Params, h: Tensor, units: Units | None = None) -> Tensor:
    """Scale each unit by a learned excitation, which starts at 2 * sigmoid(0) = 1 (after Hu et al., 2018)."""
    return h * (2.0 * torch.sigmoid(torch.relu(h @ p["w1"] + p["b1"]) @ p["w2"] + p["b2"]))


MLP_BLUEPRINTS: list[Blueprint] = [
    NOOP,
    Blueprint("norm", _norm_shapes, _norm, "norm"),
    _residual_mlp("bottleneck", lambda width: max(2, width // 4)),
    _residual_mlp("dense", lambda width: width),
    Blueprint("gated", _gated_shapes, _gated, "gated"),
    Blueprint("attention", _two_layers(lambda width: max(3, width // 2)), _attention, "excitation"),
    _residual_mlp("mlp_wide", lambda width: 4 * width),
]
