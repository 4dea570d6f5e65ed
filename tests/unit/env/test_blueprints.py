"""Blueprints and blends of every family: they start as the identity, follow their formulas, and differ in cost."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch

from actors.blueprints.blends import apply_blend, gate_shapes
from actors.blueprints.blueprint import NOOP, Blueprint, Param, Params
from actors.blueprints.family import FAMILIES, VECTOR
from actors.env.hosts.host import draw_params
from actors.types.actions import BLENDS

WIDTH, SPACES = 12, {"vector": (), "sequence": (10,), "image": (5, 4)}
blend = pytest.mark.parametrize("blend", range(3), ids=BLENDS)


def moved(family: str, blueprint: Blueprint, blend: int, alpha: float) -> float:
    """Return the largest change of the host's function by germinating; 0 if the seed is the identity."""
    rng = np.random.default_rng(0)
    params = draw_params(blueprint.shapes(WIDTH) | gate_shapes(blend, WIDTH), rng, torch.float32)
    h = torch.tensor(3 * rng.standard_normal((64, WIDTH, *SPACES[family])), dtype=torch.float32)
    with torch.no_grad():
        grown = blueprint.forward(params, h, None)
        return float((apply_blend(blend, h, grown, alpha, params, FAMILIES[family].gate_logits) - h).abs().max())


@blend
@pytest.mark.parametrize("family", FAMILIES)
def test_every_blueprint_and_blend_is_the_identity_at_initialization(family: str, blend: int) -> None:
    for blueprint in FAMILIES[family].blueprints[1:7]:
        assert not any(moved(family, blueprint, blend, alpha) for alpha in (0.0, 0.3, 0.5, 0.7, 1.0)), blueprint.name
    restless = Blueprint("restless", lambda w: {"w": Param((w, w), "fan_in")}, lambda p, h, units=None: h + h @ p["w"])
    assert moved("vector", restless, blend, 0.5) > 1e-3


def formula(blend: str, h: float, s: float, alpha: float, gate: float) -> float:
    """The formulas of the blends, for scalars."""
    return {
        "add": h + alpha * (s - h),
        "multiply": h * (1 + alpha * np.tanh(s - h)),
        "gated": h + alpha * gate * (s - h),
    }[blend]


@blend
def test_blends_equal_their_formulas_and_gates_start_at_one_half(blend: int) -> None:
    h, s = torch.tensor([[0.5, -2.0]]), torch.tensor([[1.5, 1.0]])
    gate: Params = draw_params(gate_shapes(blend, 2), np.random.default_rng(0), torch.float32)
    found = apply_blend(blend, h, s, 0.7, gate)
    expected = [[formula(BLENDS[blend], a, b, 0.7, 0.5) for a, b in ((0.5, 1.5), (-2.0, 1.0))]]
    np.testing.assert_allclose(found.detach().numpy(), expected, rtol=1e-6)
    torch.testing.assert_close(apply_blend(blend, h, s, 0.0, gate), h)


@pytest.mark.parametrize("family", FAMILIES)
def test_blueprints_are_six_and_clearly_different_in_cost(family: str) -> None:
    noop, *real = FAMILIES[family].blueprints[:7]
    assert noop is NOOP
    assert noop.cost(WIDTH) == 0
    assert len(FAMILIES[family].blueprints) == len(VECTOR.blueprints)
    assert len({b.name for b in real}) == 6
    for width in range(4 if family == "vector" else 8, 65):
        costs = sorted(b.cost(width) for b in real)
        assert all(b > 1.25 * a for a, b in pairwise(costs)), (width, costs)
        assert costs[-1] > 10 * costs[0]
