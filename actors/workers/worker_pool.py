"""`WorkerPool`: many Ray actors that sample on their own, wherever the cluster has room for them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import ray
from ray.actor import ActorHandle
from ray.exceptions import ActorUnavailableError, RayActorError, RayTaskError

from actors.config import ActingConfig
from actors.errors import UserError
from actors.transport.backoff import Backoff
from actors.workers.hang_detector import HangDetector
from actors.workers.process_handle import ProcessHandle
from actors.workers.ray_worker import SIGNS, RayRolloutWorker, limit_threads
from actors.workers.rollout_worker import Player, WaveReport, WorkerSettings

log = logging.getLogger(__name__)
MAX_FAILURES = 5  # errors of one actor in a row, before they count as a fault of code or configuration
LOOK_S = 0.25  # between looks at an actor that is on its way back
FIT_S = 2.0  # between looks at what room there is
PLACELESS_S = 20.0  # after which an actor without a process has no place, and is not just starting
PLAY_ATTEMPTS = 5


@dataclass
class PoolTotals:
    episodes: int = 0
    steps: int = 0
    waves: int = 0
    restarts: int = 0


@dataclass
class _Member:
    index: int
    handle: ActorHandle[RayRolloutWorker]
    signs: HangDetector
    call: Any = None  # what it is doing: a reference to the reply
    place: ProcessHandle | None = None  # of its present process
    incarnation: int = 0
    alive: bool = False  # has answered since it was started last
    down_s: float = field(default_factory=time.monotonic)  # since when it is not
    look_at_s: float = 0.0
    backoff: Backoff = field(default_factory=Backoff)  # of its deaths

    @property
    def name(self) -> str:
        return f"actor-{self.index}"

    def fell(self) -> None:
        if self.alive:
            self.down_s = time.monotonic()
        self.alive = False

    @property
    def placeless(self) -> bool:
        """Without a process for so long that there is no room for one; one that keeps dying has room."""
        return not self.alive and self.backoff.failures < 2 and time.monotonic() - self.down_s > PLACELESS_S


class WorkerPool:
    """Each living actor always has one wave under way; `pump` collects what is done and starts the next.

    Ray starts an actor when a machine has room for it and starts it again, elsewhere if need be, when it dies: the
    fleet follows the cluster up to `actors.count`, and by `fit` with `count: auto`. An actor that keeps dying is left
    alone for growing waits, one that hangs is killed.
    """

    def __init__(
        self,
        acting: ActingConfig,
        run: str,
        seed: int,
        redis: str,
        namespace: str,
        note: Callable[[str], None] = log.warning,
    ) -> None:
        options: dict[str, Any] = {
            "num_cpus": 1,
            "num_gpus": acting.actors.gpus_per_actor,
            "max_restarts": -1,
            "max_task_retries": 0,
            "scheduling_strategy": "SPREAD",
            "concurrency_groups": {SIGNS: 1},
            "runtime_env": {"env_vars": limit_threads()},
        }
        self._remote: Any = ray.remote(**options)(RayRolloutWorker)
        self._settings = WorkerSettings(acting, 0, run, seed, redis, namespace)
        self._hang_s = acting.actors.hang_s
        self._fit_at_s = 0.0
        self._given_up: set[int] = set()  # indices of actors without a place
        self._members: list[_Member] = []
        self._note = note
        self.totals = PoolTotals()
        self._add(acting.actors.at_least)

    @property
    def size(self) -> int:
        return len(self._members)

    @property
    def alive(self) -> int:
        return sum(m.alive for m in self._members)

    def counts(self) -> dict[str, float]:
        """As metrics."""
        return {"actors_alive": self.alive, "actors_wanted": self.size, "actor_restarts": self.totals.restarts}

    def fit(self, free: Callable[[], Mapping[str, float]]) -> None:
        """With `actors.count: auto`, an actor for every free place of the cluster, whose free resources `free` tells;
        actors without a place are given up, but for the last."""
        actors = self._settings.acting.actors
        if isinstance(actors.count, int) or time.monotonic() < self._fit_at_s:
            return
        self._fit_at_s = time.monotonic() + FIT_S
        places = free_places(free(), actors.gpus_per_actor)
        if places == 0:
            for m in [m for m in self._members if m.placeless]:
                self._give_up(m)
        else:
            self._add(min(places - (self.size - self.alive), actors.max_count - self.size))

    def make_room(self) -> None:
        """With `actors.count: auto`, give one actor up."""
        if not isinstance(self._settings.acting.actors.count, int):
            self._give_up(self._members[-1])

    def _add(self, count: int) -> None:
        taken = {m.index for m in self._members}
        for index in [i for i in range(self.size + max(0, count)) if i not in taken][: max(0, count)]:
            settings = replace(self._settings, index=index, reborn=index in self._given_up)
            handle = self._remote.remote(settings)
            self._members.append(_Member(index, handle, HangDetector(handle, self._hang_s)))

    def _give_up(self, member: _Member) -> None:
        if self.size > 1:
            ray.kill(member.handle)
            self._given_up.add(member.index)
            self._members.remove(member)

    def pump(self, timeout_s: float) -> list[WaveReport]:
        """Collect finished waves and start waves on idle actors. Raises `UserError` for what a restart cannot mend."""
        calls = {m.call: m for m in self._members if m.call is not None}
        ready, _ = ray.wait(list(calls), num_returns=len(calls), timeout=timeout_s) if calls else ([], [])
        reports = [report for call in ready if (report := self._collect(calls[call])) is not None]
        for m in self._members:
            if m.call is None and m.backoff.due and time.monotonic() >= m.look_at_s:
                m.call = m.handle.sample.remote() if m.alive else m.handle.ping.remote()
                m.signs.begin()
        self._kill_hanging()
        self.totals.waves += len(reports)
        self.totals.episodes += sum(r.episodes for r in reports)
        self.totals.steps += sum(r.steps for r in reports)
        return reports

    def _collect(self, member: _Member) -> WaveReport | None:
        call, member.call = member.call, None
        try:
            reply: WaveReport | ProcessHandle = ray.get(call)
        except ActorUnavailableError:  # dying, or on its way back
            self._lost(member)
            return None
        except RayActorError as error:
            if not member.alive and "creation" in str(error):
                raise UserError(f"{member.name} cannot be started: {last_line(error)}") from error
            self._lost(member)
            return None
        except RayTaskError as error:
            self._failed(member, error)
            return None
        member.alive = True
        if isinstance(reply, ProcessHandle):
            member.place = reply
            return None
        member.backoff.succeed()
        if member.incarnation not in (0, reply.incarnation):
            self.totals.restarts += 1
            self._note(f"{member.name} died and is back")
        member.incarnation = reply.incarnation
        return reply

    @staticmethod
    def _lost(member: _Member) -> None:
        if member.alive:
            member.backoff.fail()
        member.fell()
        member.look_at_s = time.monotonic() + LOOK_S

    def _failed(self, member: _Member, error: RayTaskError) -> None:
        """An error inside a living actor: what a person did wrong is raised; else the actor gets a fresh process."""
        if isinstance(error.cause, UserError):
            raise UserError(str(error.cause)) from error
        member.backoff.fail()
        if member.backoff.failures >= MAX_FAILURES:
            raise UserError(
                f"{member.name} failed {MAX_FAILURES} times in a row ({last_line(error)}): "
                "a restart does not mend that; look for what is wrong with its environment"
            ) from error
        self._note(f"{member.name} failed ({last_line(error)}); it is started again")
        ray.kill(member.handle, no_restart=False)
        member.fell()
        member.look_at_s = time.monotonic() + LOOK_S

    def _kill_hanging(self) -> None:
        """Those that have answered since they were started, and now neither get on nor come back."""
        for m in self._members:
            if m.alive and m.call is not None and m.signs.hangs() and not ray.wait([m.call], timeout=0)[0]:
                m.backoff.fail()
                self._note(f"{m.name} has hung for {self._hang_s:g} s; it is killed and started again")
                ray.kill(m.handle, no_restart=False)
                if m.place is not None:
                    m.place.kill()
                m.call, m.place = None, None
                m.fell()
                m.look_at_s = time.monotonic() + LOOK_S

    def play(self, player: Player, seeds: Sequence[int], deterministic: bool = False) -> list[dict[str, Any]]:
        """Timelines of the given seeds, in their order, shared out over the actors; a share whose actor dies is played
        by others."""
        played: dict[int, dict[str, Any]] = {}
        for _ in range(PLAY_ATTEMPTS):
            waiting = [i for i in range(len(seeds)) if i not in played]
            living = [m for m in self._members if m.alive] or self._members
            shares = [(m, waiting[i :: len(living)]) for i, m in enumerate(living)]
            calls: list[tuple[list[int], Any]] = []
            for m, share in shares:
                if share:
                    handle: Any = m.handle
                    m.call = handle.play.remote(player, [seeds[i] for i in share], deterministic)
                    m.signs.begin()
                    calls.append((share, m.call))
            for share, call in calls:
                while not ray.wait([call], timeout=LOOK_S)[0]:
                    self._kill_hanging()
                try:
                    played |= dict(zip(share, ray.get(call), strict=True))
                except RayTaskError as error:
                    if isinstance(error.cause, UserError):
                        raise UserError(str(error.cause)) from error
                    raise UserError(f"an episode could not be played for comparison: {last_line(error)}") from error
                except RayActorError:
                    time.sleep(LOOK_S)
            if len(played) == len(seeds):
                return [played[i] for i in range(len(seeds))]
            self._await_one()
        raise UserError("the actors that play for comparison keep dying: see whether the machine has memory left")

    def _await_one(self) -> None:
        """Wait until some actor answers."""
        for m in self._members:
            m.fell()
            m.call = m.handle.ping.remote()
        deadline = time.monotonic() + 60.0
        while not self.alive and time.monotonic() < deadline:
            self.pump(LOOK_S)

    def stop(self) -> None:
        for m in self._members:
            ray.kill(m.handle)


def free_places(free: Mapping[str, float], gpus_per_actor: float) -> int:
    """Actors that these free resources of a cluster have room for: a core each, and a share of a GPU where they claim
    one."""
    places = free.get("CPU", 0.0)
    if gpus_per_actor:
        places = min(places, free.get("GPU", 0.0) / gpus_per_actor)
    return int(places + 1e-6)


def last_line(error: BaseException) -> str:
    """The kind and message of an error that comes with a remote traceback."""
    cause = getattr(error, "cause", None)
    if isinstance(cause, BaseException):
        return " ".join(f"{type(cause).__name__}: {cause}".split())
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[-1].strip() if lines else type(error).__name__
