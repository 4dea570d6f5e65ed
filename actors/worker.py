"""The Ray actor: a fleet of environments, a copy of the policy, and an outbox."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar

import ray
import torch

from actors.config import ActingConfig
from actors.errors import UserError
from actors.outbox import Outbox
from actors.policy.baselines import NeverGrow, RandomPolicy
from actors.policy.network import FactoredRecurrentActorCritic
from actors.policy.publish import from_weights, load_weights
from actors.ray_metrics import RayMetrics
from actors.rollout import Policy, Provenance
from actors.sampler import make_sampler
from actors.transport.redis import connect

P = ParamSpec("P")
T = TypeVar("T")

Player = Literal["learned", "random", "never_grow"]
PATIENCE_S = 20.0  # how long a wave's episodes wait for a busy queue before the next wave is played


@dataclass(frozen=True)
class WorkerSettings:
    """What one actor is given."""

    acting: ActingConfig
    index: int
    run: str  # first part of its episodes' ids
    seed: int  # of the run
    redis: str
    namespace: str


@dataclass(frozen=True)
class WaveReport:
    """What the fleet's manager hears of a wave; the episodes themselves go through the queue."""

    episodes: int
    steps: int
    seconds: float
    waited_s: float
    unsent: int


class Worker:
    """Answers `ping` and `apply`, as Ray's fault-tolerant actor manager wants it."""

    def __init__(self, settings: WorkerSettings) -> None:
        torch.set_num_threads(1)
        self.settings = settings
        acting = settings.acting
        self.transport = connect(settings.redis, acting.queue, settings.namespace)
        self.name = f"actor-{settings.index}"
        # Later incarnations have larger numbers: the clock survives a death, a counter in memory does not.
        self.incarnation = time.time_ns() // 1_000_000
        died = ray.get_runtime_context().was_current_actor_reconstructed
        self.sampler = make_sampler(acting, settings.index, settings.seed, self.incarnation if died else None)
        self.outbox = Outbox(self.transport, self.name, self.incarnation, acting.actors.buffer_episodes)
        self.metrics = RayMetrics(self.name)
        self.network: FactoredRecurrentActorCritic | None = None
        self.version, self.generation, self.state_stride = -1, 0, 1
        self.sequence = 0

    def ping(self) -> str:
        return "pong"

    def apply(self, func: Callable[Concatenate[Worker, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        return func(self, *args, **kwargs)

    def sample(self) -> WaveReport:
        """A while with the newest weights, and what became complete shipped. Waits for the first weights; raises
        `UserError` without any."""
        start = time.monotonic()
        self._fetch()
        assert self.network is not None
        source = Provenance(self.version, self.generation, self.state_stride, self.settings.seed)
        episodes = self.sampler.sample(self.network, source, self._name_episode)
        for episode in episodes:
            self.outbox.add(episode)
        played_s = time.monotonic() - start
        waited_s = self.outbox.ship(PATIENCE_S)
        steps = sum(len(e) for e in episodes)
        self.metrics.report(
            {
                "actor_episodes": self.outbox.accounts.produced,
                "actor_steps_per_s": steps / played_s,
                "actor_dropped_backpressure": self.outbox.accounts.dropped_backpressure,
                "actor_wait_s": waited_s,
            }
        )
        return WaveReport(len(episodes), steps, played_s, waited_s, len(self.outbox))

    def play(self, player: Player, seeds: Sequence[int], deterministic: bool = False) -> list[dict[str, Any]]:
        """Episodes of the given seeds, not shipped: what `Sampler.play` tells of each."""
        policy: Policy
        if player == "learned":
            self._fetch()
            assert self.network is not None
            policy = self.network
        else:
            policy = (RandomPolicy if player == "random" else NeverGrow)(self.sampler.spaces)
        source = Provenance(self.version, self.generation, 1, self.settings.seed)
        played = self.sampler.play(policy, source, seeds, deterministic)
        return [told | {"policy_version": self.version} for told in played]

    def _fetch(self) -> None:
        deadline = time.monotonic() + self.settings.acting.actors.fetch_timeout_s
        while True:
            weights = self.transport.fetch(self.version)
            if weights is not None:
                if self.network is None:
                    self.network = from_weights(weights)
                else:
                    load_weights(self.network, weights)
                self.version, self.generation = weights.version, weights.generation
                self.state_stride = weights.state_stride
            if self.network is not None:
                return
            if time.monotonic() > deadline:
                raise UserError(
                    f"{self.name} found no weights: is a learner running against the same Redis and run name?"
                )
            time.sleep(0.1)

    def _name_episode(self) -> str:
        self.sequence += 1
        return f"{self.settings.run}/{self.name}/{self.incarnation}/{self.sequence}"


def limit_threads() -> dict[str, str]:
    """Environment of a worker process: one thread per numerical library."""
    return dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
