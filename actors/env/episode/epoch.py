"""One epoch of an episode as data: what is planned, what was measured, and what that means for the policy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from actors.slots.contributions import EvalResult, Subset, Validation
from actors.types.episode import EndReason


class HostEpoch(NamedTuple):
    """What a host learns from in one epoch."""

    rows: NDArray[np.int64]  # [inner_steps, batch_size], indices into the training split
    lr: float


TwinEpoch = tuple[float, Validation]
"""What an epoch of a host without seeds measured: the mean training loss, nats, and the validation after it."""


class NewSeed(NamedTuple):
    """A seed to germinate."""

    slot: int
    blueprint: int
    blend: int
    rng: np.random.Generator  # draws the seed's parameters


class EpochPlan(NamedTuple):
    """What the networks do in one epoch, in this order: prune, germinate, train, evaluate."""

    pruned: tuple[int, ...]  # slots
    germinated: NewSeed | None
    blended: Mapping[int, float]  # slot -> alpha: seeds that are part of the host's function
    training: Mapping[int, float]  # slot -> strength at which seeds learn that do not affect the host
    alphas: Mapping[int, float]
    """Slot -> alpha of all seeds that take part, at which they are evaluated. Here and in `blended`, columns are in the
    order in which they are mixed."""
    data: HostEpoch  # of seeds too
    subsets: tuple[Subset, ...]  # sets of slots to evaluate with only their seeds on; first the blended ones


class EpochResult(NamedTuple):
    """What training and evaluating one epoch measured."""

    train_loss: float  # mean over minibatches, nats
    gradient_norms: Mapping[int, list[float]]  # slot -> norm of each minibatch, before clipping
    scores: Mapping[int, float]
    """Slots without a seed -> norm of the loss's gradient with respect to the output of a seed there that has no effect
    yet, divided by the norm of the host's gradient, both of the epoch's last minibatch. For a column that is the
    gradient of the logits."""
    validation: Validation  # of the host with its blended seeds
    ablations: Mapping[Subset, EvalResult]
    """Of each planned subset, on the rows that the policy sees; comparable with each other, see `ablate`."""


class EpochOutcome(NamedTuple):
    """What one epoch means for the policy: reward and end of the episode."""

    reward: float  # points
    terminated: bool
    truncated: bool
    pruned: tuple[int, ...]  # slots whose seeds were removed at the end of this epoch
    end_reason: EndReason | None
    telemetry: dict[str, float]  # empty until the end; `objective` is J, whatever the reward mode
