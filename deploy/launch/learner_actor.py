"""`LearnerActor`: the learner as a Ray actor in a place of its own, started again whenever it dies."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import ray
from ray.exceptions import ActorUnavailableError, RayActorError, RayError, RayTaskError
from ray.util import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from actors.errors import UserError
from actors.heartbeat import StallTimer
from actors.transport.backoff import Backoff
from actors.transport.base import Fenced
from actors.workers.process_handle import ProcessHandle
from actors.workers.ray_worker import limit_threads
from actors.workers.worker_pool import last_line
from deploy.launch.process_settings import learner_report
from deploy.launch.stopping import has_ended
from learner.checkpoint import LearnerProgress
from learner.service import LearnerService, LearnerSettings, LearnerStatus

MAX_FAILURES = 5  # errors in a row without an update between them, before they count as a fault of code
LOOK_S = 0.25  # between looks at it
KILL_S = 2.0  # for its machine to end a process that was told to stop and hangs


class LearnerActor:
    """`tick` returns at once and says how the learner is; a death is noted, counted, and followed by a new start from
    the newest checkpoint, after a wait that grows while it keeps dying."""

    def __init__(self, settings: LearnerSettings, gpus: float, note: Callable[[str], None]) -> None:
        self._note = note
        self._run_dir, self._max_seconds = settings.run_dir, settings.config.max_seconds
        self._bundle = placement_group([{"CPU": 1, "GPU": gpus} if gpus else {"CPU": 1}], strategy="STRICT_PACK")
        remote: Any = ray.remote(
            num_cpus=1,
            num_gpus=gpus,
            max_restarts=-1,
            max_task_retries=0,
            scheduling_strategy=PlacementGroupSchedulingStrategy(self._bundle),
            runtime_env={"env_vars": limit_threads()},
        )(LearnerService)
        report = partial(learner_report, settings.namespace)
        self._handle = remote.options(max_concurrency=2).remote(settings, report)  # polled while it starts
        self._call: Any = None
        self._starting = True  # the next call is `start`
        self.up = False  # has its place, and learns
        self._place: ProcessHandle | None = None  # of its process
        self._look_at_s = 0.0
        self._hang_s, self._still, self._beats = settings.config.hang_s, StallTimer(), -1
        self._backoff = Backoff()
        self._updates_at_failure = -1
        self.began_s: float | None = None  # when it was up for the first time: from then on `max_seconds` count
        self.status = LearnerStatus(LearnerProgress(), False)
        self.restarts = 0

    def tick(self) -> LearnerStatus:
        """Raises `UserError` for what starting again cannot mend."""
        self.status = replace(self.status, new_metrics=[], new_notes=[])
        now = time.monotonic()
        still_s = self._still.poll()
        if self._call is None and self._backoff.due and now >= self._look_at_s:
            self._look_at_s = now + LOOK_S
            start = self._handle.start
            self._call = (
                start.remote(self._remaining_s(), ProcessHandle.here) if self._starting else self._handle.poll.remote()
            )
        if self._call is not None and ray.wait([self._call], timeout=0)[0]:
            call, self._call = self._call, None
            self._hear(call)
        elif self.up and still_s > self._hang_s:
            self._kill(f"the learner has hung for {self._hang_s:g} s")
        return self.status

    def _hear(self, call: Any) -> None:
        try:
            reply: LearnerStatus | ProcessHandle = ray.get(call)
        except ActorUnavailableError:
            self._lost("its process is gone")
        except RayActorError as error:
            self._lost(last_line(error))
        except RayTaskError as error:
            self._failed(error)
        else:
            if isinstance(reply, ProcessHandle):
                self._place, self._starting, self.up = reply, False, True
                self._still = StallTimer()
                self.began_s = self.began_s or time.monotonic()
            elif reply.progress is None:
                self._lost("its process is gone")
            else:
                self._told(reply)

    def _told(self, status: LearnerStatus) -> None:
        assert status.progress is not None
        if status.done or status.beats != self._beats:
            self._beats = status.beats
            self._still.progressed()
        if status.progress.update > max(0, self._updates_at_failure) and status.new_metrics:
            self._backoff.succeed()
        self.status = status

    def _lost(self, reason: str) -> None:
        if self.up:
            self.up = False
            self.restarts += 1
            self._backoff.fail()
            self._note(f"the learner died ({reason}); it goes on from its newest checkpoint")
        self._starting = True

    def _failed(self, error: RayTaskError) -> None:
        cause = error.cause
        if isinstance(cause, UserError):
            raise UserError(str(cause)) from error
        if isinstance(cause, Fenced):
            raise UserError(
                f"another learner took over this run's queue ({cause}): give this run a --run.name of its own"
            ) from error
        update = self.status.progress.update if self.status.progress else 0
        if update > self._updates_at_failure:
            self._backoff.succeed()
        self._updates_at_failure = update
        self._backoff.fail()
        if self._backoff.failures >= MAX_FAILURES:
            raise UserError(
                f"the learner failed {MAX_FAILURES} times in a row without an update ({last_line(error)}): "
                f"starting again does not mend that; its checkpoints are in {self._run_dir}"
            ) from error
        self._kill(f"the learner failed ({last_line(error)})")

    def _kill(self, reason: str) -> None:
        self._note(f"{reason}; it is started again from its newest checkpoint")
        ray.kill(self._handle, no_restart=False)
        if self._place is not None:
            self._place.kill()
            self._place = None
        self.restarts += 1
        self._call, self.up, self._starting = None, False, True

    def _remaining_s(self) -> float | None:
        if self.began_s is None or self._max_seconds is None:
            return None
        return max(0.1, self.began_s + self._max_seconds - time.monotonic())

    def stop(self, at_once: Callable[[], bool] = lambda: False) -> bool:
        """Let it write its checkpoint and end. One that makes no progress is killed, and so is any `at_once`.

        Returns whether it wrote a last checkpoint: one that was killed or is dead already leaves an earlier one.
        """
        self.status = replace(self.status, new_metrics=[], new_notes=[])
        call = self._handle.stop.remote()

        def wait(timeout_s: float) -> bool:
            return bool(ray.wait([call], timeout=timeout_s)[0])

        slowest_s = min(self._still.longest_s, self._hang_s / 2)
        if not has_ended(wait, self._beats_while_stopping, slowest_s, at_once):
            self._note("the learner was told to stop and did not: it is killed")
            ray.kill(self._handle)
            if self._place is not None:
                self._place.kill(KILL_S)
            self.up = False
            return False
        try:
            progress = ray.get(call)
        except RayActorError:
            return False
        except RayTaskError as error:
            if isinstance(error.cause, UserError):
                raise UserError(str(error.cause)) from error
            raise UserError(f"the learner failed ({last_line(error)}); go on with --resume {self._run_dir}") from error
        if self.up:
            self.status = replace(self.status, progress=progress)
        return True

    def _beats_while_stopping(self) -> int:
        """Its signs of progress as far as they are known; asks for more."""
        if self._call is None:
            self._call = self._handle.poll.remote()
        elif ray.wait([self._call], timeout=0)[0]:
            call, self._call = self._call, None
            with suppress(RayError):  # the answer to `stop` says what is wrong
                reply = ray.get(call)
                if isinstance(reply, LearnerStatus) and reply.progress is not None:
                    metrics, notes = self.status.new_metrics, self.status.new_notes
                    self._told(reply)
                    self.status = replace(
                        reply, new_metrics=metrics + reply.new_metrics, new_notes=notes + reply.new_notes
                    )
        return self._beats

    def close(self) -> None:
        ray.kill(self._handle)
        remove_placement_group(self._bundle)
