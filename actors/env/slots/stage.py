"""Stages of a slot, and the state that a slot carries through them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


class Stage(IntEnum):
    DORMANT = 0
    GERMINATED = 1
    TRAINING = 2
    BLENDING = 3
    HOLDING = 4
    FOSSILIZED = 5
    PRUNED = 6
    EMBARGOED = 7
    RESETTING = 8


ACTIVE = frozenset({Stage.GERMINATED, Stage.TRAINING, Stage.BLENDING, Stage.HOLDING, Stage.FOSSILIZED})
BLENDED = frozenset({Stage.BLENDING, Stage.HOLDING, Stage.FOSSILIZED})
"""Stages whose seed is part of the host's function."""

EDGES: dict[Stage, frozenset[Stage]] = {
    Stage.DORMANT: frozenset({Stage.GERMINATED}),
    Stage.GERMINATED: frozenset({Stage.TRAINING, Stage.PRUNED}),
    Stage.TRAINING: frozenset({Stage.BLENDING, Stage.PRUNED}),
    Stage.BLENDING: frozenset({Stage.HOLDING, Stage.PRUNED}),
    Stage.HOLDING: frozenset({Stage.BLENDING, Stage.FOSSILIZED, Stage.PRUNED}),
    Stage.FOSSILIZED: frozenset(),
    Stage.PRUNED: frozenset({Stage.EMBARGOED}),
    Stage.EMBARGOED: frozenset({Stage.RESETTING}),
    Stage.RESETTING: frozenset({Stage.DORMANT}),
}


class IllegalEdge(RuntimeError):
    """A transition that the stage machine does not have."""


@dataclass
class Ramp:
    """A linear alpha ramp: `start` to `target` over `epochs`; `done` epochs of it have been walked."""

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
        """Change of alpha per epoch; 0 once the target is reached."""
        return (self.target - self.start) / self.epochs if self.done < self.epochs else 0.0


@dataclass
class Slot:
    """What is known of one slot. None means not measured: unknown is never healthy."""

    stage: Stage = Stage.DORMANT
    blueprint: int = -1
    blend: int = 0
    alpha_target: float = 0.0
    alpha_speed_epochs: int = 0
    ramp: Ramp | None = None  # None before the first blending
    pruning: bool = False  # alpha is on its way to 0
    epochs_in_stage: int = 0
    age_epochs: int = 0
    trained_epochs: int = 0
    contribution: float | None = None  # points of validation accuracy
    contribution_velocity: float | None = None
    epochs_since_contribution: int = 0
    interaction: float | None = None  # mean over partners, points
    shapley: float | None = None  # points; with at most three filled slots
    gradient_norm: float | None = None
    gradient_health: float | None = None
    gradient_health_prev: float | None = None

    @property
    def active(self) -> bool:
        return self.stage in ACTIVE

    @property
    def alpha(self) -> float:
        return self.ramp.alpha if self.ramp is not None else 0.0

    @property
    def at_target(self) -> bool:
        return self.ramp is not None and self.ramp.done >= self.ramp.epochs

    def move_to(self, stage: Stage) -> None:
        """Take an edge; raises `IllegalEdge`. An inactive slot forgets all that it tracked."""
        if stage not in EDGES[self.stage]:
            raise IllegalEdge(f"no edge from {self.stage.name} to {stage.name}")
        if stage not in ACTIVE:
            self.__dict__.update(Slot().__dict__)
        self.stage = stage
        self.epochs_in_stage = 0
