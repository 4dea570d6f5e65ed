"""`load_kernels`: the kernels of this folder, compiled once per machine."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np

from actors.kernels.compile import compile_once
from actors.kernels.policy import run
from actors.kernels.policy.sizes import LATER, SIZES

PRECISION = "float32"


class Kernels(NamedTuple):
    """The compiled functions of `run`."""

    pack: Any
    activation_size: Any
    step: Any
    evaluate: Any
    differentiate: Any


def compile_kernels() -> None:
    """Compile the kernels and cache them on disk, unless they are: about thirty-five seconds. See `compile_once`."""
    compile_once("policy", __name__)


@cache
def load_kernels() -> Kernels:
    """Return the kernels, compiled and loaded: tenths of a second where they are compiled."""
    compile_kernels()
    return fill_cache(PRECISION)


def fill_cache(precision: str) -> Kernels:
    """Return the kernels, compiled in this process by a pass of no steps through a network without layers and with one
    head."""
    one, two, three = (np.zeros((0,) * k, np.float32) for k in (1, 2, 3))
    whole, flags = np.zeros(0, np.int64), np.zeros((0, 0), np.bool_)
    plan, table = np.zeros(SIZES, np.int64), np.zeros((LATER + 4, 3), np.int64)
    addresses = np.full(len(table), np.zeros(1).ctypes.data)
    rules = np.zeros(1, np.int64), flags, np.zeros(4)
    network = plan, table, one, np.zeros(1), *rules
    obs, blueprints, actions = two, np.zeros((0, 0), np.int64), np.zeros((0, 0), np.int64)
    order = whole, np.zeros(1, np.int64), whole
    kernels = Kernels(*(getattr(run, name).in_precision(np.dtype(precision)) for name in Kernels._fields))
    kernels.pack(plan, table, addresses, one)
    kernels.activation_size(plan, 0)
    sampling = flags, flags, flags, np.zeros((0, 0)), np.zeros(0, np.bool_)
    chosen = actions, two, flags, np.zeros((2, 0), np.float32)
    kernels.step(*network, obs, blueprints, *sampling, whole, three, three, *chosen, three, three)
    given = *order, obs, blueprints, actions, flags
    kernels.evaluate(*network, *given, three, three, one, two, two, one, one, two)
    kernels.differentiate(plan, table, addresses, *rules, *given, three, one, two, two, one, addresses)
    return kernels
