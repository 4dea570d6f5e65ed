"""The reference: seeds have gradients and an optimizer of their own; from BLENDING on, these are total derivatives."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from actors.env.hosts.mlp import MLPHost
from tests.support.env.reference_network import ReferenceNetwork

DENSE, WIDE = 3, 6


def network(seeds: dict[int, tuple[int, int]]) -> ReferenceNetwork:
    """Make a host of width 6 with `seeds` (slot -> (blueprint, blend)) moved away from their initialization. There is
    neither decay nor a clip."""
    host, rng = MLPHost(2, 6, 3, 3), np.random.default_rng(0)
    net = ReferenceNetwork(host, rng, torch.float64, weight_decay=0.0, clip_norm=1e9)
    for slot, (blueprint, blend) in seeds.items():
        rng = np.random.default_rng(100 + slot)
        net.germinate(slot, blueprint, blend, rng)
        for tensor in net.seeds[slot].group.tensors:
            tensor.data += torch.tensor(0.3 * rng.standard_normal(tuple(tensor.shape)))
    return net


def batch() -> tuple[Tensor, Tensor]:
    rng = np.random.default_rng(1)
    return torch.tensor(rng.standard_normal((1, 16, 2))), torch.tensor(rng.integers(0, 3, (1, 16)))


def seed_gradients(net: ReferenceNetwork, slots: list[int]) -> list[Tensor]:
    return [t.grad for s in slots for t in net.seeds[s].group.tensors if t.grad is not None]


def test_the_shadow_gradient_is_the_seeds_gradient_with_everything_else_constant() -> None:
    net = network({0: (DENSE, 0), 1: (WIDE, 2), 2: (DENSE, 1)})
    oracle = copy.deepcopy(net)
    x, y = batch()
    for group in (oracle.group, oracle.seeds[0].group):
        for tensor in group.tensors:
            tensor.requires_grad_(False)
    F.cross_entropy(oracle.logits(x[0], {0: 0.5, 1: 0.7, 2: 1.0}), y[0]).backward()
    net.train_epoch(x, y, {0: 0.5}, {1: 0.7, 2: 1.0})
    expected, found = seed_gradients(oracle, [1, 2]), seed_gradients(net, [1, 2])
    assert len(expected) == len(found) == 4 + 2 + 4  # the gate's two included
    for a, b in zip(expected, found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-14)


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
    net = network({0: (DENSE, blend), 1: (5, blend)})
    before, (x, y), on = copy.deepcopy(net), batch(), {0: 0.5, 1: 0.7}
    net.train_epoch(x, y, on, {})
    groups = [(net.group, before.group), *((net.seeds[s].group, before.seeds[s].group) for s in on)]
    for trained, start in groups:
        for moved, tensor in zip(trained.tensors, start.tensors, strict=True):
            expected = finite_difference(before, x[0], y[0], on, tensor)
            torch.testing.assert_close(moved.grad, expected, rtol=1e-5, atol=1e-8)
