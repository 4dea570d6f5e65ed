"""Toy batches and updates, and one step of the learner's work on a batch, for tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from actors.policy.network import Evaluation, FactoredRecurrentActorCritic
from learner.config import LearnerConfig
from learner.ppo.batch import Batch, make_batch
from learner.ppo.minibatch import replay, whole_batch
from learner.ppo.optimizer import make_optimizer
from learner.ppo.targets import Targets, make_targets
from learner.ppo.update import PPOUpdate
from tests.support.learning.toy import SPACES, toy_network, toy_seed, toy_wave

LENGTHS = (5, 2, 9, 4, 7, 1, 3, 8)


def toy_batch(
    lengths: Sequence[int] = LENGTHS, chunk_length: int | None = None, burn_in: int = 0, **policy: Any
) -> Batch:
    """Episodes of these lengths, every other one truncated, that the toy network with these options played."""
    seeds = [toy_seed(n, truncated=i % 2 == 0, salt=i) for i, n in enumerate(lengths)]
    return make_batch(toy_wave(toy_network(**policy), seeds), SPACES, chunk_length, burn_in)


def toy_ppo(
    lr: float = 1e-2,
    network: FactoredRecurrentActorCritic | None = None,
    prior: FactoredRecurrentActorCritic | None = None,
    **changes: Any,
) -> PPOUpdate:
    """The update of a network, the toy one if none is given; `changes` are settings of the learner."""
    network = network or toy_network()
    fields: dict[str, Any] = {"state_stride": 1, "gamma": 0.9, "target_kl": 10.0}
    config = LearnerConfig(**(fields | changes))
    return PPOUpdate(network, make_optimizer(network, lr, 0.0), config, seed=1, prior=prior)


def evaluate_batch(network: FactoredRecurrentActorCritic, batch: Batch) -> Evaluation:
    """Every step of the batch, in its order."""
    batch = replay(batch, network.advance)
    return network.evaluate_steps(whole_batch(batch).steps(batch))


@torch.no_grad()
def targets_of(network: FactoredRecurrentActorCritic, batch: Batch, config: LearnerConfig) -> Targets:
    """The targets of a batch; this updates the network's value scale, as the update does."""
    return make_targets(network, evaluate_batch(network, batch), batch, config)[0]
