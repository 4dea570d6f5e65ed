"""`Host`: the interface of a network in which seeds can grow."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from math import floor
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from actors.blueprints.blueprint import Param, Params, vector
from actors.blueprints.family import Family
from actors.layers.batch_norm import Normalize, batch_statistics
from actors.layers.layer_norm import Units

MIN_WIDTH, MAX_WIDTH = 2, 64
"""Bounds of a column's width, in units or channels; the upper one bounds the cost of an episode."""
SlotFunction = Callable[[int, Tensor], Tensor]
"""(slot, hidden) -> hidden of the same shape: applies the seed in that slot, or returns its input if there is none."""


class Resume(NamedTuple):
    """A point inside a host at which a forward pass may start, because everything before it is already computed."""

    slot: int
    h: Tensor  # the hidden tensor that enters this slot


@dataclass(frozen=True)
class Host(ABC):
    """A classifier written as a pure function of its parameters, with numbered slots between its layers.

    A slot passes its input to a `SlotFunction`, which must keep the shape. Slots are numbered from the input to the
    output. A host holds sizes only: `shapes` says which parameters it needs, `draw_params` draws them.
    """

    family: ClassVar[Family]
    """The blueprints that can grow in its slots."""
    num_features: int
    """Input features, or input channels for a convolutional host."""
    width: int
    """Hidden units, or channels of the first layer of a convolutional host."""
    num_classes: int
    slots: int

    def slot_width(self, slot: int) -> int:
        """Return the number of hidden units or channels at a slot."""
        return self.width

    def norms(self) -> dict[str, int]:
        """Return the number of channels of every BatchNorm by name; empty for hosts without BatchNorm."""
        return {}

    @abstractmethod
    def shapes(self) -> dict[str, Param]:
        """Return every parameter by name, in the order in which they are drawn."""

    def num_params(self) -> int:
        return _num_params(self)

    def forward(
        self,
        p: Params,
        x: Tensor,
        slot: SlotFunction,
        units: Units | None = None,
        normalize: Normalize | None = None,
        resume: Resume | None = None,
    ) -> Tensor:
        """Return logits `[..., B, num_classes]` of `x [..., B, num_features]`, or of `x` as `cnn.py` says.

        `units` marks padded hidden units in a stack of MLPs. BatchNorm uses `normalize`, by default the statistics of
        each batch. With `resume`, the pass starts at that slot and ignores `x`.
        """
        norm = normalize or batch_statistics()
        first, h = resume or (-1, self._enter(p, x, norm))
        for s in range(max(first, 0), self.slots):
            if s != first:
                h = self._block(s, p, h, units, norm)
            h = self._leave(slot(s, h))
        return self._classify(p, h, units, norm)

    def _enter(self, p: Params, x: Tensor, norm: Normalize) -> Tensor:
        """Return what the first block reads."""
        return x

    @abstractmethod
    def _block(self, s: int, p: Params, h: Tensor, units: Units | None, norm: Normalize) -> Tensor:
        """Return what enters slot `s`."""

    def _leave(self, h: Tensor) -> Tensor:
        """Return what the next block reads, from what left a slot."""
        return h

    @abstractmethod
    def _classify(self, p: Params, h: Tensor, units: Units | None, norm: Normalize) -> Tensor:
        """Return the logits."""


@cache
def _num_params(host: Host) -> int:
    return sum(p.size for p in host.shapes().values())


def affine_shapes(name: str, width: int) -> dict[str, Param]:
    """Return the gain and the bias of a norm."""
    return {f"{name}.gain": vector(width, "one"), f"{name}.bias": vector(width)}


def classifier_shapes(width: int, classes: int) -> dict[str, Param]:
    """Return the parameters of the last layer."""
    return {"out.w": Param((width, classes), "fan_in"), "out.b": vector(classes)}


def draw_params(shapes: Mapping[str, Param], rng: np.random.Generator, dtype: torch.dtype) -> dict[str, Tensor]:
    """Draw leaf tensors that require gradients, in the order of `shapes`."""
    return {name: torch.tensor(p.draw(rng), dtype=dtype).requires_grad_() for name, p in shapes.items()}


def draw_into(shapes: Mapping[str, Param], into: NDArray[Any], rng: np.random.Generator) -> None:
    """Draw parameters into the beginning of a vector, in the order of `shapes`."""
    start = 0
    for p in shapes.values():
        into[start : start + p.size] = p.draw(rng).ravel()
        start += p.size


def column_width(host_width: int, scale: float) -> int:
    """Return the width of a column at `scale` times the host's width."""
    return min(max(floor(scale * host_width + 0.5), MIN_WIDTH), MAX_WIDTH)


def column_host(host: Host, scale: float) -> Host:
    """Return the host that computes a column of `host`. Nothing grows in its slots."""
    return replace(host, width=column_width(host.width, scale))
