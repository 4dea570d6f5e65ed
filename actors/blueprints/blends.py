"""Blends: formulas that join the output s of a seed to the hidden tensor h of its host, at strength alpha.

Each returns h if s = h, so that a seed that is the identity changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from actors.blueprints.blueprint import Param, Params
from actors.types.actions import BLENDS

GATED = BLENDS.index("gated")


def gate_shapes(blend: int, width: int) -> dict[str, Param]:
    """Return the parameters of a blend: the gate of `gated`, which is 0.5 at initialization; none for the others."""
    return {"gate.w": Param((width, 1), "zero"), "gate.b": Param((1, 1), "zero")} if blend == GATED else {}


GateLogits = Callable[[Tensor, Params], Tensor]
"""(hidden, gate parameters) -> logits of the gate, in a shape that broadcasts over the hidden tensor."""


def unit_gate_logits(h: Tensor, gate: Params) -> Tensor:
    """Return one logit per row, `[B, 1]` of `h [B, W]`."""
    return h @ gate["gate.w"] + gate["gate.b"]


def channel_gate_logits(h: Tensor, gate: Params) -> Tensor:
    """Return one logit per position, `[M, 1, *space]` of `h [M, C, *space]`; a stack has E before the channels."""
    w, b = gate["gate.w"], gate["gate.b"]
    space = (None,) * (h.dim() - w.dim())
    channel = w.dim() - 1
    return (h * w.squeeze(-1)[(..., *space)]).sum(channel, keepdim=True) + b.squeeze(-1)[(..., *space)]


def apply_blend(
    blend: int, h: Tensor, s: Tensor, alpha: float | Tensor, gate: Params, gate_logits: GateLogits = unit_gate_logits
) -> Tensor:
    """Return `h` with `s` blended in; `blend` is an index into `BLENDS`."""
    match BLENDS[blend]:
        case "add":
            return h + alpha * (s - h)
        case "multiply":
            return h * (1.0 + alpha * torch.tanh(s - h))
        case _:
            return h + alpha * torch.sigmoid(gate_logits(h, gate)) * (s - h)
