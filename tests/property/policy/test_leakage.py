"""The episodes of one batch do not affect each other's outputs or gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from actors.policy.cores.core import CoreOutput, Recurrent
from actors.policy.cores.sequences import BucketLayout, SequenceLayout, Steps
from actors.policy.state import PolicyState
from learner.ppo.minibatch import whole_batch
from tests.support.learning.batches import toy_batch
from tests.support.learning.toy import POLICIES, toy_network
from tests.support.learning.without_kernels import without_kernels

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
