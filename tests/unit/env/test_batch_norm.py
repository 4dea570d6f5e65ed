"""BatchNorm of CNN hosts equals PyTorch's, and seeds that it cancels contribute nothing."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from actors.env.hosts.make import make_host
from actors.env.tasks import make_task
from actors.layers.batch_norm import (
    Affine,
    Moments,
    batch_statistics,
    calibrated,
    calibrating,
    fresh,
    running_statistics,
)
from actors.layers.convolution import After
from actors.rng import Purpose, stream
from tests.support.env.reference_network import ReferenceNetwork, recorded_statistics


@pytest.mark.parametrize("space", [(10,), (5, 4)])
def test_batch_norm_equals_pytorchs(space: tuple[int, ...]) -> None:
    """Compare training output, running statistics and evaluation over several batches, and both ways to calibrate."""
    module = (nn.BatchNorm1d if len(space) == 1 else nn.BatchNorm2d)(6)
    gain, bias, plain = torch.rand(6), torch.randn(6), (len(space), After())
    module.weight.data, module.bias.data = gain.clone(), bias.clone()
    running = fresh({"n": 6}, dtype=torch.float32)
    train = batch_statistics(running)
    for _ in range(5):
        h = 2 + 3 * torch.randn(16, 6, *space)
        torch.testing.assert_close(train("n", h, gain, bias, *plain), module(h))
    torch.testing.assert_close(running["n"].mean, module.running_mean)
    torch.testing.assert_close(running["n"].var, module.running_var)
    module.eval()
    torch.testing.assert_close(running_statistics(running)("n", h, gain, bias, *plain), module(h))
    own: dict[str, Moments] = {}
    calibration, rows = torch.randn(8, 6, *space), torch.randn(4, 6, *space)
    first = recorded_statistics(own)("n", calibration, gain, bias, *plain)
    second = running_statistics(own)("n", rows, gain, bias, *plain)
    found: dict[str, Affine] = {}
    two = calibrating(found, 8)("n", torch.cat([calibration, 5 * calibration]), gain, bias, *plain)
    torch.testing.assert_close(two[:8], first, rtol=1e-5, atol=1e-5)
    others = calibrated(found, 4)("n", torch.cat([rows, 5 * rows]), gain, bias, *plain)
    torch.testing.assert_close(others, torch.cat([second, second]), rtol=1e-4, atol=1e-4)


def test_a_seed_that_only_shifts_contributes_nothing() -> None:
    """Later norms cancel the shift. With running statistics, which include it, switching it off would seem to hurt."""
    task = make_task("wave_forms", stream(0, 0, Purpose.TASK_DATA))
    rng, net = np.random.default_rng(1), ReferenceNetwork(make_host(task, 6, 3), np.random.default_rng(0))
    net.germinate(0, 2, 0, rng)
    net.seeds[0].group.params["b2"].data.fill_(4.0)
    net.seeds[0].group.lr_scale = 0.0
    train_x, train_y = torch.from_numpy(task.train.x), torch.from_numpy(task.train.y)
    for _ in range(6):
        rows = rng.integers(0, len(train_x), (16, 64))
        net.train_epoch(train_x[rows], train_y[rows], {0: 1.0}, {})
    x, y = torch.from_numpy(task.val.x), torch.from_numpy(task.val.y)
    assert net.evaluate(x, y, {0: 1.0})[0] - net.evaluate(x, y, {})[0] > 10.0
    assert abs(net.ablate(x, y, {0: 1.0}, train_x[:128])[0] - net.ablate(x, y, {}, train_x[:128])[0]) <= 1.0
