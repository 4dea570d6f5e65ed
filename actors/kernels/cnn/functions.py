"""The kernels as functions of torch tensors, with gradients.

Tensors are those of `actors.layers.convolution`, `[M, E, C, *space]` and planes `[M, E * C, height, width]`, whose
rows of data M are innermost in memory.
"""

from __future__ import annotations

import threading
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from actors.kernels.cnn.classes import classify, classify_back, losses
from actors.kernels.cnn.convolution import Scratch, convolution, convolution_back
from actors.kernels.cnn.layout import NARROW, with_rows_innermost
from actors.kernels.cnn.memory import aligned, empty
from actors.kernels.cnn.norm import calibrate, normalize, normalize_back, rescale
from actors.kernels.cnn.seeds import blend, blend_back, two_layers, two_layers_back
from actors.kernels.cnn.space import gather_rows, window_mean, window_mean_back
from actors.kernels.cnn.tiles import LANES, TILE, WIDE
from actors.kernels.decorators import Array

Window = tuple[int, int]


def gathered(data: Tensor, rows: Tensor) -> Tensor:
    """Return rows `[S, M, E, *sample]` of `data [E, N, *sample]`, by index `[S, E, M]`, with M innermost in memory."""
    envs, _, *sample = data.shape
    x = empty((len(rows), envs, prod(sample), rows.shape[2]))
    gather_rows(data.flatten(2).numpy(), _vector(rows), x)
    return torch.from_numpy(x.reshape(len(rows), envs, *sample, -1)).movedim(-1, 1)


def _array(h: Tensor) -> Array:
    """Return `h` as an array with rows of data last, copied if they are not innermost in memory."""
    return np.asarray(with_rows_innermost(h.detach()).movedim(0, -1).numpy())


def _vector(t: Tensor) -> Array:
    return np.asarray(t.detach().contiguous().numpy())


_workspace = threading.local()


def _scratch(name: str, size: int) -> Array:
    """Return an array of at least `size` numbers, which this thread uses again and again."""
    known: Array | None = getattr(_workspace, name, None)
    if known is None or len(known) < size:
        known = aligned(size)
        known[:] = 0
        setattr(_workspace, name, known)
    return known


def _spaces(h: Array, *weights: Array) -> Scratch:
    """Return what the convolutions of `h [E, C, H, W, M]` with `weights` need."""
    most = max(max(w.shape[1:3]) for w in weights)
    taps = max(w.shape[3] * w.shape[4] for w in weights)
    return (
        _scratch("rows", most * h.shape[2] * h.shape[3] * max(WIDE, NARROW)),
        _scratch("weights", (most + TILE) * most * taps),
        _scratch("sums", max(w[0].size for w in weights) * LANES),
        _scratch("zeros", most + TILE),
    )


class Convolve(torch.autograd.Function):
    """`apply(h, w, b, groups)` convolves `h [M, E, G * I, H, W]` with `w [E, G * O, I, TH, TW]`.

    It adds `b [E, G * O]`, or nothing if that is None.
    """

    @staticmethod
    def forward(ctx: Any, h: Tensor, w: Tensor, b: Tensor | None, groups: int) -> Tensor:
        x, filters = _array(h), _vector(w)
        offset = np.zeros(w.shape[:2], np.float32) if b is None else _vector(b)
        y = empty((*filters.shape[:2], *x.shape[2:]))
        convolution(x, filters, offset, y, groups, _spaces(x, filters))
        ctx.x, ctx.w, ctx.groups = x, filters, groups
        return torch.from_numpy(y).movedim(-1, 0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        x, w = ctx.x, ctx.w
        input_too, weights_too, bias_too, _ = ctx.needs_input_grad
        dx = empty(x.shape if input_too else (1,) * 5)
        dw, db = empty(w.shape), empty(w.shape[:2])
        with_weights = weights_too or bias_too
        convolution_back(x, w, _array(d), dx, dw, db, ctx.groups, input_too, with_weights, _spaces(x, w))
        return (
            torch.from_numpy(dx).movedim(-1, 0) if input_too else None,
            torch.from_numpy(dw) if weights_too else None,
            torch.from_numpy(db) if bias_too else None,
            None,
        )


class TwoLayers(torch.autograd.Function):
    """`apply(h, w1, b1, w2, b2, groups)` adds w2 * ReLU(w1 * h + b1) + b2 to `h`; the first convolution has groups."""

    @staticmethod
    def forward(ctx: Any, h: Tensor, w1: Tensor, b1: Tensor, w2: Tensor, b2: Tensor, groups: int) -> Tensor:
        x, first, second = _array(h), _vector(w1), _vector(w2)
        hidden = empty((*first.shape[:2], *x.shape[2:]))
        y = empty(x.shape)
        two_layers(x, first, _vector(b1), second, _vector(b2), hidden, y, groups, _spaces(x, first, second))
        ctx.saved, ctx.groups = (x, first, second, hidden), groups
        return torch.from_numpy(y).movedim(-1, 0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d: Tensor) -> tuple[Tensor | None, ...]:
        x, first, second, hidden = ctx.saved
        input_too, with_weights = ctx.needs_input_grad[0], any(ctx.needs_input_grad[1:])
        dx = empty(x.shape if input_too else (1,) * 5)
        dw1, db1, dw2, db2 = (empty(shape) for w in (first, second) for shape in (w.shape, w.shape[:2]))
        inside = _scratch("hidden", hidden[0].size)[: hidden[0].size].reshape(hidden[0].shape)
        grads, spaces = (dw1, db1, dw2, db2), _spaces(x, first, second)
        outer = x, first, second, hidden, _array(d)
        two_layers_back(*outer, dx, *grads, inside, ctx.groups, input_too, with_weights, spaces)
        of_weights = [torch.from_numpy(g) if ctx.needs_input_grad[n + 1] else None for n, g in enumerate(grads)]
        return (torch.from_numpy(dx).movedim(-1, 0) if input_too else None, *of_weights, None)


class Blend(torch.autograd.Function):
    """`apply(h, s, kinds, alphas, weights, biases)` blends the outputs s of n seeds into `h [M, n, C, *space]`.

    `kinds [n]` are indices into `BLENDS`, `alphas [n]` strengths; `weights [n, C]` and `biases [n]` are gates.
    """

    @staticmethod
    def forward(
        ctx: Any, h: Tensor, s: Tensor, kinds: Tensor, alphas: Tensor, weights: Tensor, biases: Tensor
    ) -> Tensor:
        x, grown = _array(h), _array(s)
        y = empty(x.shape)
        flat = (*x.shape[:2], -1)
        values = empty((len(x), x[0, 0].size))
        seeds = _vector(kinds), _vector(alphas), _vector(weights)
        blend(x.reshape(flat), grown.reshape(flat), *seeds, _vector(biases), values, y.reshape(flat))
        ctx.saved = x, grown, *seeds, values
        return torch.from_numpy(y).movedim(-1, 0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d: Tensor) -> tuple[Tensor | None, ...]:
        x, grown, kinds, alphas, weights, values = ctx.saved
        dx, ds, flat = empty(x.shape), empty(x.shape), (*x.shape[:2], -1)
        dweights, dbiases, flow = empty(weights.shape), empty((len(x),)), empty(values[0].shape)
        plain = x.reshape(flat), grown.reshape(flat), kinds, alphas, weights, values, _array(d).reshape(flat)
        blend_back(*plain, dx.reshape(flat), ds.reshape(flat), dweights, dbiases, flow)
        to_h, to_s = (torch.from_numpy(g).movedim(-1, 0) for g in (dx, ds))
        return to_h, to_s, None, None, torch.from_numpy(dweights), torch.from_numpy(dbiases)


class NormalizeBatch(torch.autograd.Function):
    """`apply(h, gain, bias, mean, var, window, relu, momentum, eps)` normalizes a plane `h` by its statistics.

    Running statistics `mean` and `var [C]` are updated in place unless they are None. Max-pooling over `window`
    follows, and ReLU if `relu`.
    """

    @staticmethod
    def forward(
        ctx: Any, h: Tensor, gain: Tensor, bias: Tensor, mean: Tensor | None, var: Tensor | None, window: Window,
        relu: bool, momentum: float, eps: float,
    ) -> Tensor:  # fmt: skip
        x, a, b = _array(h), _vector(gain), _vector(bias)
        y = _pooled(x, window)
        batch_mean, inverse = empty(a.shape), empty(a.shape)
        none = empty((0,))
        m, v = (none, none) if mean is None or var is None else (mean.numpy(), var.numpy())
        tall, wide = window
        normalize(x, a, b, y, batch_mean, inverse, m, v, tall, wide, relu, momentum, eps)
        ctx.saved = x, a, b, batch_mean, inverse
        ctx.window, ctx.relu = window, relu
        return torch.from_numpy(y).movedim(-1, 0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d: Tensor) -> tuple[Tensor | None, ...]:
        x, gain, bias, mean, inverse = ctx.saved
        dx, dgain, dbias = empty(x.shape), empty(gain.shape), empty(bias.shape)
        tall, wide = ctx.window
        normalize_back(x, _array(d), gain, bias, mean, inverse, dx, dgain, dbias, tall, wide, ctx.relu)
        return (torch.from_numpy(dx).movedim(-1, 0), torch.from_numpy(dgain), torch.from_numpy(dbias), *(None,) * 6)


def rescaled(h: Tensor, scale: Tensor, shift: Tensor, window: Window, relu: bool) -> Tensor:
    """Multiply a plane by `scale [C, V]` and add `shift`, for V groups of rows of data; then pool, and apply ReLU."""
    x = _array(h)
    y = _pooled(x, window)
    rescale(x, _vector(scale), _vector(shift), y, *window, relu)
    return torch.from_numpy(y).movedim(-1, 0)


def calibration(h: Tensor, gain: Tensor, bias: Tensor, groups: int, eps: float) -> tuple[Tensor, Tensor]:
    """Return the scale and shift `[C, groups]` that normalize a plane by the statistics of each group of rows."""
    scale, shift = empty((2, h.shape[1], groups))
    calibrate(_array(h), _vector(gain), _vector(bias), scale, shift, eps)
    return torch.from_numpy(scale), torch.from_numpy(shift)


def _pooled(x: Array, window: Window) -> Array:
    """Return an array for the output of pooling `x [C, H, W, M]`."""
    return empty((x.shape[0], x.shape[1] // window[0], x.shape[2] // window[1], x.shape[3]))


class WindowMean(torch.autograd.Function):
    """`apply(h, window)` average-pools a plane; what is left over at the end is dropped."""

    @staticmethod
    def forward(ctx: Any, h: Tensor, window: Window) -> Tensor:
        x = _array(h)
        y = _pooled(x, window)
        window_mean(x, y, *window)
        ctx.shape, ctx.window = x.shape, window
        return torch.from_numpy(y).movedim(-1, 0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d: Tensor) -> tuple[Tensor, None]:
        dx = empty(ctx.shape)
        window_mean_back(_array(d), dx, *ctx.window)
        return torch.from_numpy(dx).movedim(-1, 0), None


class Classify(torch.autograd.Function):
    """`apply(h, w, b)` returns logits `[E, M, K]` of `h [M, E, C, *space]`: a global mean and a linear layer with
    `w [E, C, K]` and `b [E, K]`."""

    @staticmethod
    def forward(ctx: Any, h: Tensor, w: Tensor, b: Tensor) -> Tensor:
        x, weights = _array(h), _vector(w)
        ctx.shape = x.shape
        x = x.reshape(*x.shape[:2], -1, x.shape[-1])
        mean = empty((*x.shape[:2], x.shape[3]))
        y = empty((x.shape[0], weights.shape[2], x.shape[3]))
        classify(x, weights, _vector(b), mean, y)
        ctx.saved = mean, weights
        return torch.from_numpy(y).mT

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, w = ctx.saved
        dx, dw, db = empty(ctx.shape), empty(w.shape), empty((w.shape[0], w.shape[2]))
        flow = dx.reshape(*dx.shape[:2], -1, dx.shape[-1])
        classify_back(mean, w, _vector(d.mT), flow, dw, db)
        return torch.from_numpy(dx).movedim(-1, 0), torch.from_numpy(dw), torch.from_numpy(db)


class CrossEntropy(torch.autograd.Function):
    """`apply(logits, labels, counts)` returns the mean cross-entropy of each environment `[E]`, of logits `[E, M, K]`
    and `labels [E, M]`, among the first `counts [E]` classes."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor, counts: Tensor) -> Tensor:
        slope = logits.detach().mT.clone(memory_format=torch.contiguous_format).numpy()
        loss = empty((len(slope),))
        losses(slope, _vector(labels), _vector(counts), loss, empty((2, slope.shape[2])))
        ctx.slope = torch.from_numpy(slope)
        return torch.from_numpy(loss)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d: Tensor) -> tuple[Tensor, None, None]:
        return (ctx.slope * d[:, None, None]).mT, None, None
