"""CNN hosts: seeds start as the identity, TRAINING does not affect the host, BatchNorm equals PyTorch's."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise, product

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from actors.blueprints.blueprint import NOOP
from actors.blueprints.family import FAMILIES, IMAGE, SEQUENCE, VECTOR
from actors.env.fleet_networks import OptimizerSettings
from actors.env.hosts.make import make_host
from actors.layers.batch_norm import Affine, Moments, batch_statistics, calibrated, calibrating
from actors.layers.batch_norm import running_statistics as evaluate
from actors.rng import Purpose, stream
from tests.support.env import cnn
from tests.support.env.reference_env import ReferenceEnv
from tests.support.env.reference_network import ReferenceNetwork, SeedAlphas, recorded_statistics
from tests.support.env.walks import act

torch.set_num_threads(1)
CHANNELS = [SEQUENCE, IMAGE]
PLAIN = OptimizerSettings(5e-3, 5e-3, 1e-4, 1.0)


@pytest.fixture(autouse=True)
def _known_tasks() -> Iterator[None]:
    cnn.register()
    yield
    cnn.forget()


def network(kind: str, dtype: torch.dtype = torch.float32) -> ReferenceNetwork:
    return ReferenceNetwork(cnn.HOSTS[kind], np.random.default_rng(0), PLAIN, dtype)


def disturb(net: ReferenceNetwork, slot: int) -> None:
    """Move a seed away from its initialization."""
    rng = np.random.default_rng(slot)
    for tensor in net.seeds[slot].group.tensors:
        tensor.data += torch.tensor(0.3 * rng.standard_normal(tuple(tensor.shape)), dtype=tensor.dtype)


def batches(kind: str, steps: int = 3, rows: int = 16, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    host = cnn.HOSTS[kind]
    space = (2, 20) if kind == "sequence" else (1, 8, 8)
    rng = np.random.default_rng(1)
    x = torch.tensor(rng.standard_normal((steps, rows, *space)), dtype=dtype)
    return x, torch.tensor(rng.integers(0, host.num_classes, (steps, rows)))


@pytest.mark.parametrize(("kind", "blueprint", "blend"), list(product(cnn.HOSTS, range(1, 7), range(3))))
def test_every_blueprint_is_the_identity_at_initialization_in_every_slot(kind: str, blueprint: int, blend: int) -> None:
    net = network(kind)
    x = batches(kind)[0][0]
    before = net.logits(x, {})
    for slot in range(net.host.slots):
        net.germinate(slot, blueprint, blend, np.random.default_rng(slot))
        for alpha in (0.0, 0.3, 0.7, 1.0):
            assert torch.equal(net.logits(x, {slot: alpha}), before), (slot, alpha)
    assert torch.equal(net.logits(x, {0: 0.5, 1: 1.0, 2: 0.7}), before)


@pytest.mark.parametrize("family", CHANNELS, ids=lambda f: f.name)
def test_costs_differ_clearly_and_equal_parameter_counts(family: object) -> None:
    table = FAMILIES[family.name].blueprints  # type: ignore[attr-defined]
    assert len(table) == len(VECTOR.blueprints)
    assert table[0] is NOOP
    assert [b.name for b in table[1:7]] == ["norm", "bottleneck", "conv_light", "depthwise", "attention", "conv_heavy"]
    for width in range(8, 65):
        costs = sorted(b.cost(width) for b in table[1:7])
        assert all(b > 1.3 * a for a, b in pairwise(costs)), costs


def test_the_cost_of_a_blueprint_depends_on_its_slot() -> None:
    env = ReferenceEnv(cnn_config("images"))
    env.reset(seed=1)
    assert [env.network.host.slot_width(s) for s in range(3)] == [6, 6, 9]
    heavy = IMAGE.blueprints[6]
    env.episode.growth.budget_params = heavy.cost(6) + 20
    _, rest = env.masks().slot, env.masks().rest
    assert [bool(rest[1, s, 6]) for s in range(3)] == [True, True, False]
    env.step(act(1, 1, 6, 2))
    seed = env.network.seeds[1].group
    assert env.episode.slot_params()[1] == sum(t.numel() for t in seed.tensors) == heavy.cost(6) + 7


def cnn_config(*tasks: str, **settings: object):  # type: ignore[no-untyped-def]
    from actors.config import EnvConfig

    defaults = {"horizon_epochs": 6, "inner_steps": 3, "batch_size": 16, "budget_ratio": 40.0}
    return EnvConfig(tasks=tasks, **(defaults | settings))  # type: ignore[arg-type]


def host_state(net: ReferenceNetwork) -> list[Tensor]:
    """Return parameters, last gradients, moments, step counters and running statistics."""
    moments = [v for t in net.group.tensors for v in net.group.optimizer.state[t].values()]
    running = [t for m in net.running.values() for t in m]
    return [*net.group.tensors, *[t.grad for t in net.group.tensors if t.grad is not None], *moments, *running]


def touched(kind: str, nan: bool) -> bool:
    """Return whether TRAINING seeds change a bit of the host, or of the seed that is blended in slot 0."""
    alone, grown = network(kind), network(kind)
    for net in (alone, grown):
        net.germinate(0, 3, 0, np.random.default_rng(7))
        disturb(net, 0)
    for slot, blueprint in ((1, 6), (2, 4)):
        grown.germinate(slot, blueprint, 2, np.random.default_rng(slot))
        disturb(grown, slot)
        if nan:
            for tensor in grown.seeds[slot].group.tensors:
                tensor.data.fill_(float("nan"))
    x, y = batches(kind)
    without = alone.train_epoch(x, y, SeedAlphas({0: 0.5}, {}))
    with_seeds = grown.train_epoch(x, y, SeedAlphas({0: 0.5}, {1: 0.7, 2: 1.0}))
    pairs = [*zip(host_state(alone), host_state(grown), strict=True)]
    pairs += zip(alone.seeds[0].group.tensors, grown.seeds[0].group.tensors, strict=True)
    return not all(torch.equal(a, b) for a, b in pairs) or without.train_loss != with_seeds.train_loss


@pytest.mark.parametrize("kind", cnn.HOSTS)
@pytest.mark.parametrize("nan", [False, True])
def test_training_seeds_change_no_bit_of_the_host(kind: str, nan: bool) -> None:
    assert not touched(kind, nan)


def test_a_shadow_pass_that_moves_the_running_statistics_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = ReferenceNetwork.logits

    def leaky(self: ReferenceNetwork, x: Tensor, on: dict[int, float], *rest: object) -> Tensor:
        return honest(self, x, on, batch_statistics(self.running), *rest[1:])  # type: ignore[arg-type]

    monkeypatch.setattr(ReferenceNetwork, "logits", leaky)
    assert touched("image", nan=False)


@pytest.mark.parametrize("space", [(10,), (5, 4)])
def test_batch_norm_equals_pytorchs(space: tuple[int, ...]) -> None:
    """Compare training output, running statistics and evaluation over several batches, and both ways to calibrate."""
    module = (nn.BatchNorm1d if len(space) == 1 else nn.BatchNorm2d)(6)
    gain, bias = torch.rand(1, 6), torch.randn(1, 6)
    module.weight.data, module.bias.data = gain[0].clone(), bias[0].clone()
    running = {"n": Moments.fresh(6, dtype=torch.float32)}
    train = batch_statistics(running)
    for _ in range(5):
        h = 2 + 3 * torch.randn(16, 6, *space)
        torch.testing.assert_close(train("n", h, gain, bias), module(h))
    assert module.running_mean is not None
    assert module.running_var is not None
    torch.testing.assert_close(running["n"].mean, module.running_mean)
    torch.testing.assert_close(running["n"].var, module.running_var)
    module.eval()
    torch.testing.assert_close(evaluate(running)("n", h, gain, bias), module(h))
    own: dict[str, Moments] = {}
    calibration, rows = torch.randn(8, 6, *space), torch.randn(4, 6, *space)
    first = recorded_statistics(own)("n", calibration, gain, bias)
    second = evaluate(own)("n", rows, gain, bias)
    found: dict[str, Affine] = {}
    two = calibrating(found, 8)("n", torch.cat([calibration, 5 * calibration]), gain, bias)
    torch.testing.assert_close(two[:8], first, rtol=1e-5, atol=1e-5)
    others = calibrated(found, 4)("n", torch.cat([rows, 5 * rows]), gain, bias)
    torch.testing.assert_close(others, torch.cat([second, second]), rtol=1e-4, atol=1e-4)


def trained(task_name: str) -> tuple[ReferenceNetwork, list[Tensor]]:
    """Return a host trained with a seed in slot 0 that is a constant shift, with validation and calibration rows."""
    task = cnn.FAMILIES[task_name][0](stream(0, 0, Purpose.TASK_DATA))
    net = ReferenceNetwork(make_host(task, 6, 3), np.random.default_rng(0), PLAIN)
    x, y = torch.from_numpy(task.train.x), torch.from_numpy(task.train.y)
    rng = np.random.default_rng(1)
    net.germinate(0, 2, 0, rng)
    net.seeds[0].group.params["b2"].data.fill_(4.0)
    net.seeds[0].group.optimizer.param_groups[0]["lr"] = 0.0
    for _ in range(6):
        rows = rng.integers(0, len(x), (16, 64))
        net.train_epoch(x[rows], y[rows], SeedAlphas({0: 1.0}))
    return net, [torch.from_numpy(task.val.x), torch.from_numpy(task.val.y), x[:128]]


def test_a_seed_that_only_shifts_contributes_nothing() -> None:
    """Later norms cancel the shift. With running statistics, which include it, switching it off would seem to hurt."""
    net, (x, y, calibration) = trained("sequences")
    by_running = net.evaluate(x, y, {0: 1.0})[0] - net.evaluate(x, y, {})[0]
    assert by_running > 10.0
    worth = net.ablate(x, y, {0: 1.0}, calibration)[0] - net.ablate(x, y, {}, calibration)[0]
    assert abs(worth) <= 1.0


def test_evaluating_changes_no_running_statistics() -> None:
    net, (x, y, calibration) = trained("images")
    before = [t.clone() for m in net.running.values() for t in m]
    net.evaluate(x, y, {0: 1.0})
    net.ablate(x, y, {}, calibration)
    assert all(torch.equal(a, b) for a, b in zip(before, (t for m in net.running.values() for t in m), strict=True))


def test_a_snapshot_restores_running_statistics() -> None:
    net = network("image")
    x, y = batches("image")
    net.train_epoch(x, y, SeedAlphas())
    snapshot, seen = net.snapshot(), net.evaluate(x[0], y[0], {})
    net.train_epoch(x, y, SeedAlphas())
    assert net.evaluate(x[0], y[0], {}) != seen
    net.restore(snapshot)
    assert net.evaluate(x[0], y[0], {}) == seen
