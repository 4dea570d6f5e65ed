"""A whole run in one process: a real actor and learner in turns, no Ray."""

from __future__ import annotations

import uuid
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
from actors.transport.redis import connect
from actors.types.actions import ActionMasks
from actors.workers.rollout_worker import RolloutWorker, WorkerSettings
from learner.config import LearnerConfig
from learner.train import Learner
from tests.support.stores import own_server

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
        acting = replace(acting, queue=QueueConfig(max_episodes=1_000_000))
        url, namespace = own_server().url, uuid.uuid4().hex
        self.sampler = make_sampler(acting, 0, seed, None)  # plays: that drops the episodes of a sampler that acts
        self.transport = connect(url, acting.queue, namespace)
        self.learner = Learner(
            config, acting.policy, self.sampler.spaces, self.transport, folder, seed, None, self._note
        )
        self._worker = RolloutWorker(WorkerSettings(acting, 0, "run", seed, url, namespace), max_busy_wait_s=0.0)
        if forgetful:
            sample = self._worker.sampler.sample
            self._worker.sampler.sample = lambda policy, source: sample(Forgetful(policy), source)  # type: ignore[method-assign]
        self.seed, self.forgetful = seed, forgetful
        self.acted, self._steps = 0, STREAM_STEPS * acting.actors.envs_per_actor
        self.history: list[dict[str, float]] = []  # metrics of each update, and `acted`

    @property
    def policy(self) -> Policy:
        """The newest weights, as they act."""
        weights = self.transport.fetch()
        assert weights is not None
        policy = ActingPolicy(from_weights(weights))
        return Forgetful(policy) if self.forgetful else policy

    def train(self, budget: int, judge: Judge | None = None, judge_every: int = 10) -> None:
        """At most `budget` steps of acting; `judge` is called at every `judge_every`-th version."""
        judged = 0

        def produce() -> bool:
            nonlocal judged
            version = self.transport.head()
            if judge is not None and version > judged and version % judge_every == 0:
                judged = version
                if judge(self.policy, self.acted):
                    return True
            while self.transport.ledger().queued == 0:
                if self.acted >= budget:
                    return True
                self._worker.sample()
                self.acted += self._steps
            return False

        self.learner.run(produce)

    def returns(self, seeds: range, deterministic: bool = False) -> list[float]:
        """Of one whole episode of each seed, by the newest weights."""
        return play(self.sampler, self.policy, self.seed, seeds, deterministic)

    def _note(self, metrics: dict[str, float]) -> None:
        self.history.append(metrics | {"acted": float(self.acted)})


def play(sampler: Sampler, policy: Policy, run_seed: int, seeds: range, deterministic: bool = False) -> list[float]:
    summaries = sampler.play(policy, Provenance(0, 0, 1, run_seed), seeds, deterministic)
    return [float(episode["return"]) for episode in summaries]
