"""Blends: how a seed's output s joins its host's h at strength alpha. At s = h each of them is the identity."""

from __future__ import annotations

import torch
from torch import Tensor

from actors.actions import BLENDS
from actors.env.blueprints import Param, Params

GATED = BLENDS.index("gated")


def gate_shapes(blend: int, width: int) -> dict[str, Param]:
    """Parameters of the blend itself: the gate of `gated`, which starts at 0.5 everywhere."""
    return {"gate.w": Param((width, 1), "zero"), "gate.b": Param((1, 1), "zero")} if blend == GATED else {}


def apply_blend(blend: int, h: Tensor, s: Tensor, alpha: float | Tensor, gate: Params) -> Tensor:
    match BLENDS[blend]:
        case "add":
            return h + alpha * (s - h)
        case "multiply":
            return h * (1.0 + alpha * torch.tanh(s - h))
        case _:
            return h + alpha * torch.sigmoid(h @ gate["gate.w"] + gate["gate.b"]) * (s - h)
