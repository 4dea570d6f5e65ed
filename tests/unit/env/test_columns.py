"""Columns: networks beside the host that learn in isolation, and are then mixed with its logits."""

from __future__ import annotations

import copy

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
    "vector": (MLPHost(4, 5, 3, 2), (4,)),
    "sequence": (CNN1dHost(2, 5, 3, 2), (2, 20)),
    "image": (CNN2dHost(1, 5, 3, 3), (1, 8, 8)),
}


def network(kind: str, columns: dict[int, str]) -> ReferenceNetwork:
    """Make a host with columns (column slot, from 0 -> name), moved away from their start, in double precision. There
    is neither decay nor a clip."""
    host, _ = HOSTS[kind]
    net = ReferenceNetwork(host, np.random.default_rng(0), torch.float64, 2, weight_decay=0.0, clip_norm=1e9)
    for c, name in columns.items():
        rng = np.random.default_rng(100 + c)
        net.germinate(host.slots + c, blueprint_index(name), 0, rng)
        for tensor in net.seeds[host.slots + c].group.tensors:
            tensor.data += torch.from_numpy(0.3 * rng.standard_normal(tuple(tensor.shape)))
    return net


def batches(kind: str, steps: int = 3) -> tuple[Tensor, Tensor]:
    rng = np.random.default_rng(1)
    _, shape = HOSTS[kind]
    return torch.from_numpy(rng.standard_normal((steps, 16, *shape))), torch.from_numpy(rng.integers(0, 3, (steps, 16)))


def alone(net: ReferenceNetwork, slot: int, x: Tensor) -> Tensor:
    """Return the logits of a column as a network of its own."""
    column = net.seeds[slot]
    return column.host.forward(column.group.params, x, lambda s, h: h, None, batch_statistics())


@pytest.mark.parametrize(("width", "widths"), [(2, [2, 2, 4, 8]), (5, [3, 5, 10, 20]), (24, [12, 24, 48, 64])])
def test_a_column_is_a_multiple_of_the_hosts_width_between_2_and_64(width: int, widths: list[int]) -> None:
    assert [column_width(width, scale) for scale in (0.5, 1.0, 2.0, 4.0)] == widths
    for kind, (host, _) in HOSTS.items():
        sized = host.with_width(width)
        assert [column_host(sized, scale).width for scale in (0.5, 1.0, 2.0, 4.0)] == widths, kind
        assert type(column_host(sized, 2.0)) is type(host)


@pytest.mark.parametrize("kind", HOSTS)
def test_columns_are_mixed_one_after_the_other(kind: str) -> None:
    net, (x, _) = network(kind, {0: "column_half", 1: "column_double"}), batches(kind, 1)
    s = net.host.slots
    host, first, second = net.logits(x[0], {}), alone(net, s, x[0]), alone(net, s + 1, x[0])
    for alphas, weights in (({s: 0.5, s + 1: 0.7}, (0.15, 0.15, 0.7)), ({s + 1: 0.7, s: 0.5}, (0.15, 0.5, 0.35))):
        expected = weights[0] * host + weights[1] * first + weights[2] * second
        torch.testing.assert_close(net.logits(x[0], alphas), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", HOSTS)
@pytest.mark.parametrize("strength", [0.5, 1.0], ids=["rest", "own"])
def test_gradients_equal_those_of_the_written_out_mix(kind: str, strength: float) -> None:
    """A blended column gets the total derivative, a training one that of its own loss, with all else constant."""
    net, (x, y) = network(kind, {0: "column_half", 1: "column_double"}), batches(kind, 1)
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
        plan = episode.plan_epoch(*episode.read(WAIT))
        assert plan.training == {3: strength}
        assert plan.alphas == {3: 0.7}  # what it is worth is measured at its target
    for loss, strength in (("own", 1.0), ("rest", 0.7)):
        episode.growth.column_loss = loss
        assert episode.growth.learning() == {3: strength}
