"""Credit reaches back through time inside a chunk, and not across a cut."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from actors.policy.network import FactoredRecurrentActorCritic
from actors.policy.state import PolicyState
from learner.ppo.batch import Batch, make_batch
from tests.support.learning.batches import evaluate_batch, toy_ppo
from tests.support.learning.toy import SPACES, toy_network, toy_seed, toy_wave

STEPS = 8


def batch_of(lengths: tuple[int, ...], chunk: int | None = None) -> Batch:
    seeds = [toy_seed(n, truncated=False, salt=3 + i) for i, n in enumerate(lengths)]
    return make_batch(toy_wave(toy_network(), seeds), SPACES, chunk)


def paid_at_the_end(batch: Batch, reward: float) -> Batch:
    """No reward but one in the last step of the first episode."""
    rewards = torch.zeros_like(batch.rewards)
    rewards[batch.episode_lengths[0] - 1] = reward
    return batch._replace(rewards=rewards)


def test_a_late_reward_trains_the_trunk() -> None:
    """Value loss and entropy aside, it learns from one late reward, and from none it learns nothing."""
    norms = {}
    for reward in (0.0, 10.0):
        network = toy_network()
        with torch.no_grad():  # a critic that says 0, in the units it has after the batch
            network.value_output.weight.zero_()
            network.value_output.bias.zero_()
            network.value_normalizer.mean.zero_()
        ppo = toy_ppo(1e-3, network, value_coef=0.0, entropy_start=0.0, entropy_end=0.0)
        norms[reward] = ppo(paid_at_the_end(batch_of((STEPS, 3)), reward), 0, 0)["grad_norm_trunk"]
    assert norms[0.0] == 0.0
    assert norms[10.0] > 1e-3


def gradient_of_last_loss(chunk: int, spoil: Callable[[Batch], Batch]) -> Tensor:
    """`[STEPS]` size of d loss_T / d obs_t, the loss being that of the last step alone, for chunks of `chunk`."""
    network: FactoredRecurrentActorCritic = toy_network()
    batch = batch_of((STEPS,), chunk)
    obs = batch.obs.clone().requires_grad_()
    out = evaluate_batch(network, spoil(batch._replace(obs=obs)))
    loss = out.values[-1].square() - out.log_probs[-1].sum()
    (grad,) = torch.autograd.grad(loss, obs)
    return grad.abs().sum(-1)


def check_reach(chunk: int, spoil: Callable[[Batch], Batch] = lambda batch: batch) -> None:
    """Everything since the start of the last chunk is felt, and nothing before it."""
    grad = gradient_of_last_loss(chunk, spoil)
    start = (STEPS - 1) // chunk * chunk
    assert bool((grad[start:] > 0).all())
    assert bool((grad[:start] == 0).all())


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
