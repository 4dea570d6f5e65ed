"""`Batcher`: runs the steps of many sessions in one forward pass.

A batch runs as soon as one of these holds: it has a step of every session that is expected, it is full, or `max_wait_s`
have passed since its first step. A session is expected for `RECENT_S` after an answer if its last step also followed
the answer before it that quickly: a session that steps twenty times per second will not come within milliseconds, and
waiting for it would only delay the others. A single session therefore never waits.

On a busy event loop, further requests are probably waiting to be read. A large batch costs little more than a small
one, and small batches would make a loaded server fall further behind. So where no session is expected, a batch waits
all the same if the loop was busy for more than `LOADED` of the last milliseconds; and if it was busy for more than
`BUSY` of a wait, the wait is extended to at most `BUSY_WAITS` times its length.

The forward pass runs in the thread of the event loop: on a CPU it takes less than a handover to another thread, or a
few milliseconds if the batch is large.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch

from actors.policy.distribution import has_median, median_noise, next_hazard
from actors.policy.state import PolicyState
from actors.rng import Purpose, stream
from actors.serving.messages import MessageLayout, StepBatch, make_step_batch
from actors.serving.server.models import ServedModel
from actors.serving.server.sessions import PendingStep, Session
from actors.serving.server.training import StepRecord, as_fleet_step
from actors.sessions.session import SERVING_SEED, step_noise

MAX_BATCH = 256  # steps
MAX_WAIT_S = 0.003
RECENT_S = 0.02  # a session that steps again within this time of an answer is expected to do so after the next one
BUSY_WAITS = 8  # bound of an extended wait, in units of max_wait_s
BUSY = 0.4  # CPU time of the thread over elapsed time, above which a wait is extended
LOADED = 0.7  # the same over the last `LOAD_S`, above which a batch waits although no session is expected
LOAD_S = 0.005
RECHECK_S = 0.0005  # between two checks of an extended wait


class BatchResult(NamedTuple):
    """The decisions of N steps."""

    actions: list[list[int]]  # [N, H]
    log_probs: list[list[float]]  # [N, H]
    values: list[float]  # [N]
    model: ServedModel
    record: StepRecord | None  # if the batch has steps of training sessions


class Batcher:
    """Collect steps and run them in batches.

    `finish` is called for every step with its outcome: a `BatchResult` and the step's row in it, or the refusal or
    error (with row 0). `observe` is called for every forward pass with its number of steps and its seconds.
    """

    def __init__(
        self,
        states: PolicyState,
        newest: Callable[[], ServedModel],
        finish: Callable[[PendingStep, BatchResult | Exception, int], None],
        observe: Callable[[int, float], None],
    ) -> None:
        self._states, self._newest, self._finish, self._observe = states, newest, finish, observe
        self._waiting: list[PendingStep] = []
        self._timer: asyncio.Handle | None = None
        self._first_s = self._worked_s = 0.0  # arrival of the first waiting step: wall clock, CPU time of the thread
        self._loaded = False
        self._load_from = (time.monotonic(), time.thread_time())  # where the current measurement of the load began
        self._answered: deque[tuple[float, Session]] = deque()
        self._expected = 0  # sessions in `_answered`, each counted once

    def submit(self, step: PendingStep) -> None:
        """Add a step to the next batch."""
        self._waiting.append(step)
        now, session = time.monotonic(), step.session
        session.quick = not session.next_index or now - session.last_answered_s <= RECENT_S
        self._discard_old_answers(now)
        self._measure_load(now)
        loop, count = asyncio.get_running_loop(), len(self._waiting)
        if count >= min(self._expected or MAX_BATCH, MAX_BATCH):
            self.flush()
        elif self._timer is None:
            self._first_s, self._worked_s = now, time.thread_time()
            if self._expected or self._loaded:
                self._timer = loop.call_later(MAX_WAIT_S, self._on_timer)
            else:  # with the requests that were read at the same time
                self._timer = loop.call_soon(self.flush)

    def _measure_load(self, now: float) -> None:
        began, worked = self._load_from
        if now - began >= LOAD_S:
            self._load_from = now, time.thread_time()
            self._loaded = self._load_from[1] - worked > LOADED * (now - began)

    def _on_timer(self) -> None:
        waited_s, worked_s = time.monotonic() - self._first_s, time.thread_time() - self._worked_s
        if worked_s > BUSY * waited_s and waited_s < BUSY_WAITS * MAX_WAIT_S:
            self._timer = asyncio.get_running_loop().call_later(RECHECK_S, self._on_timer)
        else:
            self.flush()

    def flush(self) -> None:
        """Run a batch now, of at most `MAX_BATCH` steps."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        batch, self._waiting = self._waiting[:MAX_BATCH], self._waiting[MAX_BATCH:]
        if self._waiting:
            self._timer = asyncio.get_running_loop().call_soon(self.flush)
        self._run(batch)
        now = time.monotonic()
        self._discard_old_answers(now)
        for step in batch:
            self._record_answer(step.session, now)

    def _record_answer(self, session: Session, now: float) -> None:
        if session.quick:
            self._expected += session.expected_s <= now - RECENT_S
            session.expected_s = now
            self._answered.append((now, session))
        session.last_answered_s = now

    def _discard_old_answers(self, now: float) -> None:
        while self._answered and self._answered[0][0] <= now - RECENT_S:
            answered_s, session = self._answered.popleft()
            self._expected -= session.expected_s == answered_s

    def _run(self, batch: Sequence[PendingStep]) -> None:
        """Run one forward pass per model and spaces. Steps whose clients have all cancelled are dropped."""
        groups = defaultdict[tuple[ServedModel, MessageLayout], list[PendingStep]](list)
        newest = self._newest()
        for step in batch:
            session = step.session
            if step.abandoned():
                session.pending = None
                continue
            groups[session.pinned or newest, session.layout].append(step)
        for (model, layout), steps in groups.items():
            start = time.perf_counter()
            try:
                self._run_group(model, layout, steps)
            except Exception as error:  # reported to the clients of these steps
                for step in steps:
                    self._finish(step, error, 0)
            self._observe(len(steps), time.perf_counter() - start)

    def _run_group(self, model: ServedModel, layout: MessageLayout, steps: list[PendingStep]) -> None:
        batch = make_step_batch([step.query for step in steps], layout)
        if any(batch.refusals):
            for step, refusal in zip(steps, batch.refusals, strict=True):
                if refusal is not None:
                    self._finish(step, refusal, 0)
            steps = [step for step, refusal in zip(steps, batch.refusals, strict=True) if refusal is None]
            if not steps:
                return
            batch = make_step_batch([step.query for step in steps], layout)
        result = self._forward(model, layout, steps, batch)
        for i, step in enumerate(steps):
            self._finish(step, result, i)

    def _forward(
        self, model: ServedModel, layout: MessageLayout, steps: list[PendingStep], batch: StepBatch
    ) -> BatchResult:
        given = batch.obs, batch.blueprint_indices, batch.masks
        program, states = model.program(layout.spaces), self._states
        rows = np.array([step.session.row for step in steps])
        deterministic = np.array([step.query.deterministic for step in steps])
        heads, hazard = len(layout.spaces.action.heads), np.array([step.session.hazard for step in steps])
        medians = has_median(layout.spaces)
        noise, greedy = median_noise(hazard, heads), deterministic & (not medians)
        for i in map(int, np.flatnonzero(~deterministic)):
            noise[i] = step_noise(steps[i].session.seed, steps[i].request.step_index, heads)
        recording = any(step.session.training is not None for step in steps)
        before = states.rows(torch.from_numpy(rows).to(states.h.device)) if recording else None
        decision = program.run(*given, states, rows, noise, greedy)
        if medians:
            hazard = next_hazard(hazard, decision.actions, decision.log_probs)
            for step, value in zip(steps, hazard.tolist(), strict=True):
                step.session.hazard = value
        record = None if before is None else StepRecord(as_fleet_step(batch), decision, before, model)
        actions, log_probs, values = (a.tolist() for a in (decision.actions, decision.log_probs, decision.values))
        return BatchResult(actions, log_probs, values, model, record)

    def bootstrap_value(self, session: Session, model: ServedModel, batch: StepBatch) -> float:
        """Return the value of a final observation, given the state after the session's last step."""
        spaces, row, sampled = session.layout.spaces, np.array([session.row]), np.zeros(1, np.bool_)
        noise = stream(SERVING_SEED, session.seed, Purpose.BOOTSTRAP).random(len(spaces.action.heads))[None]
        given = batch.obs, batch.blueprint_indices, batch.masks
        decision = model.program(spaces).run(*given, self._states, row, noise, sampled, keep=False)
        return float(decision.bootstrap_values[0])
