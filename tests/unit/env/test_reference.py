"""The reference: seeds and columns have gradients and an optimizer of their own, which are total derivatives once they
have joined the host; columns are networks beside the host whose logits are mixed with its own."""

from __future__ import annotations

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from actors.blueprints.family import blueprint_index
from actors.env.hosts.cnn import CNN1dHost, CNN2dHost
from actors.env.hosts.host import Host, column_host, column_width
from actors.env.hosts.mlp import MLPHost
from actors.layers.batch_norm import batch_statistics
from actors.types.actions import Op
from tests.support.env.reference_network import ReferenceNetwork
from tests.support.env.walks import WAIT, act, tiny_reference

HOSTS: dict[str, tuple[Host, tuple[int, ...]]] = {
    "vector": (MLPHost(4, 6, 3, 3), (4,)),
    "sequence": (CNN1dHost(2, 5, 3, 2), (2, 20)),
    "image": (CNN2dHost(1, 5, 3, 3), (1, 8, 8)),
}
COLUMNS = (("column_half", 0), ("column_double", 0))


def network(kind: str, seeds: dict[int, tuple[str, int]]) -> ReferenceNetwork:
    """Make a host with `seeds` (slot -> (name, blend)), moved away from their start, in double precision. There is
    neither decay nor a clip."""
    host, _ = HOSTS[kind]
    net = ReferenceNetwork(host, np.random.default_rng(0), torch.float64, 2, weight_decay=0.0, clip_norm=1e9)
    for slot, (name, blend) in seeds.items():
        rng = np.random.default_rng(100 + slot)
        net.germinate(slot, blueprint_index(name), blend, rng)
        for tensor in net.seeds[slot].group.tensors:
            tensor.data += torch.from_numpy(0.3 * rng.standard_normal(tuple(tensor.shape)))
    return net


def with_columns(kind: str) -> ReferenceNetwork:
    return network(kind, dict(enumerate(COLUMNS, HOSTS[kind][0].slots)))


def batch(kind: str) -> tuple[Tensor, Tensor]:
    """Return a single minibatch, `x [1, B, ...]` and `y [1, B]`."""
    rng, (_, shape) = np.random.default_rng(1), HOSTS[kind]
    return torch.from_numpy(rng.standard_normal((1, 16, *shape))), torch.from_numpy(rng.integers(0, 3, (1, 16)))


def alone(net: ReferenceNetwork, slot: int, x: Tensor) -> Tensor:
    """Return the logits of a column as a network of its own."""
    column = net.seeds[slot]
    return column.host.forward(column.group.params, x, lambda s, h: h, None, batch_statistics())


def seed_gradients(net: ReferenceNetwork, slots: list[int]) -> list[Tensor]:
    return [t.grad for s in slots for t in net.seeds[s].group.tensors if t.grad is not None]


def test_the_shadow_gradient_is_the_seeds_gradient_with_everything_else_constant() -> None:
    net = network("vector", {0: ("dense", 0), 1: ("mlp_wide", 2), 2: ("dense", 1)})
    oracle = copy.deepcopy(net)
    x, y = batch("vector")
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
    net = network("vector", {0: ("dense", blend), 1: ("attention", blend)})
    before, (x, y), on = copy.deepcopy(net), batch("vector"), {0: 0.5, 1: 0.7}
    net.train_epoch(x, y, on, {})
    groups = [(net.group, before.group), *((net.seeds[s].group, before.seeds[s].group) for s in on)]
    for trained, start in groups:
        for moved, tensor in zip(trained.tensors, start.tensors, strict=True):
            expected = finite_difference(before, x[0], y[0], on, tensor)
            torch.testing.assert_close(moved.grad, expected, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize(("width", "widths"), [(2, [2, 2, 4, 8]), (5, [3, 5, 10, 20]), (24, [12, 24, 48, 64])])
def test_a_column_is_a_multiple_of_the_hosts_width_between_2_and_64(width: int, widths: list[int]) -> None:
    assert [column_width(width, scale) for scale in (0.5, 1.0, 2.0, 4.0)] == widths
    for kind, (host, _) in HOSTS.items():
        sized = replace(host, width=width)
        assert [column_host(sized, scale).width for scale in (0.5, 1.0, 2.0, 4.0)] == widths, kind
        assert type(column_host(sized, 2.0)) is type(host)


@pytest.mark.parametrize("kind", HOSTS)
def test_columns_are_mixed_one_after_the_other(kind: str) -> None:
    net, (x, _) = with_columns(kind), batch(kind)
    s = net.host.slots
    host, first, second = net.logits(x[0], {}), alone(net, s, x[0]), alone(net, s + 1, x[0])
    for alphas, weights in (({s: 0.5, s + 1: 0.7}, (0.15, 0.15, 0.7)), ({s + 1: 0.7, s: 0.5}, (0.15, 0.5, 0.35))):
        expected = weights[0] * host + weights[1] * first + weights[2] * second
        torch.testing.assert_close(net.logits(x[0], alphas), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", HOSTS)
@pytest.mark.parametrize("strength", [0.5, 1.0], ids=["rest", "own"])
def test_gradients_equal_those_of_the_written_out_mix(kind: str, strength: float) -> None:
    """A blended column gets the total derivative, a training one that of its own loss, with all else constant."""
    net, (x, y) = with_columns(kind), batch(kind)
    s, oracle = net.host.slots, copy.deepcopy(net)
    net.train_epoch(x, y, {s: 0.3}, {s + 1: strength})
    blended = 0.7 * oracle.logits(x[0], {}) + 0.3 * alone(oracle, s, x[0])
    F.cross_entropy(blended, y[0]).backward()
    learner = alone(oracle, s + 1, x[0])
    F.cross_entropy(learner if strength == 1.0 else 0.5 * blended.detach() + 0.5 * learner, y[0]).backward()
    pairs = [(net.group, oracle.group), *((net.seeds[c].group, oracle.seeds[c].group) for c in (s, s + 1))]
    for mine, theirs in pairs:
        for a, b in zip(mine.tensors, theirs.tensors, strict=True):
            torch.testing.assert_close(a.grad, b.grad, rtol=1e-10, atol=1e-12)


def test_a_column_learns_what_the_model_leaves_until_the_model_overfits() -> None:
    env = tiny_reference(horizon_epochs=9)
    env.reset(seed=3)
    env.step(act(Op.GERMINATE, 3, blueprint_index("column_double"), 0, 1))
    env.step(act(Op.ADVANCE, 3))
    episode = env.episode
    for losses, strength in (((0.96, 1.0), 0.7), ((0.94, 1.0), 1.0), ((2.0, 1.0), 1.0)):  # from then on
        episode.train_losses[-1], episode.val_losses[-1] = losses
        plan = episode.plan_epoch(*episode.growth.read(WAIT))
        assert plan.training == {3: strength}
        assert plan.alphas == {3: 0.7}  # what it is worth is measured at its target
    for loss, strength in (("own", 1.0), ("rest", 0.7)):
        episode.growth.column_loss = loss
        assert episode.growth.learning() == {3: strength}
