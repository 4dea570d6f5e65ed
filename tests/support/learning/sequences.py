"""Padded sequences, as tests write them down, and what the network says of their steps."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from actors.policy.cores.sequences import SequenceLayout, Steps
from actors.policy.network import Evaluation, FactoredRecurrentActorCritic
from actors.policy.state import PolicyState


class SequenceBatch(NamedTuple):
    """R rows of at most L steps, right-padded."""

    obs: Tensor  # [R, L, D]
    blueprint_indices: Tensor  # [R, L, S]
    actions: Tensor  # [R, L, H]
    masks: Tensor  # [R, L, A] in force
    valid: Tensor  # [R, L] bool, True on a prefix of each row
    state: PolicyState  # before each row's first step, [n, R, width]


def flatten(sequence: SequenceBatch, max_waste: float = 1.3) -> Steps:
    """The valid steps, row by row."""
    valid = sequence.valid
    return Steps(
        sequence.obs[valid],
        sequence.blueprint_indices[valid],
        sequence.actions[valid],
        sequence.masks[valid],
        sequence.state,
        SequenceLayout(valid.sum(1).tolist(), max_waste, valid.device),
    )


def evaluate(network: FactoredRecurrentActorCritic, sequence: SequenceBatch, max_waste: float = 1.3) -> Evaluation:
    """Log-probs, entropies and values of the given actions at every valid step."""
    return network.evaluate_steps(flatten(sequence, max_waste))
