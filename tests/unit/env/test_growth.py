"""Seeds start as the identity, cost their number of parameters, and have their own optimizer state."""

from __future__ import annotations

from itertools import pairwise, product

import numpy as np
import pytest
import torch
from torch import Tensor

from actors.blueprints.blends import apply_blend, gate_shapes
from actors.blueprints.blueprint import Blueprint, Param, Params
from actors.blueprints.vector import MLP_BLUEPRINTS
from actors.env.fleet_networks import OptimizerSettings
from actors.env.hosts.host import draw_params
from actors.env.hosts.mlp import MLPHost
from actors.types.actions import BLENDS, Op
from tests.support.env.reference_env import ReferenceEnv
from tests.support.env.reference_network import ReferenceNetwork, SeedAlphas
from tests.support.env.walks import WAIT, act, tiny_reference

REAL = MLP_BLUEPRINTS[1:]


def moved(blueprint: Blueprint, blend: int, alpha: float, width: int = 12) -> float:
    """Return the largest change of the host's function by germinating; 0 if the seed is the identity."""
    rng = np.random.default_rng(0)
    shapes = blueprint.shapes(width) | gate_shapes(blend, width)
    params = draw_params(shapes, rng, torch.float32)
    h = torch.tensor(3 * rng.standard_normal((64, width)), dtype=torch.float32)
    with torch.no_grad():
        return float((apply_blend(blend, h, blueprint.forward(params, h), alpha, params) - h).abs().max())


@pytest.mark.parametrize("blend", range(3))
@pytest.mark.parametrize("blueprint", REAL, ids=lambda blueprint: blueprint.name)
def test_every_blueprint_and_blend_is_the_identity_at_initialization(blueprint: Blueprint, blend: int) -> None:
    assert [moved(blueprint, blend, alpha) for alpha in (0.0, 0.3, 0.5, 0.7, 1.0)] == [0.0] * 5


def test_a_blueprint_that_is_not_the_identity_is_detected() -> None:
    def shapes(width: int) -> dict[str, Param]:
        return {"w": Param((width, width), "fan_in")}

    restless = Blueprint("restless", shapes, lambda p, h, units=None: h + h @ p["w"])
    assert all(moved(restless, blend, 0.5) > 1e-3 for blend in range(3))


def formula(blend: str, h: float, s: float, alpha: float, gate: float) -> float:
    """The formulas of the blends, for scalars."""
    return {
        "add": h + alpha * (s - h),
        "multiply": h * (1 + alpha * np.tanh(s - h)),
        "gated": h + alpha * gate * (s - h),
    }[blend]


@pytest.mark.parametrize("blend", range(3))
def test_blends_equal_their_formulas_and_gates_start_at_one_half(blend: int) -> None:
    h, s = torch.tensor([[0.5, -2.0]]), torch.tensor([[1.5, 1.0]])
    gate: Params = draw_params(gate_shapes(blend, 2), np.random.default_rng(0), torch.float32)
    found = apply_blend(blend, h, s, 0.7, gate)
    expected = [[formula(BLENDS[blend], a, b, 0.7, 0.5) for a, b in ((0.5, 1.5), (-2.0, 1.0))]]
    np.testing.assert_allclose(found.detach().numpy(), expected, rtol=1e-6)
    torch.testing.assert_close(apply_blend(blend, h, s, 0.0, gate), h)


def test_blueprints_are_at_least_five_and_clearly_different_in_cost() -> None:
    assert MLP_BLUEPRINTS[0].name == "noop"
    assert MLP_BLUEPRINTS[0].cost(12) == 0
    assert len({b.name for b in REAL}) == len(REAL) >= 5
    for width in range(4, 65):
        costs = sorted(b.cost(width) for b in REAL)
        assert all(b > 1.25 * a for a, b in pairwise(costs)), (width, costs)
        assert costs[-1] > 10 * costs[0]


@pytest.mark.parametrize(("blueprint", "blend"), list(product(range(1, 7), range(3))))
def test_costs_equal_the_number_of_parameters(blueprint: int, blend: int) -> None:
    env = tiny_reference(budget_ratio=100.0)
    env.reset(seed=1)
    host = sum(t.numel() for t in env.network.group.tensors)
    env.step(act(Op.GERMINATE, 0, blueprint, blend))
    tensors = env.network.seeds[0].group.tensors
    width = env.network.host.width
    gate = width + 1 if BLENDS[blend] == "gated" else 0
    assert sum(t.numel() for t in tensors) == MLP_BLUEPRINTS[blueprint].cost(width) + gate
    assert env.episode.added_params() == sum(t.numel() for t in tensors)
    assert env.network.host.num_params() == host


def test_the_gate_is_in_the_seeds_optimizer() -> None:
    env = tiny_reference()
    env.reset(seed=1)
    env.step(act(Op.GERMINATE, 0, 3, BLENDS.index("gated"), 2))
    env.step(act(Op.ADVANCE, 0))
    for _ in range(3):  # the gate's gradient is nonzero once the seed differs from its host
        env.step(WAIT)
    seed = env.network.seeds[0].group
    owned = {id(p) for group in seed.optimizer.param_groups for p in group["params"]}
    assert {id(t) for t in seed.tensors} == owned
    assert seed.params["gate.w"].abs().max() > 0


def optimizer_state(env: ReferenceEnv, slot: int | None) -> list[Tensor]:
    trained = env.network.group if slot is None else env.network.seeds[slot].group
    return [v.clone() for t in trained.tensors for v in (t, *trained.optimizer.state[t].values())]


def step_counters(env: ReferenceEnv, slot: int) -> set[float]:
    state = env.network.seeds[slot].group.optimizer.state
    return {float(s["step"]) for s in state.values()}


def test_germinate_and_prune_do_not_affect_other_seeds() -> None:
    busy, quiet = tiny_reference(budget_ratio=20.0), tiny_reference(budget_ratio=20.0)
    elsewhere = {6: act(Op.GERMINATE, 1, 6), 7: act(Op.ADVANCE, 1), 9: act(Op.PRUNE, 1)}
    common = {0: act(Op.GERMINATE, 0, 3, 2), 1: act(Op.ADVANCE, 0), 4: act(Op.ADVANCE, 0)}
    for env in (busy, quiet):
        env.reset(seed=3)
    for epoch in range(12):
        busy.step((common | elsewhere).get(epoch, WAIT))
        quiet.step(common.get(epoch, WAIT))
        for slot in (None, 0):
            pairs = zip(optimizer_state(busy, slot), optimizer_state(quiet, slot), strict=True)
            assert all(torch.equal(a, b) for a, b in pairs), (epoch, slot)
    assert "PRUNED" in busy.episode.timeline.stages[1]
    assert step_counters(busy, 0) == {2.0 * 11}


def test_a_seed_starts_with_fresh_moments_and_step_counter() -> None:
    env = tiny_reference(horizon_epochs=25)
    env.reset(seed=3)
    for action in (act(Op.GERMINATE, 0, 3), act(Op.ADVANCE, 0), WAIT, WAIT):
        env.step(action)
    assert step_counters(env, 0) == {2.0 * 3}
    old = env.network.seeds[0].group
    env.step(act(Op.PRUNE, 0))
    assert 0 not in env.network.seeds
    while not env.masks().op[Op.GERMINATE] or env.episode.lifecycle.slots[0].stage != 0:
        env.step(WAIT)
    env.step(act(Op.GERMINATE, 0, 3))
    new = env.network.seeds[0].group
    assert new.optimizer is not old.optimizer
    assert not new.optimizer.state
    assert not any(torch.equal(a, b) for a, b in zip(new.tensors[:1], old.tensors[:1], strict=True))
    env.step(act(Op.ADVANCE, 0))
    assert step_counters(env, 0) == {2.0}


def test_clip_and_decay_are_per_group() -> None:
    """A seed's huge gradient does not shrink its host's step."""

    def host_step(with_seed: bool) -> list[Tensor]:
        net = ReferenceNetwork(MLPHost(2, 6, 3, 2), np.random.default_rng(0), OptimizerSettings(1e-2, 1e-2, 0.0, 1e-3))
        if with_seed:
            net.germinate(0, 6, 0, np.random.default_rng(1))
            net.seeds[0].group.params["w2"].data.fill_(1e3)
        rng = np.random.default_rng(2)
        x = torch.tensor(rng.standard_normal((1, 16, 2)), dtype=torch.float32)
        statistics = net.train_epoch(
            x, torch.zeros(1, 16, dtype=torch.int64), SeedAlphas({}, {0: 1.0} if with_seed else {})
        )
        if with_seed:
            clipped = torch.cat([t.grad.flatten() for t in net.seeds[0].group.tensors if t.grad is not None]).norm()
            assert statistics.gradient_norms[0][0] > 0.1  # a hundred times the clip
            assert float(clipped) == pytest.approx(1e-3, rel=1e-3)
        return [t.grad for t in net.group.tensors if t.grad is not None]

    assert all(torch.equal(a, b) for a, b in zip(host_step(False), host_step(True), strict=True))
