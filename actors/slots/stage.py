"""`Stage`, and `Slot`, the state of one slot."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


class Stage(IntEnum):
    """What happens in a slot. The observation and recorded timelines use these numbers and names."""

    DORMANT = 0  # empty
    GERMINATED = 1  # has a seed, which does not train yet
    TRAINING = 2  # the seed learns without affecting the host
    BLENDING = 3  # the seed is part of the host; alpha moves to its target
    HOLDING = 4  # alpha is at its target
    FOSSILIZED = 5  # kept, unless a column replaces the model that it is part of
    PRUNED = 6  # the seed was removed
    EMBARGOED = 7  # empty for some epochs
    RESETTING = 8  # empty for one more epoch, then dormant


ACTIVE = frozenset({Stage.GERMINATED, Stage.TRAINING, Stage.BLENDING, Stage.HOLDING, Stage.FOSSILIZED})
BLENDED = frozenset({Stage.BLENDING, Stage.HOLDING, Stage.FOSSILIZED})
"""Stages whose seed is part of the host's function."""


@dataclass
class Ramp:
    """A linear change of alpha from `start` to `target` over `epochs`, of which `done` have passed."""

    start: float = 0.0
    target: float = 0.0
    epochs: int = 0
    done: int = 0

    @property
    def alpha(self) -> float:
        if self.done >= self.epochs:
            return self.target
        return self.start + (self.target - self.start) * self.done / self.epochs

    @property
    def velocity(self) -> float:
        """The change of alpha per epoch; 0 at the target."""
        return (self.target - self.start) / self.epochs if self.done < self.epochs else 0.0


@dataclass
class Slot:
    """The state of one slot and what was measured of its seed. None means that a value was not measured."""

    stage: Stage = Stage.DORMANT
    blueprint: int = -1
    blend: int = 0
    alpha_target: float = 0.0
    alpha_speed_epochs: int = 0
    ramp: Ramp | None = None  # None before BLENDING
    pruning: bool = False  # alpha is falling to 0, then the seed is removed
    joined: int = 0  # the how manieth seed of the model to join it, of those that are there; 0 before BLENDING
    learns_alone: bool = False  # a column that learns the task itself, rather than what the model leaves
    epochs_in_stage: int = 0
    age_epochs: int = 0
    trained_epochs: int = 0  # in TRAINING
    contribution: float | None = None  # leave-one-out, points of validation accuracy
    contribution_velocity: float | None = None  # change since the measurement before, points
    epochs_since_contribution: int = 0
    interaction: float | None = None  # mean over the other seeds, points; None with more than three filled slots
    gradient_norm: float | None = None  # mean over the minibatches of the last epoch
    gradient_health: float | None = None  # fraction of its minibatches with a healthy norm
    gradient_health_prev: float | None = None  # the same, one epoch earlier
    score: float | None = None  # of an empty slot, see `EpochResult.scores`

    @property
    def active(self) -> bool:
        """Whether the slot holds a seed."""
        return self.stage in ACTIVE

    @property
    def alpha(self) -> float:
        return self.ramp.alpha if self.ramp is not None else 0.0

    @property
    def at_target(self) -> bool:
        return self.ramp is not None and self.ramp.done >= self.ramp.epochs

    def move_to(self, stage: Stage) -> None:
        """Change the stage, and clear a slot that loses its seed."""
        if stage not in ACTIVE:
            self.__dict__.update(Slot().__dict__)
        self.stage = stage
        self.epochs_in_stage = 0
