"""In a stack of CNNs, the result of an environment does not depend, bit for bit, on the number of the others or on its
position among them. The passes of a fleet hold different environments in every epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from actors.blueprints.channel import channel_blueprints
from actors.layers import convolution
from actors.layers.batch_norm import batch_statistics
from actors.layers.convolution import After, classify, convolve, plane, pool_mean, unplane

torch.set_num_threads(1)
ROWS = 64
BLUEPRINTS = ["norm", "bottleneck", "conv_light", "depthwise", "attention", "conv_heavy"]
Pass = Callable[..., Tensor]
Case = tuple[Pass, list[tuple[int, ...]]]  # a pass of h and parameters, and the parameters' shapes


def norm(dims: int, channels: int, after: After) -> Case:
    def run(h: Tensor, gain: Tensor, bias: Tensor) -> Tensor:
        return unplane(batch_statistics()("n", plane(h, dims), gain, bias, dims, after), h, dims)

    return run, [(1, channels), (1, channels)]


def scale_with_channels_innermost(dims: int, channels: int) -> Case:
    """Wrong: the gradient of the scale is a sum over rows and space with environments innermost."""

    def innermost(flat: Tensor) -> Tensor:
        return flat.contiguous(memory_format=torch.channels_last)

    def run(h: Tensor, scale: Tensor) -> Tensor:
        last = unplane(innermost(plane(h, dims)), h, dims) * scale[:, 0][(..., *(None,) * dims)]
        flat = plane(last, dims)
        flat.register_hook(innermost)  # type: ignore[no-untyped-call]
        return unplane(flat, h, dims)

    return run, [(1, channels)]


def blueprint(dims: int, channels: int, name: str) -> Case:
    own = next(b for b in channel_blueprints(dims) if b.name == name)
    shapes = own.shapes(channels)

    def run(h: Tensor, *params: Tensor) -> Tensor:
        return own.forward(dict(zip(shapes, params, strict=True)), h, None)

    return run, [p.shape for p in shapes.values()]


def case(name: str, dims: int, channels: int) -> Case:
    if name in BLUEPRINTS:
        return blueprint(dims, channels, name)
    kernel = (5, channels, *(3,) * dims)
    return {
        "convolution": (lambda h, w, b: convolve(h, w, b, dims), [kernel, (1, 5)]),
        "mean": (pool_mean, []),
        "classes": (lambda h, w, b: _rows_first(classify(h, w, b, dims)), [(channels, 3), (1, 3)]),
        "batch norm": norm(dims, channels, After()),
        "batch norm, pool": norm(dims, channels, After(pool=True, relu=True)),
    }[name]


def _rows_first(logits: Tensor) -> Tensor:
    """Move the environments of `[E, M, classes]` second; the gradient is contiguous, as that of a loss."""
    logits.register_hook(Tensor.contiguous)  # type: ignore[no-untyped-call]
    return logits.movedim(0, 1)


def seen(run: Pass, shapes: list[tuple[int, ...]], space: tuple[int, ...], channels: int) -> Iterator[list[Tensor]]:
    """Yield output and gradients of one environment, among different others."""
    own = torch.Generator().manual_seed(0)
    h0, p0 = torch.randn(ROWS, channels, *space, generator=own), [torch.randn(s, generator=own) for s in shapes]
    grad0 = None
    for envs in (2, 3, 5, 6):
        for at in (0, envs - 1):
            h, params = torch.randn(ROWS, envs, channels, *space), [torch.randn(envs, *s) for s in shapes]
            h[:, at] = h0
            for all_of_them, mine in zip(params, p0, strict=True):
                all_of_them[at] = mine
            leaves = [t.requires_grad_() for t in (h, *params)]
            out = run(*leaves)
            grad0 = torch.randn(out[:, at].shape, generator=own) if grad0 is None else grad0
            grad = torch.randn(out.shape)
            grad[:, at] = grad0
            grads = torch.autograd.grad(out, leaves, grad)
            yield [out[:, at].detach(), grads[0][:, at], *(g[at] for g in grads[1:])]


def differences(found: Iterator[list[Tensor]]) -> int:
    first = next(found)
    return sum(not torch.equal(a, b) for other in found for a, b in zip(first, other, strict=True))


def without_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let PyTorch's operations compute, as on a GPU."""
    monkeypatch.setattr(convolution, "suits", lambda h: False)


@pytest.mark.parametrize("kernels", [True, False], ids=["kernels", "torch"])
@pytest.mark.parametrize(
    ("name", "channels", "space"),
    [
        ("mean", 16, (10,)),
        *((name, 9, (6, 6)) for name in ("convolution", "classes", "batch norm", "batch norm, pool", *BLUEPRINTS)),
        *((name, 16, (10,)) for name in ("convolution", "classes", "batch norm", "batch norm, pool", *BLUEPRINTS)),
    ],
    ids=str,
)
def test_results_do_not_depend_on_other_environments(
    name: str, channels: int, space: tuple[int, ...], kernels: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not kernels:
        without_kernels(monkeypatch)
    run, shapes = case(name, len(space), channels)
    assert differences(seen(run, shapes, space, channels)) == 0


def test_sums_with_environments_innermost_are_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    without_kernels(monkeypatch)
    run, shapes = scale_with_channels_innermost(1, 9)
    assert differences(seen(run, shapes, (10,), 9)) > 0
