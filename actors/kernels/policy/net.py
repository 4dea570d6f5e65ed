"""What the kernels know of a network: its sizes, and where its weights lie in a flat array."""

from __future__ import annotations

from typing import Any, NamedTuple

from numba.np.unsafe.ndarray import to_fixed_tuple
from numpy.typing import NDArray

from actors.kernels.decorators import inner
from actors.kernels.matmul import Matrix

Array = NDArray[Any]

FEEDFORWARD, LSTM, MEMORY = 0, 1, 2  # values of `Net.core`
BASE, SLOT, TRUNK, OP, CRITIC, POINTER, REST_SLOT, MEMORY_INPUT, MEMORY_READ, LATER = range(10)
"""Indices of matrices. From LATER on: the last layer of every rest head, then the layers of the core."""


class Net(NamedTuple):
    """Sizes, options (0 or 1) and the offsets of vectors and tables in the flat weights, all of them whole numbers."""

    obs: int  # numbers in an observation
    base: int  # of these, numbers that the base encoder reads
    slot_size: int  # numbers per slot that the slot encoder reads; 0 in a flat encoder
    slots: int
    blueprints: int  # with -1 for an empty slot
    encoder: int  # width of the encoders
    core_input: int
    core: int  # FEEDFORWARD, LSTM or MEMORY
    layers: int
    hidden: int
    cells: int
    cell_size: int
    head: int  # hidden width of the heads
    ops: int
    rest: int  # number of rest heads
    rest_size: int  # total number of their choices
    conditioned: int  # whether later heads read the op and the slot
    causal: int  # whether irrelevant heads are left out of log-probs
    q_op: int  # whether the critic has one value per op
    blind: int
    base_gain: int  # [encoder], as are the next three
    base_shift: int
    slot_gain: int
    slot_shift: int
    blueprint: int  # [blueprints, encoder], or [slots, blueprints, encoder] of a flat encoder
    slot_encodings: int  # [slots, encoder] of a flat encoder
    core_gain: int  # [hidden]
    core_shift: int
    context: int  # [ops, (1 + rest) * head]
    pointer: int  # [head], then the bias


_first: Any = to_fixed_tuple
NET, MATRIX = len(Net._fields), len(Matrix._fields)


@inner
def net_of(plan: Array) -> Net:
    """Read the `Net` at the beginning of a plan."""
    return Net(*_first(plan[:NET], NET))


@inner
def matrix(plan: Array, index: int) -> Matrix:
    """Read one of the matrices, which follow the `Net` in a plan."""
    at = NET + index * MATRIX
    return Matrix(plan[at], plan[at + 1], plan[at + 2], plan[at + 3])
