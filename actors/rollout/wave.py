"""Waves: one episode of each environment of a fleet, all acted by the same weights. No Ray, no Redis.

An episode contains data of a single environment.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from actors.policy.distribution import has_median, median_noise, next_hazard
from actors.policy.network import ActOutput
from actors.policy.state import PolicyState
from actors.rng import Purpose, stream
from actors.rollout.recorder import Recorder
from actors.types.actions import ActionMasks
from actors.types.episode import Episode
from actors.types.fleet_step import FleetStep

if TYPE_CHECKING:
    from actors.env.seed_fleet import SeedTrainingFleet  # imports Numba

NOISE_STEPS = 32  # drawn at a time


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


class PolicyNoise:
    """Uniform noise per environment, a function of its seed and step, independent of other environments and fleet size.
    If a seed occurs more than once, each occurrence has noise of its own."""

    def __init__(self, run_seed: int, seeds: Sequence[int], heads: int) -> None:
        numbers: defaultdict[int, Iterator[int]] = defaultdict(count)
        numbered = [(seed, next(numbers[seed])) for seed in seeds]  # with the number of the occurrence
        self._streams = [stream(run_seed, seed, Purpose.POLICY, number) for seed, number in numbered]
        self._heads = heads
        self._drawn = np.empty((0, len(seeds), heads))  # [steps, E, H] that remain
        self._bootstrap = np.stack(
            [stream(run_seed, seed, Purpose.BOOTSTRAP, number).random(heads) for seed, number in numbered]
        )

    def step(self) -> NDArray[np.float64]:
        """Return the next step's noise `[E, H]`."""
        if not len(self._drawn):
            self._drawn = np.stack([s.random((NOISE_STEPS, self._heads)) for s in self._streams], axis=1)
        noise: NDArray[np.float64] = self._drawn[0]
        self._drawn = self._drawn[1:]
        return noise

    def bootstrap(self) -> NDArray[np.float64]:
        """Return noise `[E, H]` for the op of a sampled bootstrap, from a stream separate from that of the steps."""
        return self._bootstrap


def run_wave(
    fleet: SeedTrainingFleet,
    policy: Policy,
    seeds: Sequence[int],
    source: Provenance,
    deterministic: bool = False,
    on_step: Callable[[], None] = lambda: None,
) -> list[Episode]:
    """Run one episode of each environment with one set of weights, and return them in the order of `seeds`.

    `on_step` is called after each step of the fleet.

    If `deterministic`, decisions are medians instead of draws (see `actors.policy.distribution`), or the most likely
    choices in spaces that have none. An environment whose episode has ended idles until the wave is over. Its idle
    steps are not recorded and do not affect other environments.
    """
    heads = len(fleet.spaces.action.heads)
    noise = PolicyNoise(source.run_seed, seeds, heads)
    medians, hazard = deterministic and has_median(fleet.spaces), np.zeros(fleet.num_envs)
    current = fleet.reset(seeds)
    state = policy.initial_state(fleet.num_envs)
    recorder = Recorder(fleet.num_envs)
    for e, (seed, task) in enumerate(zip(seeds, fleet.task_ids(), strict=True)):
        recorder.begin(e, int(seed), task, state.row(e), source.generation, source.state_stride)
    running = np.ones(fleet.num_envs, dtype=np.bool_)
    episodes: list[Episode | None] = [None] * fleet.num_envs
    while running.any():
        own_noise = median_noise(hazard, heads) if medians else noise.step()
        decision, after = policy.act(
            current.obs, current.blueprint_indices, current.masks, state, own_noise, deterministic and not medians
        )
        if medians:
            hazard = next_hazard(hazard, decision.actions, decision.log_probs)
        envs = np.flatnonzero(running)
        recorder.record(envs, current, decision, state, source.version)
        current = fleet.step(decision.actions)
        on_step()
        state = after
        recorder.pay(envs, current.rewards[envs])
        ended = running & (current.terminated | current.truncated)
        bootstrap = (
            bootstrap_values(policy, current, state, noise.bootstrap())
            if (ended & ~current.terminated).any()
            else np.zeros(fleet.num_envs)
        )
        for e in map(int, np.flatnonzero(ended)):
            episodes[e] = recorder.episode(e, current, float(bootstrap[e]), fleet.env_id, fleet.spaces.hash)
        running &= ~ended
    return [e for e in episodes if e is not None]


def bootstrap_values(
    policy: Policy, final: FleetStep, state: PolicyState, noise: NDArray[np.float64]
) -> NDArray[np.float32]:
    """Return bootstrap values `[E]` of the final observations, given the recurrent state after the last step."""
    return policy.act(final.obs, final.blueprint_indices, final.masks, state, noise)[0].bootstrap_values
