"""The recurrence, LSTM and external memory, over one length bucket or over all of them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from actors.policy.compiled import compiled, dynamic
from actors.policy.cores.memory import STATISTICS, MemoryWeights, read_and_write, scan
from actors.policy.cores.sequences import BucketLayout, run_layout
from actors.policy.state import PolicyState
from actors.precision import matmul_allows_tf32, tf32

Scan = Callable[[MemoryWeights, Tensor, Tensor, Tensor], tuple[Tensor, Tensor, Tensor, Tensor]]
_PER_LAYER = 4  # weight_ih, weight_hh, bias_ih, bias_hh, as in nn.LSTM


def recur(
    x: Tensor,
    state: PolicyState,
    weights: list[Tensor],
    memory: list[Tensor],
    dtype: torch.dtype,
    run_scan: Scan = scan,
) -> tuple[Tensor, PolicyState]:
    """Run `x [T, N, inputs]` from `state`. Returns outputs `[T, N, hidden]` and the state after the last step.

    With a memory, its statistics are appended to the outputs: `[T, N, hidden + 3]`. `weights` are the parameters of an
    nn.LSTM in their order, `memory` the fields of `MemoryWeights` or empty. The LSTM runs in `dtype`, the memory in the
    dtype of `x`. Weights are cast explicitly, because an autocast region would cache the casts, without gradient if
    the first pass has none.
    """
    unfused = torch.compiler.is_compiling() or torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]
    run = _by_cell if unfused else _fused
    with torch.autocast(x.device.type, enabled=False):
        cast = [w.to(dtype) for w in weights]
        out, h, c = (t.to(x.dtype) for t in run(x.to(dtype), state.h.to(dtype), state.c.to(dtype), cast))
        if not memory:
            return out, PolicyState(h, c, state.cells, state.usage)
        out, statistics, cells, usage = run_scan(MemoryWeights(*memory), out, state.cells, state.usage)
        return torch.cat([out, statistics], -1), PolicyState(h, c, cells, usage)


def _fused(x: Tensor, h: Tensor, c: Tensor, weights: list[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    layers, training = len(weights) // _PER_LAYER, torch.is_grad_enabled()
    if not x.is_cuda:
        return torch.lstm(x, (h, c), weights, True, layers, 0.0, training, False, False)
    # cuDNN takes contiguous states only. Its LSTM may use TF32 where matrix products may.
    with tf32(matmul_allows_tf32()):
        return torch.lstm(x, (h.contiguous(), c.contiguous()), weights, True, layers, 0.0, training, False, False)


def _by_cell(x: Tensor, h: Tensor, c: Tensor, weights: list[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """The LSTM's equations, for the single step of `act` in compiled, traced and exported programs.

    A compiler fuses them better than a call of `torch.lstm`, and traced they take half the time of that call, which
    packs the weights each time.
    """
    steps, hs, cs = list(x.unbind()), [], []
    for layer in range(len(weights) // _PER_LAYER):
        w_x, w_h, b_x, b_h = weights[_PER_LAYER * layer : _PER_LAYER * (layer + 1)]
        hidden, cell = h[layer], c[layer]
        for t, step in enumerate(steps):
            i, f, g, o = (F.linear(step, w_x, b_x) + F.linear(hidden, w_h, b_h)).chunk(4, -1)
            cell = f.sigmoid() * cell + i.sigmoid() * g.tanh()
            steps[t] = hidden = o.sigmoid() * cell.tanh()
        hs.append(hidden)
        cs.append(cell)
    return torch.stack(steps), torch.stack(hs), torch.stack(cs)


def recur_sequence(
    x: Tensor,
    layout: BucketLayout,
    state: PolicyState,
    weights: list[Tensor],
    memory: list[Tensor],
    dtype: torch.dtype,
    run_scan: Scan = scan,
) -> tuple[Tensor, PolicyState]:
    """Apply `recur` to every bucket of flat `x [N, inputs]`; see `run_layout` for the results."""

    def run(part: Tensor, before: PolicyState) -> tuple[Tensor, PolicyState]:
        return recur(part, before, weights, memory, dtype, run_scan)

    return run_layout(run, x, layout, state, _outputs(state, memory))


def _outputs(state: PolicyState, memory: list[Tensor]) -> int:
    return state.h.shape[2] + (len(STATISTICS) if memory else 0)


# Under torch.compile, the whole recurrence is one opaque operator. The fused LSTM cannot be traced, because its CPU
# backward has no fake implementation, and a scan unrolled over time would be recompiled for every length. One step of
# the scan is compiled separately: 1.5 to 2.5 times as fast on a CPU, where call overhead dominates small operations.


def compiled_scan(
    weights: MemoryWeights, outputs: Tensor, cells: Tensor, usage: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Run `scan` with compiled steps. A single row is duplicated; see `actors.policy.compiled`."""
    rows, usage = outputs.shape[1], usage.detach()  # usage only selects cells, which has no derivative
    if rows < 2:
        outputs, cells, usage = (t.expand(-1, 2, -1) for t in (outputs, cells, usage))
    out, statistics, cells, usage = scan(weights, outputs, cells, usage, _compiled_step)
    return out[:, :rows], statistics[:, :rows], cells[:, :rows], usage[:, :rows]


_step = compiled(read_and_write)


def _compiled_step(*inputs: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return _step(*(dynamic(t.contiguous()) for t in inputs))


_CLEAN = (torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set())


@torch.library.custom_op("tamiyo::recurrence", mutates_args=())
def _operator(
    x: Tensor,
    layout: list[Tensor],
    state: list[Tensor],
    weights: list[Tensor],
    memory: list[Tensor],
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """`recur_sequence` in a fixed dispatcher state and without gradient, so that all callers share compiled graphs."""
    with torch._C._ForceDispatchKeyGuard(*_CLEAN), torch.no_grad():
        out, after = recur_sequence(
            x, BucketLayout.unpack(layout), PolicyState(*state), weights, memory, dtype, compiled_scan
        )
    h, c, cells, usage = (t.clone() for t in after)
    return out, h, c, cells, usage


@_operator.register_fake
def _(x, layout, state, weights, memory, dtype):  # type: ignore[no-untyped-def]
    return x.new_empty(x.shape[0], _outputs(PolicyState(*state), memory)), *(torch.empty_like(t) for t in state)


@torch.library.custom_op("tamiyo::recurrence_backward", mutates_args=())
def _backward_operator(
    gradients: list[Tensor],
    x: Tensor,
    layout: list[Tensor],
    state: list[Tensor],
    weights: list[Tensor],
    memory: list[Tensor],
    dtype: torch.dtype,
) -> list[Tensor]:
    """Compute the gradients by running the forward pass again with autograd.

    Autograd is disabled inside an operator, so the dispatcher state is reset to that outside of one.
    """
    with torch._C._ForceDispatchKeyGuard(*_CLEAN), torch.enable_grad():
        leaves = [t.detach().requires_grad_() for t in (x, *state, *weights, *memory)]
        remaining = iter(leaves)
        own_x, own_state = next(remaining), PolicyState(*(next(remaining) for _ in state))
        own_weights, own_memory = [next(remaining) for _ in weights], [next(remaining) for _ in memory]
        out, after = recur_sequence(
            own_x, BucketLayout.unpack(layout), own_state, own_weights, own_memory, dtype, compiled_scan
        )
        differentiable = [(t, g) for t, g in zip((out, *after), gradients, strict=True) if t.requires_grad]
        outputs, output_grads = zip(*differentiable, strict=True)
        leaf_grads = torch.autograd.grad(outputs, leaves, output_grads, allow_unused=True, materialize_grads=True)
    return [g.clone() for g in leaf_grads]  # an operator must not return one of its inputs


@_backward_operator.register_fake
def _(gradients, x, layout, state, weights, memory, dtype):  # type: ignore[no-untyped-def]
    return [torch.empty_like(t) for t in (x, *state, *weights, *memory)]


def _setup(ctx, inputs, output):  # type: ignore[no-untyped-def]
    x, layout, state, weights, memory, ctx.dtype = inputs
    ctx.counts = (len(layout), len(state), len(weights), len(memory))
    ctx.save_for_backward(x, *layout, *state, *weights, *memory)


def _backward(ctx, *gradients):  # type: ignore[no-untyped-def]
    x, *rest = ctx.saved_tensors
    lists = []
    for count in ctx.counts:
        lists.append(rest[:count])
        rest = rest[count:]
    layout, state, weights, memory = lists
    grads = _backward_operator([g.contiguous() for g in gradients], x, layout, state, weights, memory, ctx.dtype)
    s, w = 1 + len(state), 1 + len(state) + len(weights)
    return grads[0], [None] * len(layout), grads[1:s], grads[s:w], grads[w:], None


_operator.register_autograd(_backward, setup_context=_setup)


def opaque_sequence(
    x: Tensor,
    layout: list[Tensor],
    state: PolicyState,
    weights: list[Tensor],
    memory: list[Tensor],
    dtype: torch.dtype,
) -> tuple[Tensor, PolicyState]:
    """Run `recur_sequence` as one custom operator. `layout` is packed, see `BucketLayout.pack`."""
    out, *after = _operator(x, layout, list(state), weights, memory, dtype)
    return out, PolicyState(*after)
