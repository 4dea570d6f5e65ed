"""Kernels of convolutional hosts compared with PyTorch's operations in double precision: results and gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from actors.blueprints.blends import apply_blend, channel_gate_logits
from actors.kernels.cnn.functions import (
    Blend,
    Classify,
    Convolve,
    CrossEntropy,
    NormalizeBatch,
    TwoLayers,
    WindowMean,
    calibration,
    gathered,
    rescaled,
)
from actors.kernels.cnn.layout import rows_innermost, with_rows_innermost
from actors.types.actions import BLENDS

EPS = 1e-5
Function = Callable[..., Tensor]


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape)))


def assert_same(ours: Function, truth: Function, *inputs: Tensor) -> None:
    """Compare values and gradients; the truth is computed in double precision."""
    single = [t.detach().clone().requires_grad_() for t in inputs]
    double = [t.detach().double().requires_grad_() for t in inputs]
    a, b = ours(*single), truth(*double)
    flow = drawn(*b.shape, seed=1)
    grads = torch.autograd.grad(a, single, flow)
    true_grads = torch.autograd.grad(b, double, flow.double())
    for mine, theirs in zip((a, *grads), (b, *true_grads), strict=True):
        assert mine.shape == theirs.shape
        torch.testing.assert_close(mine.double(), theirs, rtol=2e-5, atol=2e-5 * float(theirs.detach().abs().max()))


def by_env(run: Function, *stacked: Tensor, dim: int = 1) -> Tensor:
    """Apply an operation to each environment of `[M, E, ...]`, with its own row of the other tensors."""
    h, *params = stacked
    return torch.stack([run(h[:, e], *(p[e] for p in params)) for e in range(h.shape[1])], dim)


def convolution(h: Tensor, w: Tensor, b: Tensor, groups: int) -> Tensor:
    padding = (w.shape[3] // 2, w.shape[4] // 2)
    return by_env(lambda x, k, c: F.conv2d(x, k, c, padding=padding, groups=groups), h, w, b)


SIZES = [  # rows, environments, inputs, outputs (both per group), height, width, taps, groups
    (64, 2, 3, 5, 5, 7, (3, 3), 1),
    (16, 3, 1, 6, 1, 9, (1, 5), 1),
    (80, 2, 5, 4, 3, 2, (3, 3), 1),
    (32, 2, 1, 2, 4, 3, (3, 3), 3),
    (48, 1, 7, 3, 1, 1, (3, 3), 1),
    (64, 2, 6, 9, 6, 1, (1, 1), 1),
    (64, 1, 2, 1, 9, 40, (3, 3), 1),
]


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_convolution(size: tuple[Any, ...]) -> None:
    rows, envs, inputs, outputs, high, wide, taps, groups = size
    h, w = drawn(rows, envs, groups * inputs, high, wide), drawn(envs, groups * outputs, inputs, *taps)
    b = drawn(envs, groups * outputs)
    assert_same(lambda *t: Convolve.apply(*t, groups), lambda *t: convolution(*t, groups), h, w, b)


def test_convolution_without_bias_and_of_channels_that_are_zero() -> None:
    """Padded channels at the end, and those in between, are zero; all their gradients are right."""
    h, w = drawn(32, 2, 5, 3, 4), drawn(2, 6, 5, 3, 3)
    h[:, :, 3:], h[:, 0, 1], w[:, 4:], w[1, :, 4:] = 0.0, 0.0, 0.0, 0.0
    nothing = torch.zeros(2, 6, dtype=torch.float64)
    assert_same(lambda *t: Convolve.apply(*t, None, 1), lambda *t: convolution(*t, nothing, 1), h, w)
    h[:] = 0.0
    assert_same(lambda *t: Convolve.apply(*t, 1), lambda *t: convolution(*t, 1), h, w, drawn(2, 6))


def test_what_is_not_a_number_stays_in_its_environment() -> None:
    h, w, b = drawn(32, 3, 4, 3, 3), drawn(3, 4, 4, 3, 3), drawn(3, 4)
    plain = Convolve.apply(h, w, b, 1)
    w[1, 2, 3, 0, 0] = torch.nan
    broken = Convolve.apply(h, w, b, 1)
    assert torch.equal(plain[:, [0, 2]], broken[:, [0, 2]])
    assert broken[:, 1, 2].isnan().any()
    h[0, 1] = torch.nan
    one, nothing = torch.ones(12), torch.zeros(12)
    assert normalized(h.flatten(1, 2), one, nothing, (1, 1), relu=True)[:, 4:8].isnan().all()


@pytest.mark.parametrize("groups", [1, 4])
def test_two_layers(groups: int) -> None:
    h, w1, b1 = drawn(48, 2, 4, 5, 3), drawn(2, 8, 4 // groups, 3, 3), drawn(2, 8)
    w2, b2 = drawn(2, 4, 8, 1, 1), drawn(2, 4)

    def truth(x: Tensor, *p: Tensor) -> Tensor:
        return x + convolution(torch.relu(convolution(x, p[0], p[1], groups)), p[2], p[3], 1)

    assert_same(lambda *t: TwoLayers.apply(*t, groups), truth, h, w1, b1, w2, b2)


Window = tuple[int, int]
WINDOWS: list[Window] = [(1, 1), (1, 2), (2, 2)]
UNSET = None, None


def normalized(h: Tensor, gain: Tensor, bias: Tensor, window: Window, relu: bool, running: Any = UNSET) -> Tensor:
    return NormalizeBatch.apply(with_rows_innermost(h), gain, bias, *running, window, relu, 0.1, EPS)


def by_pytorch(h: Tensor, gain: Tensor, bias: Tensor, window: Window, relu: bool, running: Any = UNSET) -> Tensor:
    y = F.max_pool2d(F.batch_norm(h, *running, gain, bias, True, 0.1, EPS), window)
    return torch.relu(y) if relu else y


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("relu", [False, True])
def test_norm_with_pooling_and_relu(window: Window, relu: bool) -> None:
    """With an odd line or column, which pooling drops and statistics include; gains of both signs; and running
    statistics."""
    h, gain, bias = 3.0 + 2.0 * drawn(32, 6, window[0] * 2 + 1, 7), drawn(6), drawn(6)
    running = [torch.zeros(6), torch.ones(6)]
    true_running = [t.double() for t in running]
    assert_same(
        lambda x, a, b: normalized(x, a, b, window, relu, running),
        lambda x, a, b: by_pytorch(x, a, b, window, relu, true_running),
        *(h, gain, bias),
    )
    for mine, theirs in zip(running, true_running, strict=True):
        torch.testing.assert_close(mine.double(), theirs, rtol=1e-5, atol=1e-6)


def test_norm_of_channels_that_are_padded_and_of_those_whose_gain_is_zero() -> None:
    """The last two channels have gain and bias 0, and only the last is 0 everywhere."""
    h, gain, bias = drawn(32, 4, 3, 4), drawn(4), drawn(4)
    gain[2:], bias[2:], h[:, 3] = 0.0, 0.0, 0.0
    assert_same(lambda *t: normalized(*t, (2, 2), False), lambda *t: by_pytorch(*t, (2, 2), False), h, gain, bias)


@pytest.mark.parametrize("window", WINDOWS)
def test_calibration_of_groups_of_rows(window: Window) -> None:
    parts = drawn(32, 4, 5, 6), 5.0 * drawn(32, 4, 5, 6, seed=2)
    h, gain, bias = with_rows_innermost(torch.cat(parts)), drawn(4), drawn(4)
    ours = rescaled(h, *calibration(h, gain, bias, 2, EPS), window, True)
    truth = [by_pytorch(part.double(), gain.double(), bias.double(), window, True) for part in parts]
    torch.testing.assert_close(ours.double(), torch.cat(truth), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("window", WINDOWS[1:])
def test_window_mean(window: Window) -> None:
    h = drawn(16, 3, window[0] * 2 + 1, 5)
    assert_same(lambda x: WindowMean.apply(x, window), lambda x: F.avg_pool2d(x, window), h)


def test_classes() -> None:
    h, w, b = drawn(48, 2, 5, 3, 2), drawn(2, 5, 3), drawn(2, 3)
    assert_same(Classify.apply, lambda x, m, c: by_env(lambda y, k, d: y.mean((2, 3)) @ k + d, x, m, c, dim=0), h, w, b)


def test_cross_entropy_among_each_environments_own_classes() -> None:
    labels = torch.arange(32).remainder(3).expand(2, -1).contiguous()

    def truth(logits: Tensor) -> Tensor:
        return torch.stack([F.cross_entropy(logits[e, :, :n], labels[e]) for e, n in enumerate((3, 5))])

    assert_same(lambda x: CrossEntropy.apply(x, labels, torch.tensor([3, 5])), truth, 3.0 * drawn(2, 32, 5))


@pytest.mark.parametrize("blend", range(len(BLENDS)), ids=BLENDS)
def test_blends(blend: int) -> None:
    """Each beside another seed that adds."""
    h, s, w, b = drawn(16, 2, 3, 5, 1), drawn(16, 2, 3, 5, 1, seed=3), drawn(2, 3), drawn(2)
    kinds, alphas = torch.tensor([blend, 0]), torch.tensor([0.7, 0.3])

    def truth(x: Tensor, y: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        out = []
        for e, kind in enumerate(kinds.tolist()):
            gate = {"gate.w": weight[e, :, None], "gate.b": bias[e].view(1, 1)}
            out.append(apply_blend(kind, x[:, e], y[:, e], float(alphas[e]), gate, channel_gate_logits))
        return torch.stack(out, 1) + 0.0 * (weight.sum() + bias.sum())

    assert_same(lambda x, y, *gate: Blend.apply(x, y, kinds, alphas, *gate), truth, h, s, w, b)


def test_gathered_rows_are_those_of_each_environment_and_innermost() -> None:
    data, rows = drawn(2, 9, 3, 5, 7), torch.randint(0, 9, (4, 2, 32))
    x = gathered(data, rows)
    assert all(rows_innermost(step) for step in x)
    assert torch.equal(x, torch.stack([data[e][rows[:, e]] for e in range(2)], 2))
