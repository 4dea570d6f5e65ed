"""`Episode`: one complete episode of a single environment, as numpy arrays, in the form that actors ship."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

MAX_TELEMETRY = 256  # telemetry values per episode
SEED_TRAINING = "tamiyo/SeedTraining-v0"  # `env_id` of the environment in which networks grow
FLOAT, INT, BOOL = np.dtype(np.float32), np.dtype(np.int64), np.dtype(np.bool_)
PER_STEP: dict[str, tuple[np.dtype[Any], int]] = {
    "policy_version": (INT, 1),
    "obs": (FLOAT, 2),
    "blueprint_indices": (INT, 2),
    "actions": (INT, 2),
    "log_probs": (FLOAT, 2),
    "masks": (BOOL, 2),
    "values": (FLOAT, 1),
    "baseline_values": (FLOAT, 1),
    "rewards": (FLOAT, 1),
}
"""Types and ranks of the arrays with an entry per step."""
FLOAT32_MAX = float(np.finfo(np.float32).max)  # scalars are transmitted as float64 but used as float32


class EndReason(StrEnum):
    HORIZON = "horizon"
    GOVERNOR = "governor"
    ENVIRONMENT = "environment"
    CUT = "cut"


class InvalidEpisode(ValueError):
    """An episode that cannot be trained on. The message names the field and the reason."""


class RecurrentState(NamedTuple):
    """Recurrent state of the policy as numpy arrays `[n, N, width]`.

    N is 1 for an initial state, or the number of stored states. Parts that the policy's core lacks are `[0, N, 0]`.
    """

    h: NDArray[np.float32]  # [num_layers, N, hidden]
    c: NDArray[np.float32]  # [num_layers, N, hidden]
    cells: NDArray[np.float32]  # [memory_cells, N, memory_size]
    usage: NDArray[np.float32]  # [memory_cells, N, 1]

    @classmethod
    def concatenate(cls, states: Sequence[RecurrentState]) -> RecurrentState:
        """Concatenate `states` along N."""
        return cls(*(np.concatenate(parts, 1) for parts in zip(*states, strict=True)))


@dataclass(frozen=True)
class BurnIn:
    """The last B >= 1 steps before a segment, for the learner to replay. They were counted with the segments before."""

    obs: NDArray[np.float32]  # [B, D]
    blueprint_indices: NDArray[np.int64]  # [B, S]
    version: int  # oldest of the weights that chose these steps

    def __len__(self) -> int:
        return int(self.obs.shape[0])


class CarriedSteps(NamedTuple):
    """What the next segment of an episode takes over from the one before."""

    burn_in: BurnIn
    states: RecurrentState  # before steps 0, stride, 2 * stride, ... of `burn_in`
    state_stride: int


@dataclass(frozen=True)
class Episode:
    """One episode, or one segment of an episode, of T >= 1 steps, with D observation features, S slots, H heads and A
    flat mask entries."""

    env_id: str
    task_id: str
    seed: int
    spaces_hash: str  # of observation and action spaces; must equal the learner's
    generation: int
    policy_version: NDArray[np.int64]  # [T] version of the weights that chose each step
    obs: NDArray[np.float32]  # [T, D] raw, not normalized
    blueprint_indices: NDArray[np.int64]  # [T, S], -1 = empty slot
    actions: NDArray[np.int64]  # [T, H]
    log_probs: NDArray[np.float32]  # [T, H] behaviour log-prob per head, 0 where irrelevant
    masks: NDArray[np.bool_]  # [T, A] in force, given the sampled op and slot
    values: NDArray[np.float32]  # [T] denormalized: V, or Q of the chosen op
    baseline_values: NDArray[np.float32]  # [T] denormalized: V, or the expectation of Q over legal ops
    rewards: NDArray[np.float32]  # [T] raw
    end_reason: EndReason
    terminated: bool
    truncated: bool
    final_obs: NDArray[np.float32]  # [D] after the last step
    final_blueprint_indices: NDArray[np.int64]  # [S]
    final_masks: NDArray[np.bool_]  # [A] union form, after the last step
    bootstrap_value: float  # denormalized value after the last step; used only where truncated
    initial_state: RecurrentState  # before the first step, N = 1
    states: RecurrentState  # before steps 0, stride, 2 * stride, ..., counted from the first step of `burn_in`
    state_stride: int
    burn_in: BurnIn | None = None  # None at the start of an episode
    telemetry: dict[str, float] = field(default_factory=dict)
    episode_id: str = ""  # run/actor/incarnation/sequence; the outbox assigns it

    def __len__(self) -> int:
        return int(self.rewards.shape[0])

    @property
    def oldest_version(self) -> int:
        return int(self.policy_version.min())

    @property
    def undiscounted_return(self) -> float:
        return float(self.rewards.sum(dtype=np.float64))

    def carry(self, steps: int) -> CarriedSteps | None:
        """Return at least the last `steps` steps, or all there are, from a stored state on; None if `steps` is 0."""
        if steps == 0:
            return None
        obs, blueprints, version = self.obs, self.blueprint_indices, self.oldest_version
        if self.burn_in is not None:
            obs = np.concatenate([self.burn_in.obs, obs])
            blueprints = np.concatenate([self.burn_in.blueprint_indices, blueprints])
            version = version if steps <= len(self) else min(version, self.burn_in.version)
        first = max(0, len(obs) - steps) // self.state_stride
        start = first * self.state_stride
        states = RecurrentState(*(a[:, first:].copy() for a in self.states))
        burn_in = BurnIn(obs[start:].copy(), blueprints[start:].copy(), version)
        return CarriedSteps(burn_in, states, self.state_stride)

    def validate(self) -> None:
        """Raise `InvalidEpisode` on wrong types, shapes, non-finite numbers, positive log-probs or negative actions."""
        if fault := self._fault():
            raise InvalidEpisode(f"episode {self.episode_id}: {fault}")

    def _fault(self) -> str:
        """Return why this episode is invalid; empty if it is valid."""
        steps = len(self)
        if steps < 1:
            return "no steps"
        if self.terminated == self.truncated:
            return "exactly one of terminated and truncated must be true"
        for name, (dtype, rank) in PER_STEP.items():
            array = getattr(self, name)
            if array.dtype != dtype or array.ndim != rank or array.shape[0] != steps:
                return f"{name} is {array.dtype} {array.shape}, expected {dtype} of rank {rank} for {steps} steps"
        if self.actions.shape != self.log_probs.shape:
            return f"actions {self.actions.shape} and log_probs {self.log_probs.shape} differ"
        for name in ("obs", "masks", "blueprint_indices"):
            final, array = getattr(self, f"final_{name}"), getattr(self, name)
            if final.dtype != array.dtype or final.shape != array.shape[1:]:
                return f"the type or shape of final_{name} does not match {name}"
        carried = 0
        if self.burn_in is not None:
            if fault := self._burn_in_fault(self.burn_in):
                return fault
            carried = len(self.burn_in)
        stored = self.states.h.shape[1]
        if self.state_stride < 1 or stored != -(-(carried + steps) // self.state_stride):
            return f"{stored} stored states for {steps} steps after {carried} of burn-in, stride {self.state_stride}"
        for name in ("obs", "log_probs", "values", "baseline_values", "rewards", "final_obs"):
            if not np.isfinite(getattr(self, name)).all():
                return f"{name} has NaN or Inf"
        for state in (self.initial_state, self.states):
            forms = {(a.dtype, a.ndim, a.shape[1]) for a in state}
            is_formed = state.h.shape == state.c.shape and forms == {(FLOAT, 3, state.h.shape[1])}
            if not is_formed or not all(np.isfinite(a).all() for a in state):
                return "recurrent state is malformed or not finite"
        if len(self.telemetry) > MAX_TELEMETRY:
            return f"{len(self.telemetry)} telemetry values, the limit is {MAX_TELEMETRY}"
        if not all(abs(v) <= FLOAT32_MAX for v in (self.bootstrap_value, *self.telemetry.values())):
            return "bootstrap value or telemetry is not finite or exceeds float32"
        if (self.log_probs > 1e-6).any() or (self.actions < 0).any():
            return "positive log-prob or negative action"
        return ""

    def _burn_in_fault(self, burn_in: BurnIn) -> str:
        for name in ("obs", "blueprint_indices"):
            before, steps = getattr(burn_in, name), getattr(self, name)
            same_form = before.dtype == steps.dtype and before.ndim == 2 and before.shape[1:] == steps.shape[1:]
            if not same_form or not 0 < len(before) == len(burn_in):
                return f"burn_in.{name} has shape {before.shape}, expected at least one step of width {steps.shape[1]}"
        return "" if np.isfinite(burn_in.obs).all() else "burn_in.obs has NaN or Inf"
