"""Columns: networks beside the host that learn in isolation, and are then mixed with its logits."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from actors.blueprints.family import blueprint_index
from actors.env.fleet_networks import OptimizerSettings
from actors.env.hosts.cnn import CNN1dHost, CNN2dHost
from actors.env.hosts.host import Host, column_host, column_width
from actors.env.hosts.mlp import MLPHost
from actors.layers.batch_norm import batch_statistics
from actors.slots.stage import Stage
from actors.types.actions import Op
from tests.support.env.reference_env import ReferenceEnv
from tests.support.env.reference_network import ReferenceNetwork, SeedAlphas
from tests.support.env.walks import WAIT, act, legal_actions, tiny_reference

torch.set_num_threads(1)
SIZES = ("column_half", "column_same", "column_double", "column_quad")
HOSTS: dict[str, tuple[Host, tuple[int, ...]]] = {
    "vector": (MLPHost(4, 5, 3, 2), (4,)),
    "sequence": (CNN1dHost(2, 20, 5, 3, 2), (2, 20)),
    "image": (CNN2dHost(1, (8, 8), 5, 3, 3), (1, 8, 8)),
}
FREE = OptimizerSettings(5e-3, 5e-3, 0.0, 1e9)  # neither decay nor clip


def network(kind: str, columns: dict[int, str], settings: OptimizerSettings = FREE) -> ReferenceNetwork:
    """Make a host with columns (column slot, from 0 -> name), moved away from their start, in double precision."""
    host, _ = HOSTS[kind]
    net = ReferenceNetwork(host, np.random.default_rng(0), settings, torch.float64, column_slots=2)
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
    net.train_epoch(x, y, SeedAlphas({s: 0.3}, {s + 1: strength}))
    blended = 0.7 * oracle.logits(x[0], {}) + 0.3 * alone(oracle, s, x[0])
    F.cross_entropy(blended, y[0]).backward()
    learner = alone(oracle, s + 1, x[0])
    F.cross_entropy(learner if strength == 1.0 else 0.5 * blended.detach() + 0.5 * learner, y[0]).backward()
    pairs = [(net.group, oracle.group), *((net.seeds[c].group, oracle.seeds[c].group) for c in (s, s + 1))]
    for mine, theirs in pairs:
        for a, b in zip(mine.tensors, theirs.tensors, strict=True):
            torch.testing.assert_close(a.grad, b.grad, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("kind", ["sequence", "image"])
def test_running_statistics_follow_the_pass_that_trains_the_column(kind: str) -> None:
    net = network(kind, {0: "column_same", 1: "column_same"})
    s = net.host.slots

    def moved(alphas: SeedAlphas) -> set[str]:
        before = {name: pair.mean.clone() for name, pair in net.running.items()}
        net.train_epoch(*batches(kind), alphas)
        changed = {name for name, mean in before.items() if not torch.equal(mean, net.running[name].mean)}
        return {name.partition(".")[0] if name.startswith("column") else "host" for name in changed}

    assert moved(SeedAlphas()) == {"host"}
    assert moved(SeedAlphas({}, {s: 1.0})) == {"host", f"column{s}"}
    assert moved(SeedAlphas({s: 1.0}, {s + 1: 1.0})) == {"host", f"column{s}", f"column{s + 1}"}
    net.prune(s)
    assert not any(name.startswith(f"column{s}.") for name in net.running)


def test_the_score_of_a_column_slot_is_the_gradient_of_the_logits() -> None:
    net, (x, y) = network("vector", {}), batches("vector", 1)
    oracle = copy.deepcopy(net)
    scores = net.train_epoch(x, y, SeedAlphas()).scores
    logits = oracle.logits(x[0], {})
    grads = torch.autograd.grad(F.cross_entropy(logits, y[0]), [logits, *oracle.group.tensors])
    host = float(torch.cat([g.flatten() for g in grads[1:]]).norm())
    assert scores[2] == scores[3] == pytest.approx(float(grads[0].norm()) / host)
    assert set(scores) == {0, 1, 2, 3}


def play(env: ReferenceEnv, *actions: NDArray[np.int64]) -> None:
    for action in actions:
        env.step(action)


def test_a_column_learns_what_the_model_leaves_until_the_model_overfits() -> None:
    env = tiny_reference(horizon_epochs=9)
    env.reset(seed=3)
    double = blueprint_index("column_double")
    play(env, act(Op.GERMINATE, 3, double, 0, 1), act(Op.ADVANCE, 3))
    episode = env.episode
    for losses, strength in (((0.96, 1.0), 0.5), ((0.94, 1.0), 1.0), ((2.0, 1.0), 1.0)):  # from then on
        episode.train_losses[-1], episode.val_losses[-1] = losses
        plan = episode.plan_epoch(*episode.read(WAIT))
        assert plan.training == {3: strength}
        assert plan.alphas == {3: 0.7}  # what it is worth is measured at its target
    for loss, strength in (("own", 1.0), ("rest", 0.5)):
        episode.growth.column_loss = loss
        assert episode.growth.learning() == {3: strength}


def test_a_column_that_is_kept_at_1_replaces_the_model() -> None:
    env = tiny_reference(horizon_epochs=20)
    env.reset(seed=2)
    half, double = blueprint_index("column_half"), blueprint_index("column_double")
    dense = blueprint_index("dense")
    play(env, act(Op.GERMINATE, 0, dense, 0, 2), act(Op.ADVANCE, 0), WAIT, act(Op.ADVANCE, 0))
    play(env, act(Op.GERMINATE, 4, half, 0, 0), act(Op.ADVANCE, 4), WAIT, act(Op.ADVANCE, 4))
    play(env, act(Op.GERMINATE, 3, double, 0, 2), act(Op.ADVANCE, 3), WAIT, act(Op.ADVANCE, 3))
    assert list(env.episode.growth.blended()) == [0, 4, 3]  # in the order in which they joined
    before = env.episode.accuracies[-1]
    play(env, act(Op.FOSSILIZE, 0), act(Op.FOSSILIZE, 4), act(Op.FOSSILIZE, 3))
    slots = env.episode.lifecycle.slots
    assert [slots[s].stage for s in (0, 3, 4)] == [Stage.PRUNED, Stage.FOSSILIZED, Stage.PRUNED]
    assert set(env.network.seeds) == {3}
    column = sum(t.numel() for t in env.network.seeds[3].group.tensors)
    host = sum(t.numel() for t in env.network.group.tensors)
    assert env.episode.standing.doublings == pytest.approx(np.log2(column / host))
    assert np.isfinite(before)
    play(env, WAIT, WAIT, WAIT, WAIT)
    legal = legal_actions(env.masks(), env.spaces.action.sizes)
    assert {int(a[1]) for a in legal if a[0] == Op.GERMINATE} == {4}  # the stream is gone
    with torch.no_grad():
        x = env.observed[0]
        assert torch.equal(env.network.logits(x, env.episode.growth.blended()), alone(env.network, 3, x))
