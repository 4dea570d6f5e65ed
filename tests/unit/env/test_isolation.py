"""The reference: seeds have gradients and an optimizer of their own; from BLENDING on, these are total derivatives."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from actors.env.fleet_networks import OptimizerSettings
from actors.env.hosts.mlp import MLPHost
from actors.types.actions import Op
from tests.support.env.reference_env import ReferenceEnv
from tests.support.env.reference_network import ReferenceNetwork, SeedAlphas
from tests.support.env.walks import WAIT, act, tiny_reference

DENSE, WIDE = 3, 6
torch.set_num_threads(1)


def network(seeds: dict[int, tuple[int, int]], dtype: torch.dtype = torch.float32, slots: int = 3) -> ReferenceNetwork:
    """Make a host of width 6 with `seeds` (slot -> (blueprint, blend)) moved away from their initialization."""
    host = MLPHost(2, 6, 3, slots)
    net = ReferenceNetwork(host, np.random.default_rng(0), OptimizerSettings(5e-3, 5e-3, 1e-4, 1.0), dtype)
    for slot, (blueprint, blend) in seeds.items():
        rng = np.random.default_rng(100 + slot)
        net.germinate(slot, blueprint, blend, rng)
        for tensor in net.seeds[slot].group.tensors:
            tensor.data += torch.tensor(0.3 * rng.standard_normal(tuple(tensor.shape)), dtype=dtype)
    return net


def batches(steps: int = 4, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    rng = np.random.default_rng(1)
    x = torch.tensor(rng.standard_normal((steps, 16, 2)), dtype=dtype)
    return x, torch.tensor(rng.integers(0, 3, (steps, 16)))


def seed_gradients(net: ReferenceNetwork, slots: list[int]) -> list[Tensor]:
    return [t.grad for s in slots for t in net.seeds[s].group.tensors if t.grad is not None]


def test_the_shadow_gradient_is_the_seeds_gradient_with_everything_else_constant() -> None:
    net = network({0: (DENSE, 0), 1: (WIDE, 2), 2: (DENSE, 1)}, torch.float64)
    net.optimizer_settings = OptimizerSettings(5e-3, 5e-3, 0.0, 1e9)  # no clip
    oracle = copy.deepcopy(net)
    x, y = batches(1, torch.float64)
    for group in (oracle.group, oracle.seeds[0].group):
        for tensor in group.tensors:
            tensor.requires_grad_(False)
    F.cross_entropy(oracle.logits(x[0], {0: 0.5, 1: 0.7, 2: 1.0}), y[0]).backward()
    net.train_epoch(x, y, SeedAlphas({0: 0.5}, {1: 0.7, 2: 1.0}))
    expected, found = seed_gradients(oracle, [1, 2]), seed_gradients(net, [1, 2])
    assert len(expected) == len(found) == 4 + 2 + 4  # the gate's two included
    for a, b in zip(expected, found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-14)
    alone = network({1: (WIDE, 2)}, torch.float64)
    alone.optimizer_settings = net.optimizer_settings
    alone.train_epoch(x, y, SeedAlphas({}, {1: 0.7}))
    other = zip(seed_gradients(alone, [1]), seed_gradients(net, [1]), strict=True)
    assert not all(torch.allclose(a, b) for a, b in other)  # another network, another gradient


def finite_difference(net: ReferenceNetwork, x: Tensor, y: Tensor, on: dict[int, float], tensor: Tensor) -> Tensor:
    """Return the central differences of the loss for each entry."""
    out, flat, eps = torch.zeros_like(tensor).flatten(), tensor.data.view(-1), 1e-6
    for i in range(len(flat)):
        losses = []
        for sign in (1, -1):
            flat[i] += sign * eps
            losses.append(F.cross_entropy(net.logits(x, on), y).item())
            flat[i] -= sign * eps
        out[i] = (losses[0] - losses[1]) / (2 * eps)
    return out.view_as(tensor)


@pytest.mark.parametrize("blend", range(3))
def test_blended_gradients_are_the_total_derivative(blend: int) -> None:
    net = network({0: (DENSE, blend), 1: (5, blend)}, torch.float64, slots=2)
    net.optimizer_settings = OptimizerSettings(5e-3, 5e-3, 0.0, 1e9)
    before, (x, y), on = copy.deepcopy(net), batches(1, torch.float64), {0: 0.5, 1: 0.7}
    net.train_epoch(x, y, SeedAlphas(on, {}))
    groups = [(net.group, before.group), *((net.seeds[s].group, before.seeds[s].group) for s in on)]
    for trained, start in groups:
        for moved, tensor in zip(trained.tensors, start.tensors, strict=True):
            expected = finite_difference(before, x[0], y[0], on, tensor)
            assert moved.grad is not None
            torch.testing.assert_close(moved.grad, expected, rtol=1e-5, atol=1e-8)
    # With the seed's input detached, as in isolation, the host's first layer would get another gradient.
    first = before.group.params["in.w"]
    part = torch.autograd.grad(F.cross_entropy(detached(before, x[0], on), y[0]), first)[0]
    assert not torch.allclose(part, finite_difference(before, x[0], y[0], on, first), rtol=1e-3)


def detached(net: ReferenceNetwork, x: Tensor, on: dict[int, float]) -> Tensor:
    def slot(s: int, h: Tensor) -> Tensor:
        return h + net.seeds[s].blend_into(h.detach(), on[s]) - h.detach()

    return net.host.forward(net.group.params, x, slot)


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
