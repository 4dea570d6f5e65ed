"""`Blueprint`: an architecture that a seed can have; and `Param`, the shape and initialization of one parameter."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from actors.layers.layer_norm import Units

Params = Mapping[str, Tensor]

Formula = Literal["norm", "residual", "gated", "excitation"]
"""Names of the seed functions that `actors.kernels.hosts` implements."""


class Param(NamedTuple):
    """Shape and initialization of one parameter.

    Matrices are `[in, out]`, vectors `[1, n]`, convolution kernels `[out, in, *taps]`. `fan_in` draws from
    U(-1/sqrt(in), 1/sqrt(in)), where `in` counts the taps of a kernel too.
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


def vector(size: int, start: Literal["zero", "one"] = "zero") -> Param:
    """Return a vector, such as a bias."""
    return Param((1, size), start)


@dataclass(frozen=True)
class Blueprint:
    """The architecture of a seed: which parameters it has, and a pure function of them.

    `forward(params, h, units)` returns a tensor of the shape of `h` and must equal `h` at initialization, so that
    germinating a seed does not change its host. The same function runs one environment (`h [B, W]`, or
    `[M, C, *space]` for CNNs) and a stack of E environments (`h [E, B, W]` or `[M, E, C, *space]`, with parameters
    `[E, ...]`). In a stack the width is padded: padded parameters are 0, padded entries of `h` are 0, and padded
    entries of the output must be 0. A mean over units must therefore use `units`, which says which units are real.
    """

    name: str
    shapes: Callable[[int], dict[str, Param]]  # width at the slot -> parameters
    forward: Callable[[Params, Tensor, Units | None], Tensor]
    formula: Formula | None = None
    """The function in `actors.kernels.hosts` that computes this blueprint; None if there is none."""

    @cache  # noqa: B019 - blueprints are few and live as long as the process
    def cost(self, width: int) -> int:
        """Return the number of parameters of such a seed, without the gate of its blend."""
        return sum(p.size for p in self.shapes(width).values())

    def hidden(self, width: int) -> int:
        """Return the width of the inner layer; 0 for a blueprint without one."""
        inner = self.shapes(width).get("w1")
        return 0 if inner is None else inner.shape[1]


def _identity(p: Params, h: Tensor, units: Units | None = None) -> Tensor:
    return h


NOOP = Blueprint("noop", lambda width: {}, _identity)
"""Index 0 of every table. It cannot be germinated; it also fills indices that a host family lacks."""
