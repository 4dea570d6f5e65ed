"""Blueprints and blends start as the identity, follow their formulas, and differ in cost; registered ones as well."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

from actors.blueprints.blends import apply_blend, gate_shapes
from actors.blueprints.blueprint import NOOP, Blueprint, Param, Params
from actors.blueprints.family import FAMILIES, IMAGE, VECTOR, ColumnBlueprint, blueprint_choices, register_blueprint
from actors.config import ConfigError, EnvConfig
from actors.env.hosts.host import draw_params
from actors.types.actions import BLENDS, Op
from examples import own_blueprint
from tests.support.env.fleets import assert_same_step, started_pair
from tests.support.env.reference_network import ReferenceColumn
from tests.support.env.walks import TINY, act, grow, tiny_reference

WIDTH, SPACES = 12, {"vector": (), "sequence": (10,), "image": (5, 4)}
MOVING = Blueprint("moving", lambda w: {"w": Param((w, w), "fan_in")}, lambda p, h, units=None: h + h @ p["w"])
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
    assert moved("vector", MOVING, blend, 0.5) > 1e-3


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


@pytest.fixture(autouse=True)
def _tables() -> Iterator[None]:
    before = {name: (list(family.blueprints), list(family.columns)) for name, family in FAMILIES.items()}
    yield
    for name, family in FAMILIES.items():
        family.blueprints[:], family.columns[:] = before[name]


def test_a_registered_blueprint_grows_in_its_family_only() -> None:
    number = own_blueprint.register()
    assert [len(f.blueprints) for f in FAMILIES.values()] == [number + 1] * 3
    assert IMAGE.blueprints[number] is NOOP
    assert blueprint_choices()[number] == "sine"
    mlp, image = (tiny_reference(tasks=(task,), budget_ratio=20.0) for task in ("spirals", "digits_image"))
    assert mlp.spaces == image.spaces
    for env, legal in ((mlp, True), (image, False)):
        env.reset(seed=0)
        assert bool(env.masks().rest[Op.GERMINATE, 0, number]) is legal
        _, _, _, _, info = env.step(act(Op.GERMINATE, 0, number))
        assert ("illegal_action" not in info) is legal
    assert mlp.episode.growth.params().by_slot[0] == VECTOR.blueprints[number].cost(mlp.network.host.slot_width(0))


def test_a_registered_blueprint_grows_alike_in_fleet_and_reference() -> None:
    number = own_blueprint.register()
    reference, fleet = started_pair(EnvConfig(**TINY | {"budget_ratio": 20.0}), [5, 6])
    for action in grow(0, number, 0):
        actions = np.stack([action, action])
        assert_same_step(fleet.step(actions), reference.step(actions), rtol=1e-6, atol=1e-6)


def test_invalid_blueprints_are_rejected() -> None:
    still = Blueprint("still", lambda w: {"w": Param((1, w), "zero")}, lambda p, h, units=None: h + p["w"] * h)
    refused: list[tuple[dict[str, Any], str]] = [
        ({"vector": MOVING}, "identity"),
        ({"graph": still}, "host family"),
        ({"vector": Blueprint("dense", still.shapes, still.forward)}, "already"),
        ({"vector": ColumnBlueprint("column_double", 3.0)}, "already"),
        ({}, "at least one"),
    ]
    for families, words in refused:
        with pytest.raises(ConfigError, match=words):
            register_blueprint(**families)
    with pytest.raises(ConfigError, match="must be positive"):
        ColumnBlueprint("column_none", 0.0)
    assert len(VECTOR.blueprints) == 11
    assert register_blueprint(vector=still) == 11


def test_a_registered_column_grows_in_column_slots_of_its_families() -> None:
    column = ColumnBlueprint("column_triple", 3.0)
    number = register_blueprint(vector=column, image=column)
    assert blueprint_choices()[number] == "column_triple"
    for task, legal in (("spirals", True), ("signals", False), ("digits_image", True)):
        env = tiny_reference(tasks=(task,), budget_ratio=30.0)
        env.reset(seed=0)
        rest = env.masks().rest[Op.GERMINATE, :, number]
        assert rest.tolist() == [False] * 3 + [legal] * 2
        if legal:
            env.step(act(Op.GERMINATE, 3, number))
            seed = env.network.seeds[3]
            assert isinstance(seed, ReferenceColumn)
            assert seed.host.width == 3 * env.network.host.width


def test_the_cost_of_a_blueprint_depends_on_its_slot() -> None:
    env = tiny_reference(tasks=("digits_image",), budget_ratio=40.0)
    env.reset(seed=1)
    assert [env.network.host.slot_width(s) for s in range(3)] == [6, 6, 9]
    heavy = IMAGE.blueprints[6]
    env.episode.growth.budget_params = heavy.cost(6) + 20
    assert [bool(env.masks().rest[1, s, 6]) for s in range(3)] == [True, True, False]
    env.step(act(Op.GERMINATE, 1, 6, 2))
    seed = env.network.seeds[1].group
    assert env.episode.growth.params().by_slot[1] == sum(t.numel() for t in seed.tensors) == heavy.cost(6) + 7
