"""`load_kernels`: the kernels of this folder, compiled once per machine."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np

from actors.kernels.compile import compile_once
from actors.kernels.policy import run
from actors.kernels.policy.choice import Sampling
from actors.kernels.policy.encoder import StepInputs
from actors.kernels.policy.scores import HeadRules, StepScores
from actors.kernels.policy.sizes import LATER, SIZES, Parameters, Weights

PRECISION = "float32"


class Kernels(NamedTuple):
    """The compiled functions of `run`."""

    pack: Any
    activation_size: Any
    step: Any
    evaluate: Any
    differentiate: Any


def compile_kernels() -> None:
    """Compile the kernels and cache them on disk, unless they are: about forty seconds. See `compile_once`."""
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
    whole, flags, indices = np.zeros(0, np.int64), np.zeros((0, 0), np.bool_), np.zeros((0, 0), np.int64)
    plan, table = np.zeros(SIZES, np.int64), np.zeros((LATER + 4, 3), np.int64)
    parameters = Parameters(np.full(len(table), np.zeros(1).ctypes.data), table)
    weights, rules = Weights(one, table), HeadRules(np.zeros(1, np.int64), flags, 0.0, 0.0)
    network, order = (plan, weights, np.zeros(1), rules, (0.0, 1.0)), (np.zeros(1, np.int64), whole)
    kernels = Kernels(*(getattr(run, name).of(np.dtype(precision)) for name in Kernels._fields))
    kernels.pack(plan, parameters, weights)
    kernels.activation_size(plan, 0)
    sampling = Sampling(True, flags, flags, flags, np.zeros((0, 0)), np.zeros(0, np.bool_))
    chosen = indices, two, flags, np.zeros((2, 0), np.float32)
    kernels.step(*network, two, indices, sampling, whole, three, three, *chosen)
    steps = StepInputs(whole, two, indices, indices, flags)
    kernels.evaluate(*network, *order, steps, three, three, one, two, two, one, one, two)
    kernels.differentiate(plan, parameters, rules, *order, steps, three, one, StepScores(two, two, one), parameters)
    return kernels
