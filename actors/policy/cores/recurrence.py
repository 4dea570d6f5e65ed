"""The recurrent arithmetic: the fused LSTM, then the external memory, over a bucket or over all of them."""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor
from torch.nn import functional as F

from actors.policy.cores.memory import STATISTICS, MemoryWeights, Step, read_and_write, scan
from actors.policy.cores.sequences import BucketLayout, run_layout
from actors.policy.state import PolicyState

_PER_LAYER = 4  # weight_ih, weight_hh, bias_ih, bias_hh, as in nn.LSTM


def recur(
    x: Tensor,
    state: PolicyState,
    weights: list[Tensor],
    memory: list[Tensor],
    dtype: torch.dtype,
    step: Step = read_and_write,
) -> tuple[Tensor, PolicyState]:
    """`x [T, N, inputs]` > `[T, N, hidden]`, with a memory `[T, N, hidden + 3]`, and the state after it.

    `weights` are those of an nn.LSTM in its order, `memory` those of `MemoryWeights` or empty, `step` one of its scan.
    The LSTM runs in `dtype`, the memory in that of `x`; the casts are made here, so that no autocast region keeps them.
    """
    unfused = torch.compiler.is_compiling() or torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]
    run = _by_cell if unfused else _fused
    with torch.autocast(x.device.type, enabled=False):
        cast = [w.to(dtype) for w in weights]
        out, h, c = (t.to(x.dtype) for t in run(x.to(dtype), state.h.to(dtype), state.c.to(dtype), cast))
        if not memory:
            return out, PolicyState(h, c, state.cells, state.usage)
        out, told, cells, usage = scan(MemoryWeights(*memory), out, state.cells, state.usage, step)
        return torch.cat([out, told], -1), PolicyState(h, c, cells, usage)


def _fused(x: Tensor, h: Tensor, c: Tensor, weights: list[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    layers, training = len(weights) // _PER_LAYER, torch.is_grad_enabled()
    return torch.lstm(x, (h, c), weights, True, layers, 0.0, training, False, False)


def _by_cell(x: Tensor, h: Tensor, c: Tensor, weights: list[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """The LSTM's equations, for the single step of `act`: a compiler fuses them better than a call, and as a trace they
    take half the time of a call that packs its weights anew."""
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
    step: Step = read_and_write,
) -> tuple[Tensor, PolicyState]:
    """`recur` over every bucket of flat `x [N, inputs]`: flat outputs, and the rows' last states (`run_layout`)."""

    def run(part: Tensor, before: PolicyState) -> tuple[Tensor, PolicyState]:
        return recur(part, before, weights, memory, dtype, step)

    return run_layout(run, x, layout, state, _outputs(state, memory))


def _outputs(state: PolicyState, memory: list[Tensor]) -> int:
    return state.h.shape[2] + (len(STATISTICS) if memory else 0)


# For torch.compile, all of it is one operator whose inside is not traced: the fused LSTM cannot be (its derivative on
# CPUs has no fake form), and a scan unrolled over time would be compiled again for every length. One step of it is
# compiled by itself: 1.5 to 2.5 times as fast on a CPU, where its small operations cost more than their arithmetic.


@cache
def compiled_step() -> Step:
    compiled: Step = torch.compile(read_and_write, fullgraph=True, dynamic=True)
    return compiled


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
    out, after = recur_sequence(
        x, BucketLayout.unpack(layout), PolicyState(*state), weights, memory, dtype, compiled_step()
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
    """By running forward again with a graph: an operator's inside has none, so the dispatcher's state is put back to
    what it is outside of one."""
    with torch._C._ForceDispatchKeyGuard(*_CLEAN), torch.enable_grad():
        leaves = [t.detach().requires_grad_() for t in (x, *state, *weights, *memory)]
        own = iter(leaves)
        own_x, own_state = next(own), PolicyState(*(next(own) for _ in state))
        own_weights, own_memory = [next(own) for _ in weights], [next(own) for _ in memory]
        out, after = recur_sequence(
            own_x, BucketLayout.unpack(layout), own_state, own_weights, own_memory, dtype, compiled_step()
        )
        found = [(t, g) for t, g in zip((out, *after), gradients, strict=True) if t.requires_grad]
        outputs, given = zip(*found, strict=True)
        gradients_of_leaves = torch.autograd.grad(outputs, leaves, given, allow_unused=True, materialize_grads=True)
    return [g.clone() for g in gradients_of_leaves]  # what passes through unchanged would be an operator's own input


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
    found = _backward_operator([g.contiguous() for g in gradients], x, layout, state, weights, memory, ctx.dtype)
    s, w = 1 + len(state), 1 + len(state) + len(weights)
    return found[0], [None] * len(layout), found[1:s], found[s:w], found[w:], None


_operator.register_autograd(_backward, setup_context=_setup)


def opaque_sequence(
    x: Tensor,
    layout: list[Tensor],
    state: PolicyState,
    weights: list[Tensor],
    memory: list[Tensor],
    dtype: torch.dtype,
) -> tuple[Tensor, PolicyState]:
    """`recur_sequence` as one operator; `layout` is packed."""
    out, *after = _operator(x, layout, list(state), weights, memory, dtype)
    return out, PolicyState(*after)
