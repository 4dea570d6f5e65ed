"""`EpisodeStream`: episodes from environments that reset independently of each other.

Each environment has its own recurrent state and noise. Weights may change between any two steps, and every step records
their version. Episodes longer than `max_segment_steps` are shipped as numbered segments: a segment is truncated and
bootstrapped with the value of its final state, and the next segment starts from the recurrent state there and carries
the steps before it that the learner replays.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch

from actors.errors import UserError
from actors.gym.fleet import Flags, GymFleet
from actors.rollout.recorder import Recorder, Segments
from actors.rollout.wave import Policy, PolicyNoise, Provenance, bootstrap_values
from actors.types.episode import Episode

MAX_REJECTED = 100  # episodes in a row


class _Ongoing(NamedTuple):
    """The current episode of one environment."""

    seed: int
    noise: PolicyNoise
    segments: Segments


class EpisodeStream:
    """Runs a `GymFleet`. Each call of `advance` continues where the last one stopped and may use other weights.

    Invalid episodes are dropped and counted in `rejected`; segments of them that are complete by then remain.
    `on_step` is called after each step of the fleet.
    """

    def __init__(
        self,
        fleet: GymFleet,
        policy: Policy,
        run_seed: int,
        max_segment_steps: int,
        on_step: Callable[[], None] = lambda: None,
    ) -> None:
        self.fleet, self.run_seed, self.max_segment_steps = fleet, run_seed, max_segment_steps
        self._on_step = on_step
        self.rejected = 0  # episodes
        self._rejected_in_a_row = 0
        self._ongoing: dict[int, _Ongoing] = {}  # by environment; none between two episodes
        self._recorder = Recorder(fleet.num_envs)  # of current segments, which begin with their first step
        self._state = policy.initial_state(fleet.num_envs)
        self._last = fleet.start()
        self._begin(self._last.began)

    def advance(self, policy: Policy, source: Provenance, deterministic: bool = False) -> list[Episode]:
        """Step every environment once; return the episodes and segments that this completed.

        Raises `UserError` if the environments give nothing but invalid episodes.
        """
        fleet, running, state, recorder = self.fleet, dict(self._ongoing), self._state, self._recorder
        noise = np.zeros((fleet.num_envs, len(fleet.spaces.action.heads)))
        for e, ongoing in running.items():
            noise[e] = ongoing.noise.step()[0]
        current = self._last.current
        decision, after = policy.act(current.obs, current.blueprint_indices, current.masks, state, noise, deterministic)
        for e, ongoing in running.items():
            if not recorder.began(e):
                carried = ongoing.segments.carried
                recorder.begin(
                    e, ongoing.seed, fleet.env_id, state.row(e), source.generation, source.state_stride, carried
                )
        acted = np.array(list(running), dtype=np.int64)
        recorder.record(acted, current, decision, state, source.version)
        self._last = fleet.step(decision.actions)
        self._on_step()
        outcome = self._last.outcome
        recorder.pay(acted, outcome.rewards[acted])
        ended = outcome.terminated | outcome.truncated
        complete: list[int] = []
        for e in map(int, acted[ended[acted] | (recorder.steps[acted] == self.max_segment_steps)]):
            if self._last.invalid[e]:
                self._reject(e)
            else:
                complete.append(e)
            if ended[e]:
                del self._ongoing[e]
        bootstrap = np.zeros(fleet.num_envs, dtype=np.float32)
        if any(not outcome.terminated[e] for e in complete):
            for e in complete:
                noise[e] = running[e].noise.bootstrap()[0]
            bootstrap = bootstrap_values(policy, outcome, after, noise)
        episodes: list[Episode] = []
        for e in complete:
            episode = recorder.episode(e, outcome, float(bootstrap[e]), fleet.env_id, fleet.spaces.hash)
            recorder.free(e)
            running[e].segments.add(episode, source.burn_in)
            episodes.append(episode)
        if episodes:
            self._rejected_in_a_row = 0
        self._state = after.reset_rows(torch.from_numpy(self._last.began).to(after.h.device))
        self._begin(self._last.began)
        return episodes

    def _reject(self, e: int) -> None:
        self._recorder.free(e)
        self._ongoing[e].segments.carried = None
        self.rejected += 1
        self._rejected_in_a_row += 1
        if self._rejected_in_a_row >= MAX_REJECTED:
            raise UserError(
                f"{self.fleet.fault}, and so did {MAX_REJECTED} episodes in a row, which cannot be trained on: correct "
                "the environment"
            )

    def _begin(self, began: Flags) -> None:
        for e in map(int, np.flatnonzero(began)):
            seed = int(self.fleet.seeds[e])
            noise = PolicyNoise(self.run_seed, [seed], len(self.fleet.spaces.action.heads))
            self._ongoing[e] = _Ongoing(seed, noise, Segments())
