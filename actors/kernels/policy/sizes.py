"""What the kernels know of a network: its sizes, its parameters in a fixed order, and the places of activations."""

from __future__ import annotations

from typing import Any, NamedTuple

import numba
import numpy as np
from numba.extending import intrinsic
from numba.np.unsafe.ndarray import to_fixed_tuple

from actors.kernels.decorators import Array, inner
from actors.kernels.matmul import pack_transposed

BASE, SLOT, CORE_NORM, OP, CRITIC, POINTER, BLUEPRINT, SLOT_TABLE, OP_TABLE, LATER = 0, 4, 8, 10, 14, 18, 22, 23, 24, 25
"""Indices of parameters. A linear layer has weight and bias, followed by gain and shift of its LayerNorm in the
encoders, or by weight and bias of a second layer in the heads. From LATER on: the rest heads, then the core's layers:
input and recurrent weights and their biases in an LSTM, weight and bias otherwise."""


class NetShape(NamedTuple):
    """Sizes, and options as 0 or 1."""

    obs: int  # numbers in an observation
    base: int  # of these, numbers that the base encoder reads
    slot_size: int  # numbers per slot that the slot encoder reads; 0 in a flat encoder
    slots: int
    embedding: int  # width of a blueprint's embedding
    blueprints: int  # with -1 for an empty slot
    encoder: int  # width of the encoders
    core_input: int
    recurrent: int  # whether the core is an LSTM
    layers: int
    hidden: int
    head: int  # hidden width of the heads
    ops: int
    rest: int  # number of rest heads
    heads: int
    choices: int  # of all heads together
    context: int  # width of an op's embedding; 0 if later heads do not read the op
    values: int  # outputs of the critic
    blind: int
    causal: int  # whether irrelevant heads are left out of log-probs
    floor: int  # whether probabilities have a floor


_first: Any = to_fixed_tuple
_array: Any = numba.carray  # type: ignore[attr-defined]
_FLOATS: Any = numba.types.CPointer(numba.types.float32)  # type: ignore[no-untyped-call]
SIZES = len(NetShape._fields)


@inner
def sizes_of(plan: Array) -> NetShape:
    """Read `NetShape` from an array."""
    return NetShape(*_first(plan, SIZES))


@inner
def base_inputs(z: NetShape) -> int:
    """Return the number of inputs of the base encoder; in a flat encoder, blueprints are among them."""
    return z.base + (0 if z.slot_size > 0 else z.slots * z.embedding)


@inner
def rest_inputs(z: NetShape) -> int:
    """Return the number of inputs of a rest head: the core's output, the chosen slot's encoding and the op."""
    return z.hidden + (z.encoder + z.context if z.context > 0 else 0)


@inner
def row_width(z: NetShape, layer: int) -> int:
    """Return the width of a row of a core layer's inputs: in an LSTM, h before the step follows the input."""
    inputs = z.core_input if layer == 0 else z.hidden
    return inputs + (z.hidden if z.recurrent else 0)


class Activations(NamedTuple):
    """Offsets of what the forward pass keeps for the backward pass, each `[N, ...]`, or `[N * slots, ...]`."""

    base_in: int  # inputs of the base encoder
    base_hat: int  # normalized by LayerNorm, before gain and shift
    base_inv: int  # reciprocal of LayerNorm's deviation
    slot_in: int
    slot_hat: int
    slot_inv: int
    slots: int  # encodings
    rows: int  # inputs of the core's first layer, see `row_width`; those of the others follow
    gates: int  # [layers, N, 4 hidden] after their nonlinearity
    cells: int  # [layers, N, hidden]
    squashed: int  # [layers, N, hidden] tanh of the cells
    out: int  # of the core
    hat: int  # as in the encoders
    inv: int
    core: int  # after LayerNorm
    op_hidden: int
    critic_hidden: int
    pointer_hidden: int
    joined: int  # inputs of the rest heads
    rest_hidden: int  # [rest, N, head]
    probs: int  # [N, choices] of all heads, before the floor
    total: int


PLACES = len(Activations._fields)


@inner
def activations(z: NetShape, n: int) -> Activations:
    """Lay out the activations of n steps."""
    m, e, h, head = n * z.slots, z.encoder, z.hidden, n * z.head
    slots = m if z.slot_size > 0 else 0
    cells = z.layers * n * h if z.recurrent else 0
    rows = n * (row_width(z, 0) + (z.layers - 1) * row_width(z, 1))
    joined = n * rest_inputs(z) if z.context > 0 else 0
    encoder = n * base_inputs(z), n * e, n, slots * (z.slot_size + z.embedding), slots * e, slots, m * e
    core = rows, 4 * cells, cells, cells, n * h
    sizes = *encoder, *core, n * h, n, n * h, head, head, m * z.head, joined, z.rest * head, n * z.choices
    places = np.zeros(PLACES, np.int64)
    for k in range(PLACES - 1):
        places[k + 1] = places[k] + sizes[k]
    return Activations(*_first(places, PLACES))


@inner
def rows_of(z: NetShape, a: Activations, n: int, layer: int) -> int:
    """Return the offset of the inputs of a layer of the core."""
    return a.rows if layer == 0 else a.rows + n * (row_width(z, 0) + (layer - 1) * row_width(z, 1))


@inner
def first_core(z: NetShape) -> int:
    """Return the index of the first parameter of the core."""
    return LATER + 4 * z.rest


def _from_address(typing: Any, address: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], context.get_value_type(signature.return_type))

    return _FLOATS(numba.types.int64), generate


_pointer: Any = intrinsic(_from_address)


class Parameters(NamedTuple):
    """The parameters of a network, or their gradients, where they are: float32, contiguous."""

    addresses: Array  # int64 [P]
    table: Array  # int64 [P, 3], see `Weights`


@inner
def floats(parameters: Parameters, k: int) -> Array:
    """Return the k-th parameter, flat."""
    count = parameters.table[k, 1] * max(1, parameters.table[k, 2])
    found: Array = _array(_pointer(parameters.addresses[k]), (count,), np.float32)
    return found


class Weights(NamedTuple):
    """The parameters as the forward pass reads them: one array, with matrices in the order of `matmul`.

    A row of `table` is a parameter's place in `flat`, its outputs and its inputs. Vectors, and tables of which rows are
    read, have 0 inputs and are copied as they are.
    """

    flat: Array  # float32
    table: Array  # int64 [P, 3]


@inner
def pack_weights(z: NetShape, parameters: Parameters, w: Weights) -> None:
    """Write all parameters to `w.flat`; an LSTM's input bias becomes the sum of its two biases."""
    for k in range(w.table.shape[0]):
        place, outputs, inputs = w.table[k, 0], w.table[k, 1], w.table[k, 2]
        values = floats(parameters, k)
        if inputs > 0:
            pack_transposed(values, 0, inputs, outputs, inputs, w.flat[place:])
        else:
            w.flat[place : place + outputs] = values
    if z.recurrent:
        for layer in range(z.layers):
            bias, more = vector(w, first_core(z) + 4 * layer + 2), floats(parameters, first_core(z) + 4 * layer + 3)
            for j in range(more.size):
                bias[j] += more[j]


@inner
def vector(w: Weights, k: int) -> Array:
    """Return what begins with the k-th parameter."""
    return w.flat[w.table[k, 0] :]
