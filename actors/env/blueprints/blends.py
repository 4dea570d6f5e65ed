"""Blends: how a seed's output s joins its host's h at strength alpha. At s = h each of them is the identity."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from actors.env.blueprints.vector import Param, Params
from actors.types.actions import BLENDS

GATED = BLENDS.index("gated")


def gate_shapes(blend: int, width: int) -> dict[str, Param]:
    """Parameters of the blend itself: the gate of `gated`, which starts at 0.5 everywhere."""
    return {"gate.w": Param((width, 1), "zero"), "gate.b": Param((1, 1), "zero")} if blend == GATED else {}


GateLogits = Callable[[Tensor, Params], Tensor]
"""(hidden, gate) -> how far the gate is open before its sigmoid, broadcasting over what it gates."""


def unit_gate_logits(h: Tensor, gate: Params) -> Tensor:
    """The gate logit of each row `[B, 1]` of `h [B, W]`."""
    return h @ gate["gate.w"] + gate["gate.b"]


def channel_gate_logits(h: Tensor, gate: Params) -> Tensor:
    """The gate logit of each position `[M, 1, *space]` of `h [M, C, *space]`; a stack has E before the channels."""
    w, b = gate["gate.w"], gate["gate.b"]
    space = (None,) * (h.dim() - w.dim())
    channel = w.dim() - 1
    return (h * w.squeeze(-1)[(..., *space)]).sum(channel, keepdim=True) + b.squeeze(-1)[(..., *space)]


def apply_blend(
    blend: int, h: Tensor, s: Tensor, alpha: float | Tensor, gate: Params, gate_logits: GateLogits = unit_gate_logits
) -> Tensor:
    match BLENDS[blend]:
        case "add":
            return h + alpha * (s - h)
        case "multiply":
            return h * (1.0 + alpha * torch.tanh(s - h))
        case _:
            return h + alpha * torch.sigmoid(gate_logits(h, gate)) * (s - h)
