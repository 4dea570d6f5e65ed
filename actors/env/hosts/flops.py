"""Forward FLOPs of one sample: products of matrices and convolutions of a host, of its seeds and of its columns.

Norms, activations and blends are left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from actors.blueprints.blueprint import NOOP, Blueprint, Param
from actors.env.hosts.host import Host, column_host, draw_params


class ForwardFlops(NamedTuple):
    """Of one sample. Blueprints are in the order of the family's tables; None for those that cannot grow there."""

    host: float
    stream: tuple[tuple[float | None, ...], ...]  # by slot and blueprint
    columns: tuple[float | None, ...]  # by blueprint


_KNOWN: dict[tuple[object, ...], ForwardFlops] = {}


def forward_flops(host: Host, shape: tuple[int, ...]) -> ForwardFlops:
    """Return the FLOPs of a host; `shape` is that of one sample."""
    family = host.family
    key = (repr(host), shape, *family.blueprints, *family.columns)  # hosts are plain data; users register blueprints
    if key not in _KNOWN:
        bare = _of_host(host, shape)
        seeds = [
            tuple(None if b is NOOP else _of_seed(host, shape, s, b, bare) for b in family.blueprints)
            for s in range(host.slots)
        ]
        columns = [None if c is None else _of_host(column_host(host, c.scale), shape) for c in family.columns]
        _KNOWN[key] = ForwardFlops(bare, tuple(seeds), tuple(columns))
    return _KNOWN[key]


def _of_host(host: Host, shape: tuple[int, ...]) -> float:
    return _counted(host, shape) if host.family.dims else _of_matrices(host.shapes())


def _of_seed(host: Host, shape: tuple[int, ...], slot: int, blueprint: Blueprint, bare: float) -> float:
    if host.family.dims:
        return _counted(host, shape, slot, blueprint) - bare
    return _of_matrices(blueprint.shapes(host.slot_width(slot)))


def _of_matrices(shapes: Mapping[str, Param]) -> float:
    """An MLP multiplies each sample by each of its matrices once, which need not be counted."""
    # A matrix with one row has the shape of a vector; only its name tells them apart.
    return 2.0 * sum(p.size for name, p in shapes.items() if p.shape[0] > 1 or name.split(".")[-1].startswith("w"))


def _counted(host: Host, shape: tuple[int, ...], at: int = -1, blueprint: Blueprint = NOOP) -> float:
    rng = np.random.default_rng(0)
    params = draw_params(host.shapes(), rng, torch.float32)
    grown = draw_params(blueprint.shapes(host.slot_width(at)), rng, torch.float32) if at >= 0 else {}

    def slot(s: int, h: Tensor) -> Tensor:
        return blueprint.forward(grown, h, None) if s == at else h

    with FlopCounterMode(display=False) as counter, torch.no_grad():
        host.forward(params, torch.zeros(1, *shape), slot)
    return float(counter.get_total_flops())
