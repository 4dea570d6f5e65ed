"""A new run's network has no opinion about the scale of rewards."""

from __future__ import annotations

import torch
from torch import Tensor

from learner.network import first_network
from learner.ppo.batch import make_batch
from tests.support.learning.batches import toy_ppo
from tests.support.learning.toy import SPACES, toy_network, toy_seed, toy_wave

TINY = 2.0**-12  # a power of two, so that only the additions of constants could change a bit
LENGTHS = (5, 2, 9, 4, 7, 1, 3, 8)


def after_updates(scale: float, updates: int) -> dict[str, Tensor]:
    """The weights after some updates on episodes, half of them truncated, whose rewards are multiplied by `scale`."""
    network = first_network(toy_network().config, SPACES, 0, None, None)
    learn = toy_ppo(network=network, gamma=0.95)
    for update in range(updates):
        seeds = [toy_seed(n, truncated=i % 2 == 0, salt=i) for i, n in enumerate(LENGTHS)]
        batch = make_batch(toy_wave(network, seeds), SPACES)
        learn(batch._replace(rewards=batch.rewards * scale), update, update)
    return {name: p.detach().clone() for name, p in network.named_parameters()}


def test_learning_does_not_depend_on_the_scale_of_rewards() -> None:
    usual, tiny = after_updates(1.0, 3), after_updates(TINY, 3)
    first = after_updates(1.0, 0)
    assert not all(torch.equal(usual[name], first[name]) for name in first)
    for name in usual:
        torch.testing.assert_close(tiny[name], usual[name], rtol=1e-3, atol=1e-4, msg=name)
