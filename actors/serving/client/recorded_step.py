"""`RecordedStep`: what an episode records of a step of a session, beside its observation."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:  # these modules import PyTorch, which clients do not need
    from actors.policy.network import ActOutput
    from actors.policy.state import PolicyState

RULE_VERSION = -1
"""Recorded version of steps that no weights of a run chose: a rule, or a network whose version is unknown."""


class RecordedStep(NamedTuple):
    """One step; all arrays have a batch dimension of 1."""

    decision: ActOutput
    before: PolicyState  # the recurrent state before the step
    version: int  # of the weights that chose the action, or `RULE_VERSION`
    generation: int
    state_stride: int  # steps between the recurrent states that an episode of these weights stores
