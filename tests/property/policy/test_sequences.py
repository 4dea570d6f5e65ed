"""The bucketed, fused LSTM equals a loop over LSTM cells, forward and backward; buckets have little padding."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from actors.config import PolicyConfig
from actors.policy.cores.core import Recurrent
from actors.policy.cores.sequences import bucket_layout, length_buckets
from actors.policy.state import PolicyState
from tests.support.examples import examples

Run = Callable[[Recurrent, Tensor, Tensor, PolicyState, float], Tensor]


def run_lstm(core: Recurrent, inputs: Tensor, valid: Tensor, state: PolicyState, max_waste: float) -> Tensor:
    layout = bucket_layout(valid.sum(1).tolist(), max_waste, valid.device)
    return core.sequence(inputs, layout, state).output


def lstm_state(h: Tensor, c: Tensor) -> PolicyState:
    """Run the recurrence without an external memory."""
    none = h.new_zeros(0, h.shape[1], 0)
    return PolicyState(h, c, none, none)


def by_cell(core: Recurrent, inputs: Tensor, valid: Tensor, state: PolicyState, max_waste: float) -> Tensor:
    """Loop over rows and steps with the LSTM's equations (Hochreiter and Schmidhuber, 1997; with forget gates)."""
    outputs, step = [], 0
    for row in range(valid.shape[0]):
        h, c = list(state.h[:, row].unbind()), list(state.c[:, row].unbind())
        for _ in range(int(valid[row].sum())):
            x = inputs[step]
            for k in range(core.lstm.num_layers):
                names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
                w_x, w_h, b_x, b_h = (getattr(core.lstm, f"{n}_l{k}") for n in names)
                i, f, g, o = (w_x @ x + b_x + w_h @ h[k] + b_h).chunk(4)
                c[k] = f.sigmoid() * c[k] + i.sigmoid() * g.tanh()
                x = h[k] = o.sigmoid() * c[k].tanh()
            outputs.append(x)
            step += 1
    return torch.stack(outputs)


def check_equal(run: Run, lengths: list[int], layers: int, max_waste: float) -> None:
    """Return outputs and the gradients of all parameters, inputs and states, in float64."""
    torch.set_num_threads(1)
    torch.manual_seed(sum(lengths) + layers)
    core = Recurrent(3, PolicyConfig(hidden_size=4, num_layers=layers)).double()
    valid = torch.arange(max(lengths))[None, :] < torch.tensor(lengths)[:, None]
    inputs = torch.randn(sum(lengths), 3, dtype=torch.float64, requires_grad=True)
    h, c = (torch.randn(layers, len(lengths), 4, dtype=torch.float64, requires_grad=True) for _ in "hc")
    state = lstm_state(h, c)
    weights = torch.randn(sum(lengths), 4, dtype=torch.float64)
    leaves = [inputs, h, c, *core.lstm.parameters()]
    results = []
    for one in (by_cell, run):
        out = one(core, inputs, valid, state, max_waste)
        assert out.shape == weights.shape
        grads = torch.autograd.grad((out * weights).sum(), leaves, allow_unused=True, materialize_grads=True)
        results.append([out, *grads])
    for expected, actual in zip(*results, strict=True):
        assert torch.allclose(expected, actual, rtol=1e-9, atol=1e-11)


@settings(max_examples=20, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 8), min_size=1, max_size=6).filter(any),
    layers=st.integers(1, 2),
    max_waste=st.sampled_from([1.0, 1.3, 9.0]),
)
def test_the_bucketed_lstm_equals_the_cell_loop_forward_and_backward(
    lengths: list[int], layers: int, max_waste: float
) -> None:
    check_equal(run_lstm, lengths, layers, max_waste)


def of_state(change: Callable[[PolicyState, Tensor], PolicyState]) -> Run:
    return lambda core, inputs, valid, state, waste: run_lstm(core, inputs, valid, change(state, valid), waste)


def in_bucket_order(state: PolicyState, valid: Tensor) -> PolicyState:
    order = valid.sum(1).argsort(stable=True)
    return lstm_state(state.h[:, order], state.c[:, order])


def left_padded(core: Recurrent, inputs: Tensor, valid: Tensor, state: PolicyState, max_waste: float) -> Tensor:
    """Padding changes the state before the first step."""
    rows, steps = valid.shape
    padded = inputs.new_zeros(rows, steps, inputs.shape[1])
    late = valid.flip(1)
    padded[late] = inputs
    out, _ = core.lstm(padded.transpose(0, 1), (state.h, state.c))
    return out.transpose(0, 1)[late]


def shortest_gathered(core: Recurrent, inputs: Tensor, valid: Tensor, state: PolicyState, max_waste: float) -> Tensor:
    """Return the outputs in bucket order."""
    out = run_lstm(core, inputs, valid, state, max_waste)
    rows = torch.arange(valid.shape[0])[:, None].expand_as(valid)[valid]
    return out[valid.sum(1)[rows].argsort(stable=True)]


WRONG: dict[str, Run] = {
    "states in bucket order": of_state(in_bucket_order),
    "states of zero": of_state(lambda state, _: PolicyState(*map(torch.zeros_like, state))),
    "detached states": of_state(lambda state, _: PolicyState(*(t.detach() for t in state))),  # outputs are right
    "left-padded": left_padded,
    "outputs in bucket order": shortest_gathered,
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_lstm_is_detected(wrong: str) -> None:
    with pytest.raises(AssertionError):
        check_equal(WRONG[wrong], [5, 2, 4], 2, 1.3)


Buckets = Callable[[list[int], float], list[tuple[list[int], int]]]


def check_buckets(cutter: Buckets, lengths: list[int], max_waste: float) -> None:
    buckets = cutter(lengths, max_waste)
    assert sorted(row for rows, _ in buckets for row in rows) == [r for r, n in enumerate(lengths) if n > 0]
    for rows, steps in buckets:
        assert steps == max(lengths[r] for r in rows)
        assert len(rows) * steps <= max_waste * sum(lengths[r] for r in rows) + 1e-9
    steps = [steps for _, steps in buckets]
    assert steps == sorted(set(steps), reverse=True)  # buckets of equal length would be one bucket


@settings(max_examples=examples(100), deadline=None)
@given(
    lengths=st.lists(st.integers(0, 600), max_size=40),
    max_waste=st.floats(1.0, 3.0),
)
def test_padding_of_every_bucket_is_below_the_bound(lengths: list[int], max_waste: float) -> None:
    check_buckets(length_buckets, lengths, max_waste)


WRONG_BUCKETS: dict[str, Buckets] = {
    "one": lambda lengths, max_waste: length_buckets(lengths, float("inf")),
    "unsorted": lambda lengths, max_waste: [([r], n) for r, n in enumerate(lengths) if n > 0],
    "as long as their shortest": lambda lengths, max_waste: [
        (rows, lengths[rows[-1]]) for rows, _ in length_buckets(lengths, max_waste)
    ],
}


@pytest.mark.parametrize("wrong", WRONG_BUCKETS)
def test_wrong_buckets_are_detected(wrong: str) -> None:
    with pytest.raises(AssertionError):
        check_buckets(WRONG_BUCKETS[wrong], [100, 10, 12, 11, 90], 1.3)
