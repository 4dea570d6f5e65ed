"""`WorkerPool`: starts, restarts and polls the Ray actors that sample episodes."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import ray
from ray.exceptions import ActorUnavailableError, RayActorError, RayTaskError

from actors.errors import UserError
from actors.process_environment import process_environment
from actors.workers.faults.actor_logs import ActorLogs
from actors.workers.faults.actor_reports import ActorReports, last_line
from actors.workers.hang_detector import HangDetector, Pulse
from actors.workers.placement import actor_capacity, gpu_room, gpu_shortage, node_gpus
from actors.workers.pool_member import PING_INTERVAL_S, Closing, PoolMember
from actors.workers.process_handle import ProcessHandle
from actors.workers.ray_worker import RayRolloutWorker
from actors.workers.rollout_worker import PolicyEvaluation, PolicyName, SampleReport, WorkerSettings

log = logging.getLogger(__name__)
MAX_FAILURES = {"failed": 5, "died": 8, "hung": 3}  # of one actor in a row, before they end the run
STABLE_S = 10.0  # an actor that has played for this long, and was heard from, starts a new row
AUTOSCALE_INTERVAL_S = 2.0


class WorkerPool:
    """Keeps all actors running; `pump` collects their reports, which end their calls, and calls them again.

    Ray schedules an actor when a node has resources for it, and restarts it after its death, on another node if
    necessary, as a new incarnation. The pool has `actors.count` actors, or with `count: auto` as many as the cluster
    has room for (see `autoscale`). Actors that die repeatedly are restarted with exponential backoff; hung actors are
    killed.
    """

    def __init__(
        self, settings: WorkerSettings, warn: Callable[[str], None] = log.warning, learner_gpus: float = 0.0
    ) -> None:
        """`settings` are those of the first actor; `learner_gpus` is what a learner on the same cluster reserves."""
        actors = settings.acting.actors
        options: dict[str, Any] = {
            "num_cpus": 1,
            "num_gpus": actors.gpus_per_actor,
            "max_restarts": -1,
            "max_task_retries": 0,
            "scheduling_strategy": "SPREAD",
            "runtime_env": {"env_vars": process_environment(actors.gpus_per_actor > 0)},
        }
        self._remote: Any = ray.remote(**options)(RayRolloutWorker)
        self._settings, self._hang_s = settings, actors.hang_s
        self._reports, self._closing = ActorReports(ActorLogs(settings.logs), warn), Closing()
        self._autoscale_at_s = 0.0
        self._removed: set[int] = set()  # indices of removed actors
        self._members: list[PoolMember] = []
        self._warn, self._learner_gpus, self._checked_gpus = warn, learner_gpus, not actors.gpus_per_actor
        self._to_evaluate: tuple[Sequence[int], float] | None = None  # by the next actor that is free: seeds, limit
        self._evaluation: PolicyEvaluation | None = None
        self.restarts = 0  # of actors
        self._add(actors.at_least)

    @property
    def size(self) -> int:
        return len(self._members)

    @property
    def alive(self) -> int:
        return sum(m.alive for m in self._members)

    def counts(self) -> dict[str, float]:
        """Return the pool's size and restarts as metrics."""
        return {"actors_alive": self.alive, "actors_wanted": self.size, "actor_restarts": self.restarts}

    def autoscale(self, free_resources: Callable[[], Mapping[str, float]]) -> None:
        """With `actors.count: auto`, add actors for the cluster's free resources and remove those that got none.

        At least one actor is kept. Checks at most every `AUTOSCALE_INTERVAL_S`.
        """
        actors = self._settings.acting.actors
        if isinstance(actors.count, int) or time.monotonic() < self._autoscale_at_s:
            return
        self._autoscale_at_s = time.monotonic() + AUTOSCALE_INTERVAL_S
        share = actors.gpus_per_actor
        room = gpu_room(node_gpus(), share, self._learner_gpus) - self.alive if share else 0
        capacity = actor_capacity(free_resources(), share, room)
        if capacity == 0:
            for m in [m for m in self._members if m.unplaced]:
                self._remove(m)
        else:
            self._add(min(capacity - (self.size - self.alive), actors.max_count - self.size))

    def release_one(self) -> None:
        """With `actors.count: auto`, remove one actor to free its resources."""
        if not isinstance(self._settings.acting.actors.count, int):
            self._remove(self._members[-1])

    def _add(self, count: int) -> None:
        taken = {m.settings.index for m in self._members}
        for index in [i for i in range(self.size + max(0, count)) if i not in taken][: max(0, count)]:
            settings = replace(self._settings, index=index, restarted=index in self._removed)
            self._members.append(PoolMember(settings, self._remote.remote(settings), HangDetector(self._hang_s)))

    def _remove(self, member: PoolMember) -> None:
        if self.size > 1:
            self._end(member)
            self._removed.add(member.settings.index)
            self._members.remove(member)

    def pump(self, timeout_s: float) -> list[SampleReport]:
        """Wait until an actor reports, for at most `timeout_s`; collect all reports, and let these actors continue.

        Raises `UserError` for errors that a restart cannot fix.
        """
        calls = {m.call: m for m in self._members if m.call is not None}
        if not calls:
            time.sleep(timeout_s)
        elif ray.wait(list(calls), timeout=timeout_s)[0]:
            timeout_s = 0.0
        ready, _ = ray.wait(list(calls), num_returns=len(calls), timeout=0) if calls else ([], [])
        reports = [report for call in ready if (report := self._collect(calls[call])) is not None]
        for m in self._members:
            if m.call is None and m.backoff.due and time.monotonic() >= m.next_ping_s:
                m.call = self._next_call(m)
                m.hang_detector.start()
        self._kill_hung()
        self._warn_about_gpus()
        self._closing.tend()
        self._reports.logs.limit()
        return reports

    def _next_call(self, member: PoolMember) -> Any:
        wanted, handle = self._to_evaluate, member.handle
        member.evaluating = member.alive and wanted is not None
        if not member.alive:
            return handle.start.remote()
        if wanted is None:
            return handle.run.remote()
        self._to_evaluate = None
        return handle.evaluate.remote(*wanted)

    def evaluate(self, seeds: Sequence[int], limit_s: float) -> None:
        """Let the next actor that is free play an episode of each seed; `take_evaluation` returns them."""
        self._to_evaluate = seeds, limit_s

    @property
    def evaluating(self) -> bool:
        """Whether an evaluation is wanted or in progress. It is lost with its actor."""
        return self._to_evaluate is not None or any(m.evaluating and m.call is not None for m in self._members)

    def take_evaluation(self) -> PolicyEvaluation | None:
        """Return the evaluation that has ended since the last call."""
        done, self._evaluation = self._evaluation, None
        return done

    def _warn_about_gpus(self) -> None:
        """Say once why actors wait: a cluster may grow, so this is not an error."""
        if not self._checked_gpus and any(m.unplaced for m in self._members):
            self._checked_gpus = True
            if shortage := gpu_shortage(self._settings.acting.actors, node_gpus(), self._learner_gpus):
                self._warn(f"{shortage}; the others start when the cluster grows")

    def _collect(self, member: PoolMember) -> SampleReport | None:
        call, member.call = member.call, None
        try:
            reply: SampleReport | PolicyEvaluation | ProcessHandle | None = ray.get(call)
        except RayActorError as error:  # also while it is dying or being restarted
            if not member.alive and "creation" in str(error) and not isinstance(error, ActorUnavailableError):
                raise UserError(f"{member.name} cannot be started: {last_line(error)}") from error
            self._handle_death(member)
            return None
        except RayTaskError as error:
            self._handle_error(member, error)
            return None
        member.alive = True
        if isinstance(reply, ProcessHandle):
            member.started(reply)
            return None
        if isinstance(reply, PolicyEvaluation):
            self._evaluation = reply
            return None
        if reply is None:  # it was stopped
            return None
        if time.monotonic() - member.up_since_s > STABLE_S:
            member.backoff.succeed()
        if reply.incarnation != member.incarnation and (member.incarnation or member.lost):
            self.restarts += 1
            path = self._reports.logs.path(member.name)
            printed = f"; what it printed is in {path}" if path else ""
            self._warn(f"{member.name} died and was restarted{printed}")
        if reply.rejected:
            self._reports.once(f"{reply.fault}; such episodes are rejected (metric actor_rejected)")
        member.incarnation, member.lost = reply.incarnation, False
        return reply

    def _handle_death(self, member: PoolMember) -> None:
        if member.alive:
            if tail := self._reports.logs.tail(member.name):
                self._reports.once(f"what {member.name} printed last:\n{tail}")
            self._count_failure(
                member,
                "died",
                "its environment ends its own process (by os._exit, or by a crash in native code), or memory is short",
            )
        member.mark_down()

    def _handle_error(self, member: PoolMember, error: RayTaskError) -> None:
        """Raise the user's errors and repeated ones; otherwise restart the actor in a new process."""
        if isinstance(error.cause, UserError):
            raise UserError(str(error.cause)) from error
        found = self._reports.failed(member.name, error)
        self._count_failure(member, "failed", f"restarting it does not help; correct its environment ({found})")
        ray.kill(member.handle, no_restart=False)
        member.mark_down()

    def _count_failure(self, member: PoolMember, what: str, cause: str) -> None:
        """Raise `UserError` if this happened too often in a row for another restart to help."""
        member.backoff.fail()
        if member.backoff.failures >= MAX_FAILURES[what]:
            raise UserError(f"{member.name} {what} {member.backoff.failures} times in a row: {cause}")

    def _kill_hung(self) -> None:
        for m in self._members:
            if m.hangs():
                self._warn(f"{m.name} has hung for {self._hang_s:g} s; it is killed and restarted")
                self._reports.once(Pulse.read(m.process).place)
                ray.kill(m.handle, no_restart=False)
                if m.process is not None:
                    m.process.kill()
                m.call = None
                m.mark_down()
                self._count_failure(
                    m, "hung", "raise actors.hang_s if a single reset or step of its environment takes longer"
                )

    def play(
        self,
        player: PolicyName,
        seeds: Sequence[int],
        deterministic: bool = False,
        stop: Callable[[], bool] = lambda: False,
    ) -> list[dict[str, Any]]:
        """Play one episode per seed, distributed over the actors, and return the results in the order of the seeds.

        Raises `UserError` if an actor fails or dies meanwhile, and `TimeoutError` as soon as `stop()` is true.
        """
        live = ([m for m in self._members if m.alive] or self._members)[: len(seeds)]
        for i, m in enumerate(live):
            m.call = m.handle.play.remote(player, seeds[i :: len(live)], deterministic)
            m.hang_detector.start()
        played: list[dict[str, Any]] = [{}] * len(seeds)
        for i, m in enumerate(live):
            call = m.call
            while not ray.wait([call], timeout=PING_INTERVAL_S)[0]:
                if stop():
                    raise TimeoutError(f"stopped while the {player} policy played")
                self._kill_hung()
            try:
                played[i :: len(live)] = ray.get(call)
            except RayTaskError as error:
                if isinstance(error.cause, UserError):
                    raise UserError(str(error.cause)) from error
                found = self._reports.failed(m.name, error)
                raise UserError(f"an episode could not be played for comparison: {found}") from error
            except RayActorError as error:
                raise UserError(f"{m.name} died while it played for comparison") from error
        return played

    def stop(self, at_once: bool = False) -> None:
        """Kill all actors, and unless `at_once`, let actors close their environments before."""
        for m in self._members:
            self._end(m, at_once)
        self._closing.finish()

    def _end(self, member: PoolMember, at_once: bool = False) -> None:
        if member.alive and self._settings.acting.gym.id and not at_once:
            self._closing.begin(member)
        else:
            member.kill()
