"""Seeds of two convolutions, and blends, which join a seed's output to the hidden tensor of its host.

One environment after the other, so that what is between two operations stays in the cache.
"""

from __future__ import annotations

from actors.kernels.cnn.convolution import Scratch, convolve_env, convolve_env_input, convolve_env_weights
from actors.kernels.cnn.tiles import LANES
from actors.kernels.decorators import Array, kernel
from actors.kernels.decorators import allocation_free as inner
from actors.kernels.vectors import fma, load, rectified, sigmoid, splat, store, tanh, total, where_positive
from actors.types.actions import BLENDS

MULTIPLY, GATE = BLENDS.index("multiply"), BLENDS.index("gated")


@kernel
def two_layers(
    h: Array, w1: Array, b1: Array, w2: Array, b2: Array, hidden: Array, y: Array, groups: int, scratch: Scratch
) -> None:
    """Compute y = h + w2 * hidden + b2, where hidden is ReLU(w1 * h + b1) and the first layer has `groups`."""
    for e in range(len(h)):
        convolve_env(h[e], w1[e], b1[e], hidden[e], groups, scratch)
        inside = hidden[e].reshape(hidden[e].size)
        for i in range(0, inside.size, LANES):
            store(inside, i, rectified(load(inside, i)))
        convolve_env(hidden[e], w2[e], b2[e], y[e], 1, scratch)
        x, out = h[e].reshape(h[e].size), y[e].reshape(y[e].size)
        for i in range(0, out.size, LANES):
            store(out, i, load(out, i) + load(x, i))


@kernel
def two_layers_back(
    h: Array, w1: Array, w2: Array, hidden: Array, d: Array, dh: Array, dw1: Array, db1: Array, dw2: Array, db2: Array,
    inside: Array, groups: int, input_too: bool, weights_too: bool, scratch: Scratch,
) -> None:  # fmt: skip
    """Compute the gradient of h if `input_too`, and of weights and biases if `weights_too`, from that of y, `d`.

    Overwrite `inside`, which has the shape of one environment's hidden layer.
    """
    for e in range(len(h)):
        if weights_too:
            convolve_env_weights(hidden[e], d[e], dw2[e], db2[e], 1, scratch)
        convolve_env_input(d[e], w2[e], inside, 1, scratch)
        flow, kept = inside.reshape(inside.size), hidden[e].reshape(inside.size)
        for i in range(0, flow.size, LANES):
            store(flow, i, where_positive(load(kept, i), load(flow, i)))
        if weights_too:
            convolve_env_weights(h[e], inside, dw1[e], db1[e], groups, scratch)
        if input_too:
            convolve_env_input(inside, w1[e], dh[e], groups, scratch)
            out, straight = dh[e].reshape(dh[e].size), d[e].reshape(dh[e].size)
            for i in range(0, out.size, LANES):
                store(out, i, load(out, i) + load(straight, i))


@inner
def gate_values(h: Array, weight: Array, bias: float, value: Array) -> None:
    """Write the gate of each position, sigmoid(weight . h + bias), to `value [P * M]`, from h [C, P * M]."""
    for i in range(0, value.size, LANES):
        logit = splat(bias)
        for c in range(len(h)):
            logit = fma(splat(weight[c]), load(h[c], i), logit)
        store(value, i, sigmoid(logit))


@kernel
def blend(
    h: Array, s: Array, kinds: Array, alphas: Array, weights: Array, biases: Array, values: Array, y: Array
) -> None:
    """Compute y, h [n, C, P * M] with s blended in, by the kind of blend and the alpha `[n]` of each seed.

    `weights [n, C]` and `biases [n]` are the gates; `values [n, P * M]` receives their values where a blend has one.
    """
    for e in range(len(h)):
        kind, alpha = kinds[e], splat(alphas[e])
        if kind == GATE:
            gate_values(h[e], weights[e], biases[e], values[e])
        for c in range(h.shape[1]):
            x, grown, out = h[e, c], s[e, c], y[e, c]
            for i in range(0, out.size, LANES):
                before = load(x, i)
                step = load(grown, i) - before
                if kind == MULTIPLY:
                    step = before * tanh(step)
                elif kind == GATE:
                    step = load(values[e], i) * step
                store(out, i, fma(alpha, step, before))


@kernel
def blend_back(
    h: Array, s: Array, kinds: Array, alphas: Array, weights: Array, values: Array, d: Array, dh: Array, ds: Array,
    dweights: Array, dbiases: Array, flow: Array,
) -> None:  # fmt: skip
    """Compute the gradients of h, s and the gates from that of y, `d`. Overwrite `flow [P * M]`."""
    one, zero = splat(h.dtype.type(1)), splat(h.dtype.type(0))
    for e in range(len(h)):
        kind, alpha = kinds[e], splat(alphas[e])
        dweights[e], dbiases[e] = 0, 0
        for c in range(h.shape[1]):
            x, grown, down, to_h, to_s = h[e, c], s[e, c], d[e, c], dh[e, c], ds[e, c]
            for i in range(0, x.size, LANES):
                slope, before = load(down, i), load(x, i)
                if kind == MULTIPLY:
                    t = tanh(load(grown, i) - before)
                    through = slope * before * alpha * (one - t * t)
                    store(to_h, i, slope * fma(alpha, t, one) - through)
                else:
                    through = alpha * slope
                    if kind == GATE:
                        through = load(values[e], i) * through
                    store(to_h, i, slope - through)
                store(to_s, i, through)
        if kind == GATE:
            summed = zero
            for i in range(0, flow.size, LANES):
                along, value = zero, load(values[e], i)
                for c in range(h.shape[1]):
                    along = fma(load(d[e, c], i), load(s[e, c], i) - load(h[e, c], i), along)
                along = alpha * along * value * (one - value)
                store(flow, i, along)
                summed = summed + along
            dbiases[e] = total(summed)
            for c in range(h.shape[1]):
                x, to_h, weight, along = h[e, c], dh[e, c], splat(weights[e, c]), zero
                for i in range(0, flow.size, LANES):
                    along = fma(load(x, i), load(flow, i), along)
                    store(to_h, i, fma(weight, load(flow, i), load(to_h, i)))
                dweights[e, c] = total(along)
