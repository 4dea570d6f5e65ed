"""Property 3: the episodes of one batch do not see each other."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from actors.policy import network as network_module
from actors.policy.network import Evaluation
from actors.policy.sequences import Layout, SequenceBatch, run_lstm
from actors.policy.state import PolicyState
from learner.batching import make_batch
from tests.chunking import sequence_of
from tests.toy import SPACES, toy_network, toy_seed, toy_wave

LENGTHS = (4, 9, 5, 4, 7)
Output = tuple[Tensor, PolicyState]
Run = Callable[..., Output]


def sequences() -> SequenceBatch:
    network = toy_network()
    seeds = [toy_seed(n, truncated=i % 2 == 0, salt=i) for i, n in enumerate(LENGTHS)]
    return sequence_of(make_batch(toy_wave(network, seeds), SPACES))


def changed(sequence: SequenceBatch, row: int) -> SequenceBatch:
    """Everything about one row is different: what it saw, what it did, its state; not its length."""
    noise = torch.Generator().manual_seed(row)

    def other(t: Tensor, row_of: Tensor) -> Tensor:
        out = t.clone()
        out[row] = row_of
        return out

    state = PolicyState(*(t.index_copy(1, torch.tensor([row]), t[:, row : row + 1] + 1.0) for t in sequence.state))
    return sequence._replace(
        obs=other(sequence.obs, torch.randn(sequence.obs[row].shape, generator=noise) * 3),
        blueprint_indices=other(sequence.blueprint_indices, (sequence.blueprint_indices[row] + 2) % 4 - 1),
        actions=other(sequence.actions, torch.zeros_like(sequence.actions[row])),
        masks=other(sequence.masks, torch.ones_like(sequence.masks[row])),
        state=state,
    )


def check_no_leak(max_waste: float = 1.3) -> None:
    network, sequence = toy_network(), sequences()
    row_of = torch.arange(len(LENGTHS))[:, None].expand_as(sequence.valid)[sequence.valid]
    with torch.no_grad():
        before: Evaluation = network.evaluate(sequence, max_waste)
        for row in range(len(LENGTHS)):
            after: Evaluation = network.evaluate(changed(sequence, row), max_waste)
            for a, b in zip(before, after, strict=True):
                assert not torch.allclose(a[row_of == row], b[row_of == row], atol=1e-3)  # the change is felt
                assert torch.equal(a[row_of != row], b[row_of != row])


@pytest.mark.parametrize("max_waste", [1.0, 1.3, 100.0])
def test_changing_one_episode_leaves_the_others_outputs_to_the_bit(max_waste: float) -> None:
    check_no_leak(max_waste)


def test_gradients_of_one_episode_stay_in_it() -> None:
    network, sequence = toy_network(), sequences()
    sequence = sequence._replace(obs=sequence.obs.clone().requires_grad_())
    row_of = torch.arange(len(LENGTHS))[:, None].expand_as(sequence.valid)[sequence.valid]
    for row in range(len(LENGTHS)):
        (grad,) = torch.autograd.grad(network.evaluate(sequence).values[row_of == row].sum(), sequence.obs)
        assert bool((grad[row] != 0).any())
        assert not bool((grad[[r for r in range(len(LENGTHS)) if r != row]] != 0).any())


def one_long_sequence(lstm: nn.LSTM, inputs: Tensor, layout: Layout, state: PolicyState) -> Output:
    """The trap: all episodes of a batch as one sequence."""
    out, _ = lstm(inputs.unsqueeze(1), (state.h[:, :1].contiguous(), state.c[:, :1].contiguous()))
    return out.squeeze(1), state


def neighbours_states(lstm: nn.LSTM, inputs: Tensor, layout: Layout, state: PolicyState) -> Output:
    return run_lstm(lstm, inputs, layout, PolicyState(*(t.roll(1, 1) for t in state)))


def batch_statistics(lstm: nn.LSTM, inputs: Tensor, layout: Layout, state: PolicyState) -> Output:
    out, after = run_lstm(lstm, inputs, layout, state)
    return out - out.mean(0), after


@pytest.mark.parametrize("leaky", [one_long_sequence, neighbours_states, batch_statistics])
def test_a_leak_is_caught(leaky: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network_module, "run_lstm", leaky)
    with pytest.raises(AssertionError):
        check_no_leak()
