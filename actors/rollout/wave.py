"""Rollout: (fleet, policy) > Episodes. No Ray, no Redis.

Each environment has a recorder of its own, so that what is shipped is one environment's episode and nothing of its
neighbours'. The state that is stored is the one BEFORE the step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from actors.env.fleet import Fleet, FleetStep
from actors.env.rng import Purpose, stream
from actors.policy.network import ActOutput
from actors.policy.state import PolicyState
from actors.types.actions import ActionMasks
from actors.types.episode import EndReason, Episode, RecurrentState


class Policy(Protocol):
    """What acts: the network, or a baseline (see `FactoredRecurrentActorCritic.act` for shapes)."""

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
    """Whose weights act, and where they came from."""

    version: int
    generation: int
    state_stride: int
    run_seed: int


@dataclass
class Recorder:
    """One environment's steps, appended as they happen."""

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

    def before(self, row: int, seen: FleetStep, decision: ActOutput, state: PolicyState, version: int) -> None:
        """Record a step that is about to be taken by weights `version`; `state` is the one before it."""
        if len(self.actions) % self.state_stride == 0:
            self.states.append(state.row(row))
        self.versions.append(version)
        self.obs.append(seen.obs[row].copy())
        self.blueprints.append(seen.blueprint_indices[row].copy())
        self.actions.append(decision.actions[row].copy())
        self.log_probs.append(decision.log_probs[row].copy())
        self.masks.append(decision.masks[row].copy())
        self.values.append(float(decision.values[row]))
        self.baseline_values.append(float(decision.baseline_values[row]))

    def finish(
        self, row: int, seen: FleetStep, bootstrap_value: float, episode_id: str, env_id: str, spaces_hash: str
    ) -> Episode:
        """What was recorded, up to the step that led to `seen`; a row that did not end there is cut."""
        terminated = bool(seen.terminated[row])
        return Episode(
            episode_id=episode_id,
            env_id=env_id,
            task_id=self.task_id,
            seed=self.seed,
            spaces_hash=spaces_hash,
            generation=self.generation,
            policy_version=np.array(self.versions, dtype=np.int64),
            obs=np.stack(self.obs),
            blueprint_indices=np.stack(self.blueprints),
            actions=np.stack(self.actions),
            log_probs=np.stack(self.log_probs),
            masks=np.stack(self.masks),
            values=np.array(self.values, dtype=np.float32),
            baseline_values=np.array(self.baseline_values, dtype=np.float32),
            rewards=np.array(self.rewards, dtype=np.float32),
            end_reason=seen.end_reasons[row] or EndReason.CUT,
            terminated=terminated,
            truncated=not terminated,  # never both: terminated wins
            final_obs=seen.obs[row].copy(),
            final_blueprint_indices=seen.blueprint_indices[row].copy(),
            final_masks=seen.masks.flat()[row].copy(),
            bootstrap_value=0.0 if terminated else bootstrap_value,
            initial_state=self.initial_state,
            states=RecurrentState.concatenate(self.states),
            state_stride=self.state_stride,
            telemetry=dict(seen.telemetry[row]),
        )


class PolicyNoise:
    """Uniform noise per environment, keyed by its seed and step: neighbours and fleet size do not matter."""

    def __init__(self, run_seed: int, seeds: Sequence[int], heads: int) -> None:
        self._streams = [stream(run_seed, seed, Purpose.POLICY) for seed in seeds]
        self._heads = heads
        self._bootstrap = np.stack([stream(run_seed, seed, Purpose.BOOTSTRAP).random(heads) for seed in seeds])

    def step(self) -> NDArray[np.float64]:
        """`[E, H]`."""
        return np.stack([s.random(self._heads) for s in self._streams])

    def bootstrap(self) -> NDArray[np.float64]:
        """`[E, H]` for the op of a sampled bootstrap, beside the steps' noise, which must not notice it."""
        return self._bootstrap


def run_wave(
    fleet: Fleet,
    policy: Policy,
    seeds: Sequence[int],
    source: Provenance,
    name_episode: Callable[[], str],
    deterministic: bool = False,
    on_step: Callable[[], None] = lambda: None,
) -> list[Episode]:
    """One episode of each environment, acted by one set of weights; `on_step` is called after each step of the fleet.

    An environment that ends early idles until the wave is over; nothing of it is recorded meanwhile, and its idle
    rows move no other's state.
    """
    noise = PolicyNoise(source.run_seed, seeds, len(fleet.spaces.action.heads))
    seen = fleet.reset(seeds)
    state = policy.initial_state(fleet.num_envs)
    recorders = [
        Recorder(int(seed), task, state.row(e), source.generation, source.state_stride)
        for e, (seed, task) in enumerate(zip(seeds, fleet.task_ids(), strict=True))
    ]
    running = np.ones(fleet.num_envs, dtype=np.bool_)
    episodes: list[Episode | None] = [None] * fleet.num_envs
    while running.any():
        decision, after = policy.act(seen.obs, seen.blueprint_indices, seen.masks, state, noise.step(), deterministic)
        for e in map(int, np.flatnonzero(running)):
            recorders[e].before(e, seen, decision, state, source.version)
        seen = fleet.step(decision.actions)
        on_step()
        state = after
        for e in map(int, np.flatnonzero(running)):
            recorders[e].rewards.append(float(seen.rewards[e]))
        ended = running & (seen.terminated | seen.truncated)
        bootstrap = (
            bootstrap_values(policy, seen, state, noise.bootstrap())
            if (ended & ~seen.terminated).any()
            else np.zeros(fleet.num_envs)
        )
        for e in map(int, np.flatnonzero(ended)):
            episodes[e] = recorders[e].finish(
                e, seen, float(bootstrap[e]), name_episode(), fleet.env_id, fleet.spaces.hash
            )
        running &= ~ended
    return [e for e in episodes if e is not None]


def bootstrap_values(
    policy: Policy, seen: FleetStep, state: PolicyState, noise: NDArray[np.float64]
) -> NDArray[np.float32]:
    """`[E]` values of the states after the last step: the final observation, and the state carried up to it."""
    return policy.act(seen.obs, seen.blueprint_indices, seen.masks, state, noise)[0].bootstrap_values
