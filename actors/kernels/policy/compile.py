"""`load_kernels`: the kernels of this folder, compiled once per machine."""

from __future__ import annotations

from functools import cache
from types import SimpleNamespace

import numpy as np

from actors.kernels.compile import compile_once
from actors.kernels.policy import run
from actors.kernels.policy.encoder import StepInputs
from actors.kernels.policy.scores import HeadRules, StepScores
from actors.kernels.policy.sizes import LATER, SIZES, Parameters, Weights

PRECISION = "float32"
NAMES = ("pack", "activation_size", "step", "evaluate", "differentiate")
"""The functions of `run` that Python calls."""


def compile_kernels() -> None:
    """Compile the kernels and cache them on disk, unless they are: about thirty-five seconds. See `compile_once`."""
    compile_once("policy", __name__)


@cache
def load_kernels() -> SimpleNamespace:
    """Return the kernels, compiled and loaded: tenths of a second where they are compiled."""
    compile_kernels()
    return fill_cache(PRECISION)


def fill_cache(precision: str) -> SimpleNamespace:
    """Return the kernels, compiled in this process by a pass of no steps through a network without layers and with one
    head."""
    one, two, three = (np.zeros((0,) * k, np.float32) for k in (1, 2, 3))
    whole, flags = np.zeros(0, np.int64), np.zeros((0, 0), np.bool_)
    plan, table = np.zeros(SIZES, np.int64), np.zeros((LATER + 4, 3), np.int64)
    addresses = np.full(len(table), np.zeros(1).ctypes.data)
    sizes, stats, numbers, actions = np.zeros(1, np.int64), np.zeros(1), np.zeros(4), np.zeros((0, 0), np.int64)
    kernels = SimpleNamespace(**{name: getattr(run, name).in_precision(np.dtype(precision)) for name in NAMES})
    kernels.pack(plan, table, addresses, one)
    kernels.activation_size(plan, 0)
    sampling = flags, flags, flags, np.zeros((0, 0)), np.zeros(0, np.bool_)
    chosen = actions, two, flags, np.zeros((2, 0), np.float32)
    network = plan, table, one, stats, sizes, flags, numbers
    kernels.step(*network, two, actions, *sampling, whole, three, three, *chosen, three, three)
    rules, scores = HeadRules(sizes, flags, 0.0, 0.0), StepScores(two, two, one)
    order = StepInputs(whole, two, actions, actions, flags), np.zeros(1, np.int64), whole
    kernels.evaluate(plan, Weights(one, table), stats, rules, numbers, *order, three, three, one, scores, one, two)
    parameters = Parameters(addresses, table)
    kernels.differentiate(plan, parameters, rules, *order, three, one, scores, parameters)
    return kernels
