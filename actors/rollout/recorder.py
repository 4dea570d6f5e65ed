"""`Recorder`: the steps of environments while their episodes run. No Ray, no Redis."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actors.policy.network import ActOutput
from actors.policy.state import PolicyState
from actors.types.episode import PER_STEP, CarriedSteps, EndReason, Episode, RecurrentState
from actors.types.fleet_step import FleetStep

CAPACITY = 16  # steps that a recorder holds at first
Indices = int | NDArray[np.int64]


@dataclass
class _Beginning:
    """What an episode or segment started from, and the recurrent states stored so far."""

    seed: int
    task_id: str
    initial_state: RecurrentState
    generation: int
    carried: CarriedSteps | None
    states: list[RecurrentState] = field(default_factory=list)


class Recorder:
    """Records E environments, each its current episode or segment. `begin` one, `record` each decision, `pay` its
    reward, take the `episode` at its end and `free` the environment for the next.

    Steps lie in arrays `[E, T, ...]`, T growing when an episode needs it, so that a step of all environments is one
    copy for each field. Recurrent states are those *before* a step.
    """

    def __init__(self, num_envs: int = 1) -> None:
        self.steps = np.zeros(num_envs, dtype=np.int64)  # [E] recorded
        self._beginnings: list[_Beginning | None] = [None] * num_envs
        self._carried = np.zeros(num_envs, dtype=np.int64)  # [E] steps before a segment that it carries
        self._strides = np.ones(num_envs, dtype=np.int64)  # [E]
        self._arrays: dict[str, NDArray[Any]] = {}  # [E, T, ...], named as the fields of an episode

    def began(self, env: int) -> bool:
        """Whether an episode of `env` is being recorded."""
        return self._beginnings[env] is not None

    def begin(
        self,
        env: int,
        seed: int,
        task_id: str,
        initial_state: RecurrentState,
        generation: int,
        state_stride: int,
        carried: CarriedSteps | None = None,
    ) -> None:
        """Begin an episode, or a segment that carries steps of the one before it."""
        if carried is not None and carried.state_stride != state_stride:
            carried = None  # a learner with other settings has taken over
        self._beginnings[env] = _Beginning(
            seed, task_id, initial_state, generation, carried, [] if carried is None else [carried.states]
        )
        self._carried[env] = 0 if carried is None else len(carried.burn_in)
        self._strides[env], self.steps[env] = state_stride, 0

    def record(
        self,
        envs: Indices,
        current: FleetStep,
        decision: ActOutput,
        state: PolicyState,
        version: int,
        sources: Indices | None = None,
    ) -> None:
        """Record decisions of weights `version` at the observations `current`, for one environment or several; `state`
        is the state before them. Their rewards are 0 until they are paid. `sources` are the rows of the arguments, if
        these are others."""
        sources = envs if sources is None else sources
        at = self.steps[envs]
        due = (self._carried[envs] + at) % self._strides[envs] == 0
        if due.any():
            for env, source, stored in zip(*map(np.atleast_1d, (envs, sources, due)), strict=True):
                if stored:
                    self._begun(env).states.append(state.row(int(source)))
        if not self._arrays or at.max(initial=0) >= self._arrays["rewards"].shape[1]:
            self._grow(current, decision)
        arrays = self._arrays
        arrays["policy_version"][envs, at] = version
        arrays["obs"][envs, at] = current.obs[sources]
        arrays["blueprint_indices"][envs, at] = current.blueprint_indices[sources]
        arrays["actions"][envs, at] = decision.actions[sources]
        arrays["log_probs"][envs, at] = decision.log_probs[sources]
        arrays["masks"][envs, at] = decision.masks[sources]
        arrays["values"][envs, at] = decision.values[sources]
        arrays["baseline_values"][envs, at] = decision.baseline_values[sources]
        arrays["rewards"][envs, at] = 0.0
        self.steps[envs] += 1

    def pay(self, envs: Indices, rewards: float | NDArray[np.float32]) -> None:
        """Set the rewards of the last steps of `envs`."""
        self._arrays["rewards"][envs, self.steps[envs] - 1] = rewards

    def drop_last(self, env: int = 0) -> None:
        """Remove the last step, whose reward never became known."""
        self.steps[env] -= 1
        if (self._carried[env] + self.steps[env]) % self._strides[env] == 0:
            self._begun(env).states.pop()

    def free(self, env: int) -> None:
        """Forget the episode of `env`."""
        self._beginnings[env] = None

    def recorded(self, name: str, env: int = 0) -> NDArray[Any]:
        """Return a view of what has been recorded of the field `name` of an episode."""
        return self._arrays[name][env, : self.steps[env]]

    def episode(
        self,
        env: int,
        final: FleetStep,
        bootstrap_value: float,
        env_id: str,
        spaces_hash: str,
        source: int | None = None,
    ) -> Episode:
        """Return the episode so far, without an id, given that its last step led to row `source` of `final`, which is
        `env` unless given. If it did not end there, it is marked as cut."""
        source = env if source is None else source
        begun, terminated = self._begun(env), bool(final.terminated[source])
        steps: dict[str, Any] = {name: self.recorded(name, env).copy() for name in PER_STEP}
        return Episode(
            env_id=env_id,
            task_id=begun.task_id,
            seed=begun.seed,
            spaces_hash=spaces_hash,
            generation=begun.generation,
            **steps,
            end_reason=final.end_reasons[source] or EndReason.CUT,
            terminated=terminated,
            truncated=not terminated,  # not both: termination takes precedence
            final_obs=final.obs[source].copy(),
            final_blueprint_indices=final.blueprint_indices[source].copy(),
            final_masks=final.masks.flat()[source].copy(),
            bootstrap_value=0.0 if terminated else bootstrap_value,
            initial_state=begun.initial_state,
            states=RecurrentState.concatenate(begun.states),
            state_stride=int(self._strides[env]),
            burn_in=None if begun.carried is None else begun.carried.burn_in,
            telemetry=dict(final.telemetry[source]),
        )

    def _begun(self, env: int) -> _Beginning:
        begun = self._beginnings[env]
        assert begun is not None, f"environment {env} has not begun"
        return begun

    def _grow(self, current: FleetStep, decision: ActOutput) -> None:
        """Double the capacity, or make the arrays for steps of this form."""
        old, num_envs = self._arrays, len(self.steps)
        if not old:
            examples: tuple[NDArray[Any], ...] = (
                np.zeros(1, np.int64), current.obs, current.blueprint_indices, decision.actions, decision.log_probs,
                decision.masks, np.zeros(1, np.float32), np.zeros(1, np.float32), np.zeros(1, np.float32),
            )  # fmt: skip
            old = {n: np.empty((num_envs, 0, *a.shape[1:]), a.dtype) for n, a in zip(PER_STEP, examples, strict=True)}
        more = max(CAPACITY, old["rewards"].shape[1])
        self._arrays = {
            name: np.concatenate([a, np.empty((num_envs, more, *a.shape[2:]), a.dtype)], axis=1)
            for name, a in old.items()
        }


@dataclass
class Segments:
    """The complete segments of one episode."""

    number: int = 0
    steps: int = 0
    total_reward: float = 0.0
    carried: CarriedSteps | None = None  # by the next one, from the last

    def add(self, segment: Episode, burn_in: int) -> None:
        """Write the segment's number, and the length and return of the episode up to here, into its telemetry, and keep
        its last `burn_in` steps for the next one."""
        self.steps += len(segment)
        self.total_reward += segment.undiscounted_return
        segment.telemetry.update(segment=self.number, episode_steps=self.steps, episode_return=self.total_reward)
        self.number, self.carried = self.number + 1, segment.carry(burn_in)
