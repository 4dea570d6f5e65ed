"""Batches and chunks as the learner reads them, for tests of one step of its work."""

from __future__ import annotations

import torch

from actors.policy.cores.sequences import SequenceBatch
from actors.policy.network import Evaluation, FactoredRecurrentActorCritic
from actors.policy.state import PolicyState
from learner.config import LearnerConfig
from learner.ppo.batching import Batch
from learner.ppo.chunks import Chunks, load, whole
from learner.ppo.targets import Targets, make_targets


def sequence_of(batch: Batch) -> SequenceBatch:
    """Whole episodes, from their own initial states."""
    state = PolicyState(*(t[:, :, 0] for t in batch.states))
    return SequenceBatch(batch.obs, batch.blueprint_indices, batch.actions, batch.masks, batch.valid, state)


def evaluate_chunks(network: FactoredRecurrentActorCritic, chunks: Chunks, max_waste: float = 1.3) -> Evaluation:
    """Every step of the batch, in the order of the chunks."""
    return network.evaluate_steps(load(chunks, whole(chunks, max_waste), network.advance))


@torch.no_grad()
def targets_of(network: FactoredRecurrentActorCritic, batch: Batch, chunks: Chunks, config: LearnerConfig) -> Targets:
    return make_targets(network, evaluate_chunks(network, chunks), batch, chunks, config)[0]
