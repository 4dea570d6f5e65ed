"""Waves: one episode of each environment of a fleet, all acted by the same weights. No Ray, no Redis.

Each environment has its own recorder, so that an episode contains data of a single environment. The recurrent states
that are stored are those *before* a step.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from actors.env.fleet import Fleet, FleetStep
from actors.env.rng import Purpose, stream
from actors.policy.median import has_median, median_noise, next_hazard
from actors.policy.network import ActOutput
from actors.policy.state import PolicyState
from actors.types.actions import ActionMasks
from actors.types.episode import CarriedSteps, EndReason, Episode, RecurrentState

T = TypeVar("T", bound=np.generic)


class Policy(Protocol):
    """A network or a baseline; see `FactoredRecurrentActorCritic.act` for the arguments of `act`."""

    def initial_state(self, batch: int) -> PolicyState: ...

    def act(
        self,
        obs: NDArray[np.float32],
        blueprint_indices: NDArray[np.int64],
        masks: ActionMasks,
        state: PolicyState,
        noise: NDArray[np.float64],
        deterministic: bool = False,
    ) -> tuple[ActOutput, PolicyState]: ...


@dataclass(frozen=True)
class Provenance:
    """Version and origin of the acting weights, which episodes record."""

    version: int
    generation: int
    state_stride: int
    run_seed: int
    burn_in: int = 0  # steps before a segment that it carries


@dataclass
class Recorder:
    """Records the steps of one environment's episode or segment: `record` a decision, append its reward to `rewards`,
    and `finish` it at its end. `carried` are the steps before a segment."""

    seed: int
    task_id: str
    initial_state: RecurrentState
    generation: int
    state_stride: int
    versions: list[int] = field(default_factory=list)
    obs: list[NDArray[np.float32]] = field(default_factory=list)
    blueprints: list[NDArray[np.int64]] = field(default_factory=list)
    actions: list[NDArray[np.int64]] = field(default_factory=list)
    log_probs: list[NDArray[np.float32]] = field(default_factory=list)
    masks: list[NDArray[np.bool_]] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    baseline_values: list[float] = field(default_factory=list)
    rewards: list[float] = field(default_factory=list)
    states: list[RecurrentState] = field(default_factory=list)
    carried: CarriedSteps | None = None

    def __post_init__(self) -> None:
        if self.carried is not None and self.carried.state_stride != self.state_stride:
            self.carried = None  # a learner with other settings has taken over
        if self.carried is not None:
            self.states.append(self.carried.states)

    @property
    def _stores_state(self) -> bool:
        """Whether the state before the next step is stored."""
        before = 0 if self.carried is None else len(self.carried.burn_in)
        return (before + len(self.actions)) % self.state_stride == 0

    def record(self, row: int, current: FleetStep, decision: ActOutput, state: PolicyState, version: int) -> None:
        """Record a decision of weights `version` at the observations `current`; `state` is the state before it."""
        if self._stores_state:
            self.states.append(state.row(row))
        self.versions.append(version)
        self.obs.append(current.obs[row].copy())
        self.blueprints.append(current.blueprint_indices[row].copy())
        self.actions.append(decision.actions[row].copy())
        self.log_probs.append(decision.log_probs[row].copy())
        self.masks.append(decision.masks[row].copy())
        self.values.append(float(decision.values[row]))
        self.baseline_values.append(float(decision.baseline_values[row]))

    def drop_last(self) -> None:
        """Remove the last step, whose reward never became known."""
        for recorded in (
            self.versions, self.obs, self.blueprints, self.actions, self.log_probs, self.masks, self.values,
            self.baseline_values,
        ):  # fmt: skip
            recorded.pop()
        if self._stores_state:
            self.states.pop()

    def finish(self, row: int, final: FleetStep, bootstrap_value: float, env_id: str, spaces_hash: str) -> Episode:
        """Return the recorded episode, whose last step led to `final`, without an id. If it did not end there, it is
        marked as cut."""
        terminated = bool(final.terminated[row])
        return Episode(
            env_id=env_id,
            task_id=self.task_id,
            seed=self.seed,
            spaces_hash=spaces_hash,
            generation=self.generation,
            policy_version=np.array(self.versions, dtype=np.int64),
            obs=_stack(self.obs),
            blueprint_indices=_stack(self.blueprints),
            actions=_stack(self.actions),
            log_probs=_stack(self.log_probs),
            masks=_stack(self.masks),
            values=np.array(self.values, dtype=np.float32),
            baseline_values=np.array(self.baseline_values, dtype=np.float32),
            rewards=np.array(self.rewards, dtype=np.float32),
            end_reason=final.end_reasons[row] or EndReason.CUT,
            terminated=terminated,
            truncated=not terminated,  # not both: termination takes precedence
            final_obs=final.obs[row].copy(),
            final_blueprint_indices=final.blueprint_indices[row].copy(),
            final_masks=final.masks.flat()[row].copy(),
            bootstrap_value=0.0 if terminated else bootstrap_value,
            initial_state=self.initial_state,
            states=RecurrentState.concatenate(self.states),
            state_stride=self.state_stride,
            burn_in=None if self.carried is None else self.carried.burn_in,
            telemetry=dict(final.telemetry[row]),
        )


def _stack(steps: list[NDArray[T]]) -> NDArray[T]:
    """Stack T arrays `[width]` to `[T, width]`, in a third of the time of `numpy.stack`."""
    return np.concatenate(steps).reshape(len(steps), len(steps[0]))


class PolicyNoise:
    """Uniform noise per environment, a function of its seed and step, independent of other rows and fleet size. If a
    seed occurs more than once, each occurrence has noise of its own."""

    def __init__(self, run_seed: int, seeds: Sequence[int], heads: int) -> None:
        numbers: defaultdict[int, Iterator[int]] = defaultdict(count)
        rows = [(seed, next(numbers[seed])) for seed in seeds]  # with the number of the occurrence
        self._streams = [stream(run_seed, seed, Purpose.POLICY, number) for seed, number in rows]
        self._heads = heads
        self._bootstrap = np.stack(
            [stream(run_seed, seed, Purpose.BOOTSTRAP, number).random(heads) for seed, number in rows]
        )

    def step(self) -> NDArray[np.float64]:
        """Return the next step's noise `[E, H]`."""
        return np.stack([s.random(self._heads) for s in self._streams])

    def bootstrap(self) -> NDArray[np.float64]:
        """Return noise `[E, H]` for the op of a sampled bootstrap, from a stream separate from that of the steps."""
        return self._bootstrap


def run_wave(
    fleet: Fleet,
    policy: Policy,
    seeds: Sequence[int],
    source: Provenance,
    deterministic: bool = False,
    on_step: Callable[[], None] = lambda: None,
) -> list[Episode]:
    """Run one episode of each environment with one set of weights, and return them in the order of `seeds`.

    `on_step` is called after each step of the fleet.

    If `deterministic`, decisions are medians instead of draws (`actors.policy.median`), or the most likely choices in
    spaces that have none. An environment whose episode has ended idles until the wave is over. Its idle steps are not
    recorded and do not affect other rows.
    """
    heads = len(fleet.spaces.action.heads)
    noise = PolicyNoise(source.run_seed, seeds, heads)
    medians, hazard = deterministic and has_median(fleet.spaces), np.zeros(fleet.num_envs)
    current = fleet.reset(seeds)
    state = policy.initial_state(fleet.num_envs)
    recorders = [
        Recorder(int(seed), task, state.row(e), source.generation, source.state_stride)
        for e, (seed, task) in enumerate(zip(seeds, fleet.task_ids(), strict=True))
    ]
    running = np.ones(fleet.num_envs, dtype=np.bool_)
    episodes: list[Episode | None] = [None] * fleet.num_envs
    while running.any():
        own_noise = median_noise(hazard, heads) if medians else noise.step()
        decision, after = policy.act(
            current.obs, current.blueprint_indices, current.masks, state, own_noise, deterministic and not medians
        )
        if medians:
            hazard = next_hazard(hazard, decision.actions, decision.log_probs)
        for e in map(int, np.flatnonzero(running)):
            recorders[e].record(e, current, decision, state, source.version)
        current = fleet.step(decision.actions)
        on_step()
        state = after
        for e in map(int, np.flatnonzero(running)):
            recorders[e].rewards.append(float(current.rewards[e]))
        ended = running & (current.terminated | current.truncated)
        bootstrap = (
            bootstrap_values(policy, current, state, noise.bootstrap())
            if (ended & ~current.terminated).any()
            else np.zeros(fleet.num_envs)
        )
        for e in map(int, np.flatnonzero(ended)):
            episodes[e] = recorders[e].finish(e, current, float(bootstrap[e]), fleet.env_id, fleet.spaces.hash)
        running &= ~ended
    return [e for e in episodes if e is not None]


def bootstrap_values(
    policy: Policy, final: FleetStep, state: PolicyState, noise: NDArray[np.float64]
) -> NDArray[np.float32]:
    """Return bootstrap values `[E]` of the final observations, given the recurrent state after the last step."""
    return policy.act(final.obs, final.blueprint_indices, final.masks, state, noise)[0].bootstrap_values
