"""Kernels compared with PyTorch: the exponential, and every blueprint and blend, forward and backward."""

from __future__ import annotations

import math
from typing import Any

import numba
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from actors.blueprints.blends import apply_blend, gate_shapes
from actors.blueprints.blueprint import Blueprint
from actors.blueprints.vector import MLP_BLUEPRINTS
from actors.env.compiled.numba_network import FORMULAS
from actors.kernels.hosts.seeds import blend_back, blend_in, change, change_back
from actors.kernels.vectors import PADDING, exponential, lanes, load, store
from actors.types.actions import BLENDS

WIDTH, ROWS, ALPHA = 6, PADDING, 0.7
Array = NDArray[Any]


@numba.njit
def _exponentials(x: Array) -> Array:
    out = np.empty_like(x)
    for i in range(0, x.size, lanes(x)):
        store(out, i, exponential(load(x, i)))
    return out


def test_the_exponential_is_exact_to_two_units_in_the_last_place() -> None:
    x = np.linspace(-87, 88, 200_000).astype(np.float32)
    truth = np.exp(x.astype(np.float64))
    error = np.abs(_exponentials(x) - truth) / np.spacing(truth.astype(np.float32))
    assert error.max() <= 2.0


def test_the_exponential_saturates_and_propagates_nan() -> None:
    out = _exponentials(np.array([-1e30, -np.inf, np.nan, *[0.0] * (PADDING - 3)], dtype=np.float32))
    assert 0 <= out[0] < 1e-37
    assert 0 <= out[1] < 1e-37
    assert math.isnan(out[2])
    assert out[3] == 1.0


@numba.njit
def _forward_and_backward(
    formula: int, hidden: int, blend: int, q: Array, gate: Array, h: Array, flow: Array
) -> tuple[Array, Array, Array, Array]:
    """Return output and gradients of h, of q and of the gate, for one seed."""
    first, second = np.zeros((4 * WIDTH, ROWS)), np.zeros((4 * WIDTH, ROWS))
    c, dc, gate_value, out = np.zeros_like(h), np.zeros_like(h), np.zeros(ROWS), np.zeros_like(h)
    dq, dgate, d, inside = np.zeros_like(q), np.zeros_like(gate), flow.copy(), np.zeros((2, 4 * WIDTH, ROWS))
    change(formula, hidden, q, h, first, second, c)
    blend_in(blend, ALPHA, gate, h, c, gate_value, out)
    blend_back(blend, ALPHA, gate, h, c, gate_value, d, dc, dgate, True, inside[0, :WIDTH])
    change_back(formula, hidden, q, h, first, second, dc, d, dq, True, inside)
    return out, d, dq, dgate


@pytest.mark.parametrize("blend", range(len(BLENDS)), ids=BLENDS)
@pytest.mark.parametrize("blueprint", MLP_BLUEPRINTS[1:], ids=lambda b: b.name)
def test_seeds_and_their_gradients_equal_autograds(blueprint: Blueprint, blend: int) -> None:
    """In double precision, with every parameter away from its initialization."""
    rng = np.random.default_rng(blend)
    shapes = blueprint.shapes(WIDTH)
    params = {k: torch.tensor(rng.standard_normal(p.shape), requires_grad=True) for k, p in shapes.items()}
    gates = gate_shapes(blend, WIDTH)
    gate = {k: torch.tensor(rng.standard_normal(p.shape), requires_grad=True) for k, p in gates.items()}
    h = torch.tensor(rng.standard_normal((ROWS, WIDTH)), requires_grad=True)
    flow = rng.standard_normal((ROWS, WIDTH))
    truth = apply_blend(blend, h, blueprint.forward(params, h, None), ALPHA, gate)
    leaves = [h, *params.values(), *gate.values()]
    dh, *rest = torch.autograd.grad(truth, leaves, torch.tensor(flow))
    own, gated = rest[: len(params)], rest[len(params) :]

    def flat(tensors: list[torch.Tensor]) -> Array:
        parts = [t.detach().numpy().ravel() for t in tensors]
        return np.concatenate(parts) if parts else np.zeros(0)

    assert blueprint.formula is not None
    q = flat(list(params.values()))
    g = flat(list(gate.values())) if gate else np.zeros(WIDTH + 1)
    x = np.ascontiguousarray(h.detach().numpy().T)
    out, d, dq, dgate = _forward_and_backward(
        FORMULAS[blueprint.formula], blueprint.hidden(WIDTH), blend, q, g, x, np.ascontiguousarray(flow.T)
    )
    np.testing.assert_allclose(out.T, truth.detach().numpy(), rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(d.T, dh.numpy(), rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(dq, flat(own), rtol=1e-10, atol=1e-12)
    if gate:
        np.testing.assert_allclose(dgate, flat(gated), rtol=1e-10, atol=1e-12)
