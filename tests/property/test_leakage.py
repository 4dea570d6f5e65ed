"""Property 3: the episodes of one batch do not see each other."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from actors.policy.network import Evaluation, FactoredRecurrentActorCritic
from actors.policy.sequences import SequenceBatch
from actors.policy.state import PolicyState
from learner.batching import cut, make_batch
from tests.toy import SPACES, toy_network, toy_seed, toy_wave

LENGTHS = (4, 9, 5, 4, 7)


def sequences(network: FactoredRecurrentActorCritic) -> SequenceBatch:
    seeds = [toy_seed(n, truncated=i % 2 == 0, salt=i) for i, n in enumerate(LENGTHS)]
    return cut(make_batch(toy_wave(network, seeds), SPACES), max(LENGTHS), 1).sequence


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


def check_no_leak(max_waste: float = 1.3, **options: Any) -> None:
    network = toy_network(**options)
    sequence = sequences(network)
    row_of = torch.arange(len(LENGTHS))[:, None].expand_as(sequence.valid)[sequence.valid]
    with torch.no_grad():
        before: Evaluation = network.evaluate(sequence, max_waste)
        for row in range(len(LENGTHS)):
            after: Evaluation = network.evaluate(changed(sequence, row), max_waste)
            for a, b in zip(before, after, strict=True):
                felt = not torch.allclose(a[row_of == row], b[row_of == row], atol=1e-3)
                assert felt or a.shape[1:] == (0,)
