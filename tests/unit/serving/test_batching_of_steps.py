"""When a batch goes: at once where all have come who may be expected, else after a wait that a busy loop stretches."""

from __future__ import annotations

import asyncio
import time

import pytest
import torch

from actors.serving.messages import MessageLayout, parse_step, step_request
from actors.serving.server.batcher import BUSY_WAITS, Batcher, Decided, Entry
from actors.serving.server.models import Models
from actors.serving.server.sessions import Pending, Rows, Session
from tests.support.serving import seen, weights
from tests.support.toy import SPACES

WAIT_S = 0.02
MODELS, LAYOUT = Models(weights(), torch.device("cpu"), 2), MessageLayout(SPACES)


class Room:
    """A batcher and sessions that step through it; `passes` has (seconds since `start`, steps) of each."""

    def __init__(self, max_batch: int = 8) -> None:
        rows = Rows(MODELS.state_sizes, 16, MODELS.device)
        self.batcher = Batcher(rows, lambda: MODELS.newest, self._finish, self._observe, max_batch, WAIT_S)
        self.sessions = [Session(str(i), rows.take(), LAYOUT, i, None) for i in range(16)]
        self.passes: list[tuple[float, int]] = []
        self.start_s = time.monotonic()

    def step(self, session: int) -> None:
        waiter: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        query = parse_step(step_request("s", 0, *seen(session, 0), True, False), LAYOUT)
        self.batcher.submit(Entry(self.sessions[session], query, Pending(0, b"", False, [waiter])))

    async def answered(self, *sessions: int) -> None:
        """These have just been answered, so that their next steps are expected."""
        for session in sessions:
            self.step(session)
        while self.batcher:
            await asyncio.sleep(0.001)
        self.passes.clear()
        self.start_s = time.monotonic()

    def _observe(self, steps: int, seconds: float) -> None:
        self.passes.append((time.monotonic() - self.start_s, steps))

    def _finish(self, entry: Entry, outcome: Decided | Exception, row: int) -> None:
        assert isinstance(outcome, Decided), outcome


async def work(seconds: float) -> None:
    """Keep the loop's thread busy, in pieces between which others have their turn."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        piece = time.monotonic() + 0.002
        while time.monotonic() < piece:
            pass
        await asyncio.sleep(0)


def test_one_session_alone_never_waits() -> None:
    async def main() -> None:
        room = Room()
        await room.answered(0)
        room.step(0)
        await asyncio.sleep(WAIT_S / 2)
        assert [steps for _, steps in room.passes] == [1]

    asyncio.run(main())


def test_a_batch_goes_as_soon_as_all_have_come_who_were_answered_lately() -> None:
    async def main() -> None:
        room = Room()
        await room.answered(0, 1, 2)
        for session in (2, 0, 1):
            room.step(session)
        await asyncio.sleep(WAIT_S / 2)
        assert [steps for _, steps in room.passes] == [3]

    asyncio.run(main())


def test_an_idle_loop_decides_after_the_wait_for_those_who_came() -> None:
    async def main() -> None:
        room = Room()
        await room.answered(0, 1)
        room.step(0)
        await asyncio.sleep((BUSY_WAITS + 2) * WAIT_S)
        ((taken_s, steps),) = room.passes
        assert steps == 1
        assert WAIT_S <= taken_s < BUSY_WAITS * WAIT_S

    asyncio.run(main())


def test_a_busy_loop_goes_on_reading_so_that_a_late_step_shares_the_pass() -> None:
    async def main() -> None:
        room = Room()
        await room.answered(0, 1)
        room.step(0)
        await work(3 * WAIT_S)
        assert not room.passes
        room.step(1)
        await asyncio.sleep(WAIT_S)
        assert [steps for _, steps in room.passes] == [2]

    asyncio.run(main())


def test_even_a_busy_loop_does_not_put_it_off_for_ever() -> None:
    async def main() -> None:
        room = Room()
        await room.answered(0, 1)
        room.step(0)
        await work((BUSY_WAITS + 4) * WAIT_S)
        ((taken_s, steps),) = room.passes
        assert steps == 1
        assert taken_s >= BUSY_WAITS * WAIT_S

    asyncio.run(main())


@pytest.mark.parametrize("count", [9, 16])
def test_no_pass_has_more_than_the_largest_batch(count: int) -> None:
    async def main() -> None:
        room = Room(max_batch=8)
        for session in range(count):
            room.step(session)
        while room.batcher:
            await asyncio.sleep(0.001)
        assert sum(steps for _, steps in room.passes) == count
        assert max(steps for _, steps in room.passes) <= 8

    asyncio.run(main())
