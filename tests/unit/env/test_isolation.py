"""A seed in TRAINING does not change a bit of its host; from BLENDING on, gradients are total derivatives."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from actors.env.fleet_networks import OptimizerSettings
from actors.env.hosts.mlp import MLPHost
from actors.layers.batch_norm import Normalize
from tests.support.env.reference_network import ReferenceNetwork, SeedAlphas

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


def host_state(net: ReferenceNetwork) -> list[Tensor]:
    """Return the state of the host: parameters, last gradients, moments and step counters."""
    moments = [v for t in net.group.tensors for v in net.group.optimizer.state[t].values()]
    return [*net.group.tensors, *[t.grad for t in net.group.tensors if t.grad is not None], *moments]


def touched(training: dict[int, float], nan: bool = False) -> bool:
    """Return whether TRAINING seeds change a bit of the host, or of the seed that is blended in slot 0."""
    alone, grown = network({0: (DENSE, 0)}), network({0: (DENSE, 0)} | dict.fromkeys(training, (WIDE, 2)))
    if nan:
        for slot in training:
            for tensor in grown.seeds[slot].group.tensors:
                tensor.data.fill_(float("nan"))
    x, y = batches()
    without = alone.train_epoch(x, y, SeedAlphas({0: 0.5}, {}))
    with_seed = grown.train_epoch(x, y, SeedAlphas({0: 0.5}, training))
    same = [torch.equal(a, b) for a, b in zip(host_state(alone), host_state(grown), strict=True)]
    same += [torch.equal(a, b) for a, b in zip(*(n.seeds[0].group.tensors for n in (alone, grown)), strict=True)]
    same += [torch.equal(alone.logits(x[0], {0: 0.5}), grown.logits(x[0], {0: 0.5}))]
    return not (all(same) and without.train_loss == with_seed.train_loss)


@pytest.mark.parametrize("nan", [False, True])
def test_training_seeds_change_no_bit_of_the_host(nan: bool) -> None:
    assert not touched({1: 0.7, 2: 1.0}, nan)


def test_a_leaking_shadow_pass_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = ReferenceNetwork.logits

    def leaky(self: ReferenceNetwork, x: Tensor, on: dict[int, float], *rest: Normalize) -> Tensor:
        """Wrong: blend TRAINING seeds in at alpha 0 instead of leaving them out."""
        return honest(self, x, on | dict.fromkeys(set(self.seeds) - set(on), 0.0), *rest)

    monkeypatch.setattr(ReferenceNetwork, "logits", leaky)
    assert touched({1: 0.7}, nan=True)


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


def test_seeds_that_take_no_part_are_unchanged() -> None:
    net = network({0: (DENSE, 0), 1: (WIDE, 0)})
    before = [t.clone() for t in net.seeds[1].group.tensors]
    net.train_epoch(*batches(), SeedAlphas({}, {0: 1.0}))
    assert all(torch.equal(a, b) for a, b in zip(before, net.seeds[1].group.tensors, strict=True))
    assert not net.seeds[1].group.optimizer.state


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
