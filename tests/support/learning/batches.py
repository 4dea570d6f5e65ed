"""One step of the learner's work on a batch, for tests."""

from __future__ import annotations

import torch

from actors.policy.network import Evaluation, FactoredRecurrentActorCritic
from learner.config import LearnerConfig
from learner.ppo.batch import Batch
from learner.ppo.minibatch import whole_batch
from learner.ppo.targets import Targets, make_targets


def evaluate_batch(network: FactoredRecurrentActorCritic, batch: Batch, max_waste: float = 1.3) -> Evaluation:
    """Every step of the batch, in its order."""
    return network.evaluate_steps(whole_batch(batch, max_waste).load(batch, network.advance))


@torch.no_grad()
def targets_of(network: FactoredRecurrentActorCritic, batch: Batch, config: LearnerConfig) -> Targets:
    return make_targets(network, evaluate_batch(network, batch), batch, config)[0]
