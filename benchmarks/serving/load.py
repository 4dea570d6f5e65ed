"""Generate load on a server: a closed loop (step again after each answer) or an open loop (fixed rate)."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import cycle, islice
from typing import Any, NamedTuple

import grpc
import numpy as np

from actors.serving.messages import step_request
from actors.serving.methods import make_stub
from actors.types.actions import ActionMasks
from actors.wire import policy_pb2
from benchmarks.serving.process import SPACES

CHANNELS = 4


class LoadResult(NamedTuple):
    """Throughput, and quantiles of the latency."""

    steps_per_s: float
    p50_ms: float
    p99_ms: float


class SteppingSession:
    """A session that repeats steps with the same observation."""

    def __init__(self, channel: grpc.aio.Channel, session: str, stream: bool) -> None:
        masks = ActionMasks(*(of_one[0] for of_one in ActionMasks.all_legal(SPACES.action, 1)))
        obs = np.random.default_rng(0).standard_normal(SPACES.obs_size).astype(np.float32)
        empty = np.full(SPACES.slots, -1)
        self._request = step_request(session, 0, obs, empty, masks, True, False)
        self._unary: Any = make_stub(channel).Step
        self._stream: Any = make_stub(channel).StepStream() if stream else None  # type: ignore[call-arg]

    async def step(self) -> None:
        if self._stream is None:
            await self._unary(self._request)
        else:
            await self._stream.write(policy_pb2.StepStreamRequest(step=self._request))
            response = await self._stream.read()
            if not response.HasField("step"):
                raise RuntimeError(f"a step failed: {response}")
        self._request.step_index += 1

    def close(self) -> None:
        if self._stream is not None:
            self._stream.cancel()


@asynccontextmanager
async def _sessions(address: str, count: int, stream: bool) -> AsyncIterator[list[SteppingSession]]:
    """Open `count` sessions, spread over `CHANNELS` connections, during an `async with` block."""
    gc.freeze()  # so that pauses of the client do not count as latency of the server
    opening, options = policy_pb2.OpenSessionRequest(spaces_hash=SPACES.hash), [("grpc.use_local_subchannel_pool", 1)]
    async with AsyncExitStack() as stack:
        connections = [grpc.aio.insecure_channel(address, options) for _ in range(min(CHANNELS, count))]
        channels: list[Any] = [await stack.enter_async_context(connection) for connection in connections]
        sessions = []
        for channel in islice(cycle(channels), count):
            opened = await make_stub(channel).OpenSession(opening)
            sessions.append(SteppingSession(channel, opened.session_id, stream))
        yield sessions
        for session in sessions:
            session.close()


async def closed_loop(address: str, count: int, stream: bool, seconds: float) -> LoadResult:
    """Step every session again as soon as it is answered. A warm-up of `0.2 * seconds` is not measured."""
    latencies_s: list[float] = []

    async def step_repeatedly(session: SteppingSession) -> None:
        while (before := time.perf_counter()) < end:
            await session.step()
            after = time.perf_counter()
            if before >= start:
                latencies_s.append(after - before)

    async with _sessions(address, count, stream) as sessions:
        begin = time.perf_counter()
        start, end = begin + 0.2 * seconds, begin + 1.2 * seconds
        await asyncio.gather(*map(step_repeatedly, sessions))
    return _result(latencies_s, seconds)


async def open_loop(address: str, count: int, pace_hz: float, stream: bool, seconds: float) -> LoadResult:
    """Step every session `pace_hz` times per second, from random start times. The latency of a step counts from the
    time at which it was due. The first tenth is not measured."""
    latencies_s: list[float] = []

    async def step_repeatedly(session: SteppingSession, offset_s: float) -> None:
        for i in range(int(seconds * pace_hz)):
            due = begin + offset_s + i / pace_hz
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            await session.step()
            if i >= pace_hz * seconds * 0.1:
                latencies_s.append(time.perf_counter() - due)

    async with _sessions(address, count, stream) as sessions:
        offsets_s = np.random.default_rng(1).random(count) / pace_hz
        begin = time.perf_counter() + 0.2
        await asyncio.gather(*map(step_repeatedly, sessions, offsets_s))
    return _result(latencies_s, 0.9 * seconds)


def _result(latencies_s: list[float], seconds: float) -> LoadResult:
    p50, p99 = np.quantile(latencies_s, [0.5, 0.99]) * 1e3
    return LoadResult(len(latencies_s) / seconds, float(p50), float(p99))
