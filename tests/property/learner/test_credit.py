"""Credit reaches back through time inside a chunk, and not across a cut."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from actors.policy.state import PolicyState
from learner.ppo.batch import Batch, make_batch
from tests.support.learning.batches import evaluate_batch, toy_ppo
from tests.support.learning.toy import SPACES, toy_network, toy_seed, toy_wave

STEPS = 8


def batch_of(lengths: tuple[int, ...], chunk: int | None = None) -> Batch:
    seeds = [toy_seed(n, truncated=False, salt=3 + i) for i, n in enumerate(lengths)]
    return make_batch(toy_wave(toy_network(), seeds), SPACES, chunk)


def test_a_late_reward_trains_the_trunk() -> None:
    """Value loss and entropy aside, it learns from one late reward, and from none it learns nothing."""
    norms = {}
    for reward in (0.0, 10.0):
        network, batch = toy_network(), batch_of((STEPS, 3))
        with torch.no_grad():  # a critic that says 0, in the units it has after the batch
            network.value_output.weight.zero_()
            network.value_output.bias.zero_()
            network.value_normalizer.mean.zero_()
        paid = torch.zeros_like(batch.rewards)
        paid[STEPS - 1] = reward
        ppo = toy_ppo(1e-3, network, value_coef=0.0, entropy_start=0.0, entropy_end=0.0)
        norms[reward] = ppo(batch._replace(rewards=paid), 0, 0)["grad_norm_trunk"]
    assert norms[0.0] == 0.0
    assert norms[10.0] > 1e-3


def check_reach(chunk: int, spoil: Callable[[Batch], Batch] = lambda batch: batch) -> None:
    """The loss of the last step feels every observation since the start of its chunk, and none before it."""
    batch = batch_of((STEPS,), chunk)
    obs = batch.obs.clone().requires_grad_()
    out = evaluate_batch(toy_network(), spoil(batch._replace(obs=obs)))
    (grad,) = torch.autograd.grad(out.values[-1].square() - out.log_probs[-1].sum(), obs)
    start = (STEPS - 1) // chunk * chunk
    assert (grad != 0).any(-1).tolist() == [t >= start for t in range(STEPS)]


@pytest.mark.parametrize("chunk", [1, 3, STEPS])
def test_the_last_loss_reaches_the_start_of_its_chunk_and_stops_there(chunk: int) -> None:
    check_reach(chunk)


def joined_across(batch: Batch) -> Batch:
    """A state that is not detached: the gradient runs on into the chunk before."""
    first = batch.obs[0].mean()
    return batch._replace(state=PolicyState(*(t + 0.1 * first for t in batch.state)))


def test_a_gradient_that_runs_on_is_caught() -> None:
    with pytest.raises(AssertionError):
        check_reach(3, joined_across)
