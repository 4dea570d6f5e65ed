"""The bucketed, fused LSTM equals a loop over LSTM cells, forward and backward; buckets have little padding; and the
episodes of one batch do not affect each other's outputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from actors.config import PolicyConfig
from actors.policy.cores.core import CoreOutput, Recurrent
from actors.policy.cores.sequences import BucketLayout, SequenceLayout, Steps, bucket_layout, length_buckets
from actors.policy.state import PolicyState
from learner.ppo.minibatch import whole_batch
from tests.support.examples import examples
from tests.support.learning.batches import toy_batch
from tests.support.learning.toy import POLICIES, toy_network
from tests.support.learning.without_kernels import without_kernels

Run = Callable[[Recurrent, Tensor, Tensor, PolicyState, float], Tensor]


def run_lstm(core: Recurrent, inputs: Tensor, valid: Tensor, state: PolicyState, max_waste: float) -> Tensor:
    layout = bucket_layout(valid.sum(1).tolist(), max_waste, valid.device)
    return core.sequence(inputs, layout, state).output


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
    """Compare outputs and the gradients of all parameters, inputs and states, in float64."""
    torch.manual_seed(sum(lengths) + layers)
    core = Recurrent(3, PolicyConfig(hidden_size=4, num_layers=layers)).double()
    valid = torch.arange(max(lengths))[None, :] < torch.tensor(lengths)[:, None]
    inputs = torch.randn(sum(lengths), 3, dtype=torch.float64, requires_grad=True)
    h, c = (torch.randn(layers, len(lengths), 4, dtype=torch.float64, requires_grad=True) for _ in "hc")
    no_memory = h.new_zeros(0, len(lengths), 0)
    state = PolicyState(h, c, no_memory, no_memory)
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


def detached(core: Recurrent, inputs: Tensor, valid: Tensor, state: PolicyState, max_waste: float) -> Tensor:
    """Outputs are right, gradients are not."""
    return run_lstm(core, inputs, valid, PolicyState(*(t.detach() for t in state)), max_waste)


def test_a_wrong_lstm_is_detected() -> None:
    with pytest.raises(AssertionError):
        check_equal(detached, [5, 2, 4], 2, 1.3)


@settings(max_examples=examples(100), deadline=None)
@given(lengths=st.lists(st.integers(0, 600), max_size=40), max_waste=st.floats(1.0, 3.0))
def test_padding_of_every_bucket_is_below_the_bound(lengths: list[int], max_waste: float) -> None:
    buckets = length_buckets(lengths, max_waste)
    assert sorted(row for rows, _ in buckets for row in rows) == [r for r, n in enumerate(lengths) if n > 0]
    for rows, steps in buckets:
        assert steps == max(lengths[r] for r in rows)
        assert len(rows) * steps <= max_waste * sum(lengths[r] for r in rows) + 1e-9
    steps = [steps for _, steps in buckets]
    assert steps == sorted(set(steps), reverse=True)  # buckets of equal length would be one bucket


# Episodes of one batch do not affect each other


LENGTHS = (4, 9, 5, 4, 7)


def changed(steps: Steps, row: int, own: Tensor) -> Steps:
    """Replace observations, actions, masks and state of one episode, whose steps are `own [N]`, but not its length."""
    noise = torch.Generator().manual_seed(row)
    mine = own[:, None]
    return steps._replace(
        obs=torch.where(mine, 3 * torch.randn(steps.obs.shape, generator=noise), steps.obs),
        blueprint_indices=torch.where(mine, (steps.blueprint_indices + 2) % 4 - 1, steps.blueprint_indices),
        actions=steps.actions * ~mine,
        masks=steps.masks | mine,
        state=PolicyState(*(t.index_add(1, torch.tensor([row]), torch.ones_like(t[:, :1])) for t in steps.state)),
    )


def check_no_leak(max_waste: float = 1.3, **options: Any) -> None:
    network, batch = toy_network(**options), toy_batch(LENGTHS, **options)
    lengths = batch.episode_lengths
    steps = whole_batch(batch).steps(batch)._replace(layout=SequenceLayout(lengths, max_waste, torch.device("cpu")))
    with torch.no_grad():
        before = network.evaluate_steps(steps)
        for row in range(len(LENGTHS)):
            own = torch.from_numpy(np.arange(len(LENGTHS)).repeat(lengths) == row)
            after = network.evaluate_steps(changed(steps, row, own))
            for a, b in zip(before, after, strict=True):
                felt = not torch.allclose(a[own], b[own], atol=1e-3)
                assert felt or a.shape[1:] == (0,)
                assert torch.equal(a[~own], b[~own])


@pytest.mark.parametrize("max_waste", [1.0, 100.0])
@pytest.mark.parametrize("options", POLICIES)
def test_changing_one_episode_does_not_change_the_others_outputs_by_a_bit(
    max_waste: float, options: dict[str, str]
) -> None:
    check_no_leak(max_waste, **options)


def test_leaks_are_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    sequence = Recurrent.sequence

    def of_the_neighbor(core: Recurrent, x: Tensor, layout: BucketLayout, state: PolicyState) -> CoreOutput:
        return sequence(core, x, layout, PolicyState(*(t.roll(1, 1) for t in state)))

    monkeypatch.setattr(Recurrent, "sequence", of_the_neighbor)
    with pytest.raises(AssertionError), without_kernels():
        check_no_leak()
