"""`ActorFleet`: many Ray actors that sample on their own and are brought back when they die."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray.actor import ActorHandle
from ray.exceptions import RayActorError
from ray.rllib.utils.actor_manager import FaultTolerantActorManager

from actors.config import ActingConfig
from actors.errors import UserError
from actors.worker import Player, WaveReport, Worker, WorkerSettings, limit_threads

log = logging.getLogger(__name__)


@dataclass
class FleetTotals:
    episodes: int = 0
    steps: int = 0
    waves: int = 0
    restarts: int = 0


class ActorFleet:
    """Each healthy actor always has one wave under way; `pump` collects what is done and starts the next."""

    def __init__(self, acting: ActingConfig, run: str, seed: int, redis: str, namespace: str) -> None:
        remote: Any = ray.remote(
            num_cpus=1, max_restarts=-1, max_task_retries=0, runtime_env={"env_vars": limit_threads()}
        )(Worker)
        settings = [WorkerSettings(acting, i, run, seed, redis, namespace) for i in range(acting.actors.count)]
        self.handles: list[ActorHandle[Worker]] = [
            remote.options(name=f"{namespace}/actor-{s.index}").remote(s) for s in settings
        ]
        self.manager = FaultTolerantActorManager(self.handles, max_remote_requests_in_flight_per_actor=1)
        self.totals = FleetTotals()

    @property
    def size(self) -> int:
        return len(self.handles)

    @property
    def alive(self) -> int:
        return int(self.manager.num_healthy_actors())

    def pump(self, timeout_s: float) -> list[WaveReport]:
        """Collect finished waves, bring dead actors back, start waves on idle ones.

        Raises the error of a wave that failed in an actor which is alive: that is a fault of code or configuration.
        """
        results = self.manager.fetch_ready_async_reqs(timeout_seconds=timeout_s)
        reports: list[WaveReport] = []
        for result in results:
            if result.ok:
                reports.append(result.get())
            else:
                self._judge(result.get())
        if self.alive < self.size:
            back = self.manager.probe_unhealthy_actors(timeout_seconds=1.0, mark_healthy=True)
            self.totals.restarts += len(back)
            for actor in back:
                log.warning("actor-%d died and is back", actor)
        self.manager.foreach_actor_async("sample")
        self.totals.waves += len(reports)
        self.totals.episodes += sum(r.episodes for r in reports)
        self.totals.steps += sum(r.steps for r in reports)
        return reports

    @staticmethod
    def _judge(error: BaseException) -> None:
        if isinstance(error, UserError):  # raised inside the actor; Ray's error is of both classes
            raise UserError(str(getattr(error, "cause", error))) from error
        if isinstance(error, RayActorError):
            log.warning("an actor died: %s", str(error).splitlines()[0])
            return
        raise error

    def play(self, player: Player, seeds: Sequence[int], deterministic: bool = False) -> list[dict[str, Any]]:
        """Timelines of the given seeds, in their order, shared out over the actors."""
        shares = [list(seeds[i :: self.size]) for i in range(self.size)]
        pending = [h.play.remote(player, share, deterministic) for h, share in zip(self.handles, shares, strict=True)]
        played: list[list[dict[str, Any]]] = ray.get(pending)
        return [played[i % self.size][i // self.size] for i in range(len(seeds))]

    def stop(self) -> None:
        for handle in self.handles:
            ray.kill(handle)
