"""`LearnerActor`: the learner as a Ray actor in its own placement group, restarted whenever it dies."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import ray
from ray.exceptions import ActorUnavailableError, RayActorError, RayError, RayTaskError
from ray.util import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from actors.errors import UserError
from actors.heartbeat import StallTimer
from actors.metrics.ray import RayMetrics
from actors.process_environment import process_environment
from actors.transport.base import Fenced
from actors.transport.retry import Backoff
from actors.workers.faults.actor_reports import last_line
from actors.workers.placement import node_gpus
from actors.workers.process_handle import ProcessHandle
from deploy.launch.supervision.stopping import wait_until_stopped
from learner.run.checkpoint import LearnerProgress
from learner.service import LearnerService, LearnerSettings, LearnerStatus

MAX_FAILURES = 5  # consecutive errors without an update after which the run fails
POLL_S = 0.25  # seconds between polls
KILL_S = 2.0  # time limit for killing a hung process on its machine
ENDED = "its process has ended"


class LearnerActor:
    """The learner of a run as a Ray actor.

    `tick` polls it without blocking. A learner that dies, fails or hangs is restarted from its newest checkpoint, with
    exponential backoff while it keeps dying.
    """

    def __init__(self, settings: LearnerSettings, gpus: float, note: Callable[[str], None]) -> None:
        self._note = note
        self._run_dir, self._max_seconds = settings.run_dir, settings.config.max_seconds
        self._placement_group = placement_group(
            [{"CPU": 1, "GPU": gpus} if gpus else {"CPU": 1}], strategy="STRICT_PACK"
        )
        remote: Any = ray.remote(
            num_cpus=1,
            num_gpus=gpus,
            max_restarts=-1,
            max_task_retries=0,
            scheduling_strategy=PlacementGroupSchedulingStrategy(self._placement_group),
            runtime_env={"env_vars": process_environment(gpus > 0 or not any(node_gpus()))},
        )(LearnerService)
        run = settings.namespace
        self._handle = remote.options(max_concurrency=2).remote(  # it is polled while it starts
            settings, lambda: RayMetrics("learner", run).report
        )
        self._call: Any = None
        self._starting = True  # whether the next call is `start`
        self.up = False  # whether it is placed and has started
        self._process: ProcessHandle | None = None  # handle of its process
        self._next_poll_s = 0.0
        self._hang_s, self._stall_timer = settings.config.hang_s, StallTimer()
        self._backoff = Backoff()
        self._updates_at_failure = -1
        self.began_s: float | None = None  # when it first started; `max_seconds` counts from then
        self.status = LearnerStatus(LearnerProgress(), False)
        self.restarts = 0

    def tick(self) -> LearnerStatus:
        """Poll the learner and restart it if necessary. Raises `UserError` for errors that a restart cannot fix."""
        self.status = replace(self.status, new_metrics=[], new_notes=[])
        now = time.monotonic()
        stalled_s = self._stall_timer.poll()
        if self._call is None and self._backoff.due and now >= self._next_poll_s:
            self._next_poll_s = now + POLL_S
            start = self._handle.start
            self._call = (
                start.remote(self._remaining_s(), ProcessHandle.here) if self._starting else self._handle.poll.remote()
            )
        if self._call is not None and ray.wait([self._call], timeout=0)[0]:
            call, self._call = self._call, None
            self._handle_reply(call)
        elif self.up and stalled_s > self._hang_s:
            self._restart(f"the learner has hung for {self._hang_s:g} s")
        return self.status

    def _handle_reply(self, call: Any) -> None:
        try:
            reply: LearnerStatus | ProcessHandle = ray.get(call)
        except RayActorError as error:
            self._on_death(ENDED if isinstance(error, ActorUnavailableError) else last_line(error))
        except RayTaskError as error:
            self._on_failure(error)
        else:
            if isinstance(reply, ProcessHandle):
                self._process, self._starting, self.up = reply, False, True
                self._stall_timer = StallTimer()
                self.began_s = self.began_s or time.monotonic()
            elif reply.progress is None:
                self._on_death(ENDED)
            else:
                self._record(reply)

    def _record(self, status: LearnerStatus) -> None:
        assert status.progress is not None
        self._stall_timer.poll(status.beats)
        if status.progress.update > max(0, self._updates_at_failure) and status.new_metrics:
            self._backoff.succeed()
        notes, metrics = self.status.new_notes + status.new_notes, self.status.new_metrics + status.new_metrics
        self.status = replace(status, new_notes=notes, new_metrics=metrics)

    def _on_death(self, reason: str) -> None:
        if self.up:
            self.up = False
            self.restarts += 1
            self._backoff.fail()
            self._note(f"the learner died ({reason}); it restarts from its newest checkpoint")
        self._starting = True

    def _on_failure(self, error: RayTaskError) -> None:
        cause = error.cause
        if isinstance(cause, UserError):
            raise UserError(str(cause)) from error
        if isinstance(cause, Fenced):
            raise UserError(
                f"another learner took over this run ({cause}): give this run another --run.name"
            ) from error
        update = self.status.progress.update if self.status.progress else 0
        if update > self._updates_at_failure:
            self._backoff.succeed()
        self._updates_at_failure = update
        self._backoff.fail()
        if self._backoff.failures >= MAX_FAILURES:
            raise UserError(
                f"the learner failed {MAX_FAILURES} times in a row without an update ({last_line(error)}); "
                f"checkpoints are in {self._run_dir}: fix the cause, then continue with --resume"
            ) from error
        self._restart(f"the learner failed ({last_line(error)})")

    def _restart(self, reason: str) -> None:
        self._note(f"{reason}; it restarts from its newest checkpoint")
        ray.kill(self._handle, no_restart=False)
        if self._process is not None:
            self._process.kill()
            self._process = None
        self.restarts += 1
        self._call, self.up, self._starting = None, False, True

    def _remaining_s(self) -> float | None:
        if self.began_s is None or self._max_seconds is None:
            return None
        return max(0.1, self.began_s + self._max_seconds - time.monotonic())

    def stop(self, at_once: Callable[[], bool] = lambda: False) -> bool:
        """Let the learner write a last checkpoint and stop. It is killed if it makes no progress or if `at_once()`.

        Returns whether it wrote a last checkpoint.
        """
        self.status = replace(self.status, new_metrics=[], new_notes=[])
        call = self._handle.stop.remote()

        def wait(timeout_s: float) -> bool:
            return bool(ray.wait([call], timeout=timeout_s)[0])

        longest_pause_s = min(self._stall_timer.longest_s, self._hang_s / 2)
        if not wait_until_stopped(wait, self._count_beats, longest_pause_s, at_once):
            self._note("the learner did not stop in time and is killed")
            ray.kill(self._handle)
            if self._process is not None:
                self._process.kill(KILL_S)
            self.up = False
            return False
        try:
            progress = ray.get(call)
        except RayActorError:
            return False
        except RayTaskError as error:
            if isinstance(error.cause, UserError):
                raise UserError(str(error.cause)) from error
            raise UserError(
                f"the learner failed ({last_line(error)}); continue with --resume {self._run_dir}"
            ) from error
        if self.up:
            self.status = replace(self.status, progress=progress)
        return True

    def _count_beats(self) -> int:
        """Return the number of heartbeats known so far, and poll for more."""
        if self._call is None:
            self._call = self._handle.poll.remote()
        elif ray.wait([self._call], timeout=0)[0]:
            call, self._call = self._call, None
            with suppress(RayError):  # the reply to `stop` holds the error
                reply = ray.get(call)
                if isinstance(reply, LearnerStatus) and reply.progress is not None:
                    self._record(reply)
        return self.status.beats

    def close(self) -> None:
        """Kill the actor and remove its placement group."""
        ray.kill(self._handle)
        remove_placement_group(self._placement_group)
