"""When a batch runs: at once if all expected sessions have stepped, else after a wait."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any

import pytest
import torch

from actors.serving.messages import MessageLayout, parse_step, step_request
from actors.serving.server.batcher import BUSY_WAITS, RECENT_S, Batcher, BatchResult
from actors.serving.server.models import ModelVersions
from actors.serving.server.sessions import PendingStep, Session, StateTable
from tests.support.learning.toy import SPACES
from tests.support.serving.servers import step_inputs, weights

WAIT_S = 0.02
MODELS, LAYOUT = ModelVersions(weights(), torch.device("cpu")), MessageLayout(SPACES)


class BatcherHarness:
    """A batcher with sessions; `passes` lists (seconds since `start_s`, number of steps) of each forward pass."""

    def __init__(self, max_batch: int = 8) -> None:
        rows = StateTable(MODELS.state_sizes, 16, MODELS.device)
        self.batcher = Batcher(rows, lambda: MODELS.newest, self._finish, self._observe, max_batch, WAIT_S)
        self.sessions = [Session(str(i), rows.allocate(), LAYOUT, i, False) for i in range(16)]
        self.passes: list[tuple[float, int]] = []
        self.start_s = time.monotonic()

    def step(self, session: int) -> None:
        waiter: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        query = parse_step(step_request("s", 0, *step_inputs(session, 0), True, False), LAYOUT)
        self.batcher.submit(PendingStep(self.sessions[session], query, 0, b"", False, [waiter]))

    async def answered(self, *sessions: int) -> None:
        """Answer a step of these sessions, so that their next steps are expected."""
        for session in sessions:
            self.step(session)
        while self.batcher:
            await asyncio.sleep(0.001)
        self.passes.clear()
        self.start_s = time.monotonic()

    def _observe(self, steps: int, seconds: float) -> None:
        self.passes.append((time.monotonic() - self.start_s, steps))

    def _finish(self, entry: PendingStep, outcome: BatchResult | Exception, row: int) -> None:
        assert isinstance(outcome, BatchResult), outcome


def in_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        asyncio.run(test(*args, **kwargs))

    return run


@pytest.mark.parametrize("sessions", [(0,), (2, 0, 1)])
@in_loop
async def test_a_batch_runs_once_all_recently_answered_sessions_have_stepped(sessions: tuple[int, ...]) -> None:
    """A single session therefore never waits."""
    harness = BatcherHarness()
    await harness.answered(*sorted(sessions))
    for session in sessions:
        harness.step(session)
    await asyncio.sleep(WAIT_S / 2)
    assert [steps for _, steps in harness.passes] == [len(sessions)]


@in_loop
async def test_an_idle_loop_runs_an_incomplete_batch_after_the_wait() -> None:
    harness = BatcherHarness()
    await harness.answered(0, 1)
    harness.step(0)
    await asyncio.sleep((BUSY_WAITS + 2) * WAIT_S)
    ((taken_s, steps),) = harness.passes
    assert steps == 1
    assert WAIT_S <= taken_s < BUSY_WAITS * WAIT_S


@in_loop
async def test_sessions_that_step_rarely_are_not_waited_for() -> None:
    """Three sessions step every 50 ms, out of phase, as in a loop with a fixed rate."""
    harness = BatcherHarness()
    await harness.answered(0, 1, 2)
    for session in (0, 1, 2):
        harness.sessions[session].next_index = 1
    await asyncio.sleep(2 * RECENT_S)
    for session in (0, 1, 2, 0, 1, 2):
        sent_s = time.monotonic() - harness.start_s
        harness.step(session)
        await asyncio.sleep(RECENT_S)
        (taken_s, steps), *_ = harness.passes
        harness.passes.clear()
        assert steps == 1
        assert taken_s - sent_s < WAIT_S / 2


@pytest.mark.parametrize("count", [9, 16])
@in_loop
async def test_no_pass_exceeds_max_batch(count: int) -> None:
    harness = BatcherHarness(max_batch=8)
    for session in range(count):
        harness.step(session)
    while harness.batcher:
        await asyncio.sleep(0.001)
    assert sum(steps for _, steps in harness.passes) == count
    assert max(steps for _, steps in harness.passes) <= 8
