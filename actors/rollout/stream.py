"""`EpisodeStream`: (stream fleet, policy) > Episodes, where environments end whenever they end and start anew.

Episodes of unequal length never wait for each other and never mix: each row has its own recorder, its own recurrent
state and its own noise. Weights may change between any two steps; the version is recorded with each of them. Past
`max_segment_steps` an episode ships as numbered segments: a segment is cut, bootstrapped with the value of the state
it led to, and the next one's initial state is the state carried up to there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from actors.env.gym.fleet import Flags, StreamFleet
from actors.rollout.wave import Policy, PolicyNoise, Provenance, Recorder, bootstrap_values
from actors.types.episode import Episode


@dataclass
class _Row:
    """One environment's episode under way."""

    seed: int
    noise: PolicyNoise
    recorder: Recorder | None = None  # of the segment under way; None before its first step
    segment: int = 0
    steps: int = 0  # of the segments before
    total: float = 0.0  # their rewards

    def close_segment(self, episode: Episode) -> None:
        """Number it, and tell in it what the whole episode has come to."""
        self.steps += len(episode)
        self.total += episode.undiscounted_return
        episode.telemetry.update(segment=self.segment, episode_steps=self.steps, episode_return=self.total)
        self.segment, self.recorder = self.segment + 1, None


class EpisodeStream:
    """Continues where it stopped; each call of `advance` may use other weights. `on_step` is called after each step of
    the fleet."""

    def __init__(
        self,
        fleet: StreamFleet,
        policy: Policy,
        run_seed: int,
        max_segment_steps: int,
        on_step: Callable[[], None] = lambda: None,
    ) -> None:
        self.fleet, self.run_seed, self.max_segment_steps = fleet, run_seed, max_segment_steps
        self._on_step = on_step
        self._rows: dict[int, _Row] = {}  # those in an episode; a row between two is missing
        self._state = policy.initial_state(fleet.num_envs)
        self._shown = fleet.start()
        self._begin(self._shown.began)

    def advance(
        self, policy: Policy, source: Provenance, name_episode: Callable[[], str], deterministic: bool = False
    ) -> list[Episode]:
        """One step of every environment; returns the episodes and segments that it completed."""
        fleet, rows, state = self.fleet, dict(self._rows), self._state
        noise = np.zeros((fleet.num_envs, len(fleet.spaces.action.heads)))
        for e, row in rows.items():
            noise[e] = row.noise.step()[0]
        now = self._shown.now
        decision, after = policy.act(now.obs, now.blueprint_indices, now.masks, state, noise, deterministic)
        for e, row in rows.items():
            if row.recorder is None:
                row.recorder = Recorder(row.seed, fleet.env_id, state.row(e), source.generation, source.state_stride)
            row.recorder.before(e, now, decision, state, source.version)
        self._shown = fleet.step(decision.actions)
        self._on_step()
        led_to = self._shown.led_to
        ended = led_to.terminated | led_to.truncated
        complete: list[tuple[int, Recorder]] = []
        for e, row in rows.items():
            assert row.recorder is not None
            row.recorder.rewards.append(float(led_to.rewards[e]))
            if ended[e] or len(row.recorder.rewards) == self.max_segment_steps:
                complete.append((e, row.recorder))
        bootstrap = np.zeros(fleet.num_envs, dtype=np.float32)
        if any(not led_to.terminated[e] for e, _ in complete):
            for e, _ in complete:
                noise[e] = rows[e].noise.bootstrap()[0]
            bootstrap = bootstrap_values(policy, led_to, after, noise)
        episodes: list[Episode] = []
        for e, recorder in complete:
            episode = recorder.finish(e, led_to, float(bootstrap[e]), name_episode(), fleet.env_id, fleet.spaces.hash)
            rows[e].close_segment(episode)
            episodes.append(episode)
            if ended[e]:
                del self._rows[e]
        self._state = after.reset_rows(torch.from_numpy(self._shown.began))
        self._begin(self._shown.began)
        return episodes

    def _begin(self, began: Flags) -> None:
        for e in map(int, np.flatnonzero(began)):
            seed = int(self.fleet.seeds[e])
            self._rows[e] = _Row(seed, PolicyNoise(self.run_seed, [seed], len(self.fleet.spaces.action.heads)))
