"""A whole run in one process: the real sampler, outbox, codec, transport and learner, in turns, no Ray."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from actors.config import ActingConfig, QueueConfig
from actors.policy.acting.policy import ActingPolicy
from actors.policy.network import ActOutput
from actors.policy.publish import from_weights
from actors.policy.state import PolicyState
from actors.rollout.sampler import STREAM_STEPS, Sampler, make_sampler
from actors.rollout.wave import Policy, Provenance
from actors.types.actions import ActionMasks
from actors.workers.outbox import Outbox
from learner.config import LearnerConfig
from learner.train import Learner
from tests.support.stores import new_transport

Judge = Callable[[Policy, int], bool]
"""Called with a policy and the steps acted so far; True ends the run."""


class Forgetful:
    """The same policy, its state zeroed before each step: the control that cannot remember."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy

    def initial_state(self, batch: int) -> PolicyState:
        return self.policy.initial_state(batch)

    def act(
        self,
        obs: NDArray[np.float32],
        blueprint_indices: NDArray[np.int64],
        masks: ActionMasks,
        state: PolicyState,
        noise: NDArray[np.float64],
        deterministic: bool = False,
    ) -> tuple[ActOutput, PolicyState]:
        zero = self.policy.initial_state(obs.shape[0])
        decision, _ = self.policy.act(obs, blueprint_indices, masks, zero, noise, deterministic)
        return decision, zero


class Run:
    """Acts by the newest weights whenever the learner waits for episodes, until `budget` steps are acted.

    `forgetful` zeroes the state at each step of acting, and of learning: rows of one step from stored zeros.
    """

    def __init__(
        self, acting: ActingConfig, config: LearnerConfig, folder: Path, seed: int, forgetful: bool = False
    ) -> None:
        torch.set_num_threads(1)
        if forgetful:
            config = replace(config, state_stride=1, chunk_length=1, burn_in=0)
        self.transport = new_transport(QueueConfig(max_episodes=1_000_000))
        self.sampler = make_sampler(acting, 0, seed, None)  # plays: that drops the episodes of a sampler that acts
        self._actor = make_sampler(acting, 0, seed, None)
        self.learner = Learner(
            config, acting.policy, self.sampler.spaces, self.transport, folder, seed, None, self._note
        )
        self.seed, self.forgetful = seed, forgetful
        self.width = acting.actors.envs_per_actor
        incarnation = self.transport.new_incarnation("actor-0").number
        self.outbox = Outbox(self.transport, "run", "actor-0", incarnation, 1_000_000)
        self.acting: ActingPolicy | None = None
        self.version, self.stride, self.generation, self.acted, self.digest = -1, 1, 0, 0, ""
        self.history: list[dict[str, float]] = []  # metrics of each update, and `acted`

    @property
    def policy(self) -> Policy:
        """The newest weights, as they act."""
        assert self.acting is not None
        return Forgetful(self.acting) if self.forgetful else self.acting

    def train(self, budget: int, judge: Judge | None = None, judge_every: int = 10) -> None:
        """At most `budget` steps of acting; `judge` is called at every `judge_every`-th version."""

        def produce() -> bool:
            due = self._fetch() and self.version > 0 and self.version % judge_every == 0
            if due and judge is not None and judge(self.policy, self.acted):
                return True
            while self.transport.ledger().queued == 0:
                if self.acted >= budget:
                    return True
                self._act()
            return False

        self.learner.run(produce)
        self._fetch()

    def returns(self, seeds: range, deterministic: bool = False) -> list[float]:
        """Of one whole episode of each seed, by the newest weights."""
        return play(self.sampler, self.policy, self.seed, seeds, deterministic)

    def _act(self) -> None:
        source = Provenance(self.version, self.generation, self.stride, self.seed)
        for episode in self._actor.sample(self.policy, source):
            self.outbox.add(episode)
        self.outbox.ship(0.0)
        self.acted += STREAM_STEPS * self.width

    def _fetch(self) -> bool:
        weights = self.transport.fetch(self.digest)
        if weights is None:
            return False
        if self.acting is None:
            self.acting = ActingPolicy(from_weights(weights))
        else:
            self.acting.load(weights)
        self.version, self.generation, self.stride = weights.version, weights.generation, weights.state_stride
        self.digest = weights.digest
        return True

    def _note(self, metrics: dict[str, float]) -> None:
        self.history.append(metrics | {"acted": float(self.acted)})


def play(sampler: Sampler, policy: Policy, run_seed: int, seeds: range, deterministic: bool = False) -> list[float]:
    summaries = sampler.play(policy, Provenance(0, 0, 1, run_seed), seeds, deterministic)
    return [float(episode["return"]) for episode in summaries]
