"""`AsyncPolicyClient`: the asyncio client of a policy server."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import grpc
from numpy.typing import ArrayLike

from actors.serving.client.connection import Connection
from actors.serving.client.episode import AsyncClientEpisode
from actors.serving.client.operation import Call, Operation, get_model
from actors.serving.client.session_protocol import SessionProtocol, known_spaces
from actors.serving.client.step_stream import StepStream
from actors.serving.status import error_of_call
from actors.sessions.plain import Mask
from actors.sessions.session import Answer, PolicyError
from actors.types.spaces import Spaces
from actors.wire import policy_pb2


class AsyncPolicyClient(Connection):
    """Query a policy server from asyncio code.

        async with tamiyo.AsyncPolicyClient("127.0.0.1:50051") as client:
            session = await client.open()
            answer = await session.step(obs)

    Retries and recovery are those of `PolicyClient`. The client belongs to one event loop.

    Args:
        target: See `PolicyClient`, like the other options.
        stream: Send all steps over one bidirectional stream per server. This is faster with many sessions.
    """

    _grpc = grpc.aio

    def __init__(self, target: str | Sequence[str], *, stream: bool = False, **options: Any) -> None:
        super().__init__(target, **options)
        self.stream = stream
        self._streams: dict[int, StepStream] = {}  # by address

    async def __aenter__(self) -> AsyncPolicyClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def model(self) -> policy_pb2.GetModelResponse:
        """Return the served version, spaces and limits. Raises `PolicyError`."""
        response: policy_pb2.GetModelResponse = await self._perform(get_model(self.retry_budget))
        return response

    async def open(
        self, spaces: Spaces | None = None, seed: int = 0, latest: bool = False, state: bytes = b""
    ) -> AsyncSession:
        """Open a session; see `PolicyClient.open`. Raises `PolicyError`."""
        session = AsyncSession(self, await self._perform(known_spaces(self, spaces)), seed, latest, state)
        await self._perform(session.opening())
        return session

    def episode(self, seed: int | None = None, spaces: Spaces | None = None) -> AsyncClientEpisode:
        """Begin an episode of your own environment that the server learns from; see `PolicyClient.episode`:

        async with client.episode() as episode:
            action = await episode.act(obs)
            episode.reward(reward)
        """
        return AsyncClientEpisode(self, seed, spaces)

    async def close(self) -> None:
        """Close all connections. Open sessions expire at the server."""
        for stream in self._streams.values():
            stream.close()
        self._streams.clear()
        for channel in self._forget_channels():
            await channel.close(None)

    async def _perform(self, operation: Operation) -> Any:
        """Perform the calls of `operation` and return its result."""
        try:
            call = next(operation)
            while True:
                try:
                    response = await self._send(call)
                except PolicyError as error:
                    call = operation.throw(error)
                else:
                    call = operation.send(response)
        except StopIteration as end:
            return end.value

    async def _send(self, call: Call) -> Any:
        if call.pause_s:
            await asyncio.sleep(call.pause_s)
        stub = self._select(call)
        try:
            if self.stream and isinstance(call.request, policy_pb2.StepRequest):
                return await self._stream(stub).step(call.request, call.timeout_s)
            method = getattr(stub, call.method)
            return await method(call.request, timeout=call.timeout_s, metadata=self.metadata())
        except grpc.aio.AioRpcError as error:
            raise error_of_call(error) from error

    def _stream(self, stub: Any) -> StepStream:
        stream = self._streams.get(self._target)
        if stream is None or stream.ended:
            stream = self._streams[self._target] = StepStream(stub.StepStream(metadata=self.metadata()))
        return stream


class AsyncSession(SessionProtocol):
    """A session of `AsyncPolicyClient`: `PolicySession` with coroutine methods."""

    async def __aenter__(self) -> AsyncSession:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def step(
        self,
        obs: ArrayLike,
        blueprint_indices: ArrayLike = (),
        masks: Mask = None,
        deterministic: bool = True,
    ) -> Answer:
        answer: Answer = await self._perform(self.stepping(obs, blueprint_indices, masks, deterministic))
        return answer

    async def reset(self, seed: int = 0) -> None:
        await self._perform(self.resetting(seed))

    async def close(self) -> None:
        await self._perform(self.closing())
