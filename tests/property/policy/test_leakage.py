"""The episodes of one batch do not affect each other's outputs or gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from actors.policy.cores.core import CoreOutput, Recurrent
from actors.policy.cores.sequences import BucketLayout
from actors.policy.network import Evaluation, FactoredRecurrentActorCritic
from actors.policy.state import PolicyState
from tests.support.learning.sequences import SequenceBatch, evaluate
from tests.support.learning.toy import POLICIES, toy_network, toy_seed, toy_sequence, toy_wave
from tests.support.learning.without_kernels import without_kernels

LENGTHS = (4, 9, 5, 4, 7)


def sequences(network: FactoredRecurrentActorCritic) -> tuple[SequenceBatch, Tensor]:
    """Return episodes of these lengths, and the row of each valid step."""
    seeds = [toy_seed(n, truncated=i % 2 == 0, salt=i) for i, n in enumerate(LENGTHS)]
    sequence = toy_sequence(toy_wave(network, seeds))
    return sequence, torch.arange(len(LENGTHS))[:, None].expand_as(sequence.valid)[sequence.valid]


def changed(sequence: SequenceBatch, row: int) -> SequenceBatch:
    """Replace observations, actions, masks and state of one row, but not its length."""
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


def check_no_leak(max_waste: float = 1.3, **options: Any) -> None:
    network = toy_network(**options)
    sequence, row_of = sequences(network)
    with torch.no_grad():
        before: Evaluation = evaluate(network, sequence, max_waste)
        for row in range(len(LENGTHS)):
            after: Evaluation = evaluate(network, changed(sequence, row), max_waste)
            for a, b in zip(before, after, strict=True):
                felt = not torch.allclose(a[row_of == row], b[row_of == row], atol=1e-3)
                assert felt or a.shape[1:] == (0,)
                assert torch.equal(a[row_of != row], b[row_of != row])


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
