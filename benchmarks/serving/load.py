"""LoadResult on a server: sessions that step as fast as they are answered, or at a fixed pace."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import grpc
import numpy as np

from actors.serving.client.endpoint import METHODS
from actors.serving.messages import step_request
from actors.types.actions import ActionMasks
from actors.wire import policy_pb2
from benchmarks.serving.process import SPACES

CHANNELS = 4
Step = Callable[[], Awaitable[None]]


class LoadResult(NamedTuple):
    steps_per_s: float
    p50_ms: float
    p99_ms: float


class SteppingSession:
    """One session that steps over and over with the same observation."""

    def __init__(self, channel: grpc.aio.Channel, session: str, stream: bool, export: bool) -> None:
        rng = np.random.default_rng(0)
        spec = SPACES.action
        masks = ActionMasks(
            np.ones(spec.num_ops, dtype=np.bool_),
            np.ones((spec.num_ops, spec.num_slots), dtype=np.bool_),
            np.ones((spec.num_ops, spec.num_slots, spec.rest_size), dtype=np.bool_),
        )
        obs = rng.standard_normal(SPACES.obs_size).astype(np.float32)
        empty = np.full(SPACES.slots, -1)
        self._request = step_request(session, 0, obs, empty, masks, True, export)
        self._unary: Any = channel.unary_unary(*METHODS["Step"])
        self._stream: Any = channel.stream_stream(*METHODS["StepStream"])() if stream else None  # type: ignore[call-arg]

    async def step(self) -> None:
        if self._stream is None:
            await self._unary(self._request)
        else:
            await self._stream.write(policy_pb2.StepStreamRequest(step=self._request))
            response = await self._stream.read()
            if not response.HasField("step"):
                raise RuntimeError(f"a step failed: {response}")
        self._request.step_index += 1

    def end(self) -> None:
        if self._stream is not None:
            self._stream.cancel()


async def open_sessions(
    address: str, count: int, stream: bool, export: bool
) -> tuple[list[grpc.aio.Channel], list[SteppingSession]]:
    gc.freeze()  # the client's own stalls are not the server's
    channels = [
        grpc.aio.insecure_channel(address, [("grpc.use_local_subchannel_pool", 1)])
        for _ in range(min(CHANNELS, count))
    ]  # fmt: skip
    opening = policy_pb2.OpenSessionRequest(spaces_hash=SPACES.hash)
    found = []
    for i in range(count):
        channel: Any = channels[i % len(channels)]
        opened = await channel.unary_unary(*METHODS["OpenSession"])(opening)
        found.append(SteppingSession(channel, opened.session_id, stream, export))
    return channels, found


async def closed_loop(address: str, sessions: int, stream: bool, seconds: float, export: bool = False) -> LoadResult:
    """Every session steps again as soon as it is answered; the first fifth of the time is a warm-up."""
    channels, sessions_ = await open_sessions(address, sessions, stream, export)
    begin = time.perf_counter()
    start, end = begin + 0.2 * seconds, begin + 1.2 * seconds
    took: list[float] = []

    async def play(player: SteppingSession) -> None:
        while (before := time.perf_counter()) < end:
            await player.step()
            after = time.perf_counter()
            if before >= start:
                took.append(after - before)

    await asyncio.gather(*(play(p) for p in sessions_))
    await _end(channels, sessions_)
    return _load(took, seconds)


async def open_loop(address: str, sessions: int, pace_hz: float, stream: bool, seconds: float) -> LoadResult:
    """Every session steps at its pace, from random first moments; a late step counts from when it was due."""
    channels, sessions_ = await open_sessions(address, sessions, stream, export=False)
    rng = np.random.default_rng(1)
    begin = time.perf_counter() + 0.2
    took: list[float] = []

    async def play(player: SteppingSession, offset_s: float) -> None:
        for i in range(int(seconds * pace_hz)):
            due = begin + offset_s + i / pace_hz
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            await player.step()
            if i >= pace_hz * seconds * 0.1:
                took.append(time.perf_counter() - due)

    await asyncio.gather(*(play(p, o) for p, o in zip(sessions_, rng.random(sessions) / pace_hz, strict=True)))
    await _end(channels, sessions_)
    return _load(took, 0.9 * seconds)


async def _end(channels: list[grpc.aio.Channel], sessions_: list[SteppingSession]) -> None:
    for player in sessions_:
        player.end()
    for channel in channels:
        await channel.close(None)


def _load(took: list[float], seconds: float) -> LoadResult:
    p50, p99 = np.quantile(took, [0.5, 0.99]) * 1e3
    return LoadResult(len(took) / seconds, float(p50), float(p99))
