"""A whole run in one process: a real actor and learner in turns, no Ray."""

from __future__ import annotations

import uuid
from dataclasses import replace
from pathlib import Path

import torch

from actors.config import ActingConfig, QueueConfig
from actors.rollout.sampler import STREAM_STEPS
from actors.transport.redis import connect
from actors.workers.rollout_worker import RolloutWorker, WorkerSettings
from learner.config import LearnerConfig
from learner.train import Learner
from tests.support.stores import own_server


class Run:
    """Acts by the newest weights whenever the learner waits for episodes."""

    def __init__(self, acting: ActingConfig, config: LearnerConfig, folder: Path, seed: int) -> None:
        torch.set_num_threads(1)
        acting = replace(acting, queue=QueueConfig(max_episodes=1_000_000))
        url, namespace = own_server().url, uuid.uuid4().hex
        self.transport = connect(url, acting.queue, namespace)
        self.history: list[dict[str, float]] = []  # metrics of each update
        self._worker = RolloutWorker(WorkerSettings(acting, 0, "run", seed, url, namespace), max_busy_wait_s=0.0)
        spaces, note = self._worker.sampler.spaces, self.history.append
        self.learner = Learner(config, acting.policy, spaces, self.transport, folder, seed, None, note)
        self._steps = STREAM_STEPS * acting.actors.envs_per_actor  # of one call of the worker

    def train(self, budget: int) -> None:
        """At most `budget` steps of acting."""
        acted = 0

        def produce() -> bool:
            nonlocal acted
            while self.transport.ledger().queued == 0:
                if acted >= budget:
                    return True
                self._worker.sample()
                acted += self._steps
            return False

        self.learner.run(produce)
