"""`AsyncPolicyClient`: the asyncio client of a policy server."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import grpc
from google.protobuf.message import Message

from actors.serving.client.connection import Connection
from actors.serving.client.episode import AsyncClientEpisode
from actors.serving.client.session_protocol import SessionProtocol
from actors.serving.status import error_of_call, error_of_step
from actors.sessions.refusal import Code
from actors.sessions.session import PolicyError
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
        return await self.describe()

    async def open(
        self, spaces: Spaces | None = None, seed: int = 0, latest: bool = False, state: bytes = b""
    ) -> AsyncSession:
        """Open a session; see `PolicyClient.open`. Raises `PolicyError`."""
        session = AsyncSession(self, spaces, seed, latest, state)
        await session.opening()
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

    async def _pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def _send(self, stub: Any, method: str, request: Message, timeout_s: float) -> Any:
        try:
            if self.stream and isinstance(request, policy_pb2.StepRequest):
                return await self._stream(stub).step(request, timeout_s)
            return await getattr(stub, method)(request, timeout=timeout_s, metadata=self.metadata())
        except grpc.aio.AioRpcError as error:
            raise error_of_call(error) from error

    def _stream(self, stub: Any) -> StepStream:
        stream = self._streams.get(self._target)
        if stream is None or stream.ended:
            stream = self._streams[self._target] = StepStream(stub.StepStream(metadata=self.metadata()))
        return stream


class AsyncSession(SessionProtocol):
    """A session of `AsyncPolicyClient`: `PolicySession` with coroutine methods."""

    step, reset, close = SessionProtocol.stepping, SessionProtocol.resetting, SessionProtocol.closing

    async def __aenter__(self) -> AsyncSession:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class StepStream:
    """Match requests and responses of a stream. When the stream ends, pending steps fail with UNAVAILABLE, or with
    UNAUTHENTICATED if the token was refused."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._pending: dict[tuple[str, int], asyncio.Future[policy_pb2.StepResponse]] = {}  # by session id and index
        self._write_lock = asyncio.Lock()
        self._reader = asyncio.create_task(self._read())
        self._outdated = False

    @property
    def ended(self) -> bool:
        """Whether further steps need another stream: this one has ended, or its server did not know a session. That is
        opened again by another call, which may lead to another server than this stream."""
        return self._outdated or self._reader.done()

    async def step(self, request: policy_pb2.StepRequest, timeout_s: float) -> policy_pb2.StepResponse:
        """Send a step and await its response. A session may have one pending step. Raises `PolicyError`."""
        waiter: asyncio.Future[policy_pb2.StepResponse] = asyncio.get_running_loop().create_future()
        key = (request.session_id, request.step_index)
        self._pending[key] = waiter
        try:
            async with asyncio.timeout(timeout_s):
                async with self._write_lock:
                    await self._stream.write(policy_pb2.StepStreamRequest(step=request))
                return await waiter
        except TimeoutError as error:
            raise PolicyError(Code.DEADLINE_EXCEEDED, f"no answer within {timeout_s:.1f} s") from error
        except (asyncio.InvalidStateError, grpc.aio.AioRpcError) as error:
            raise PolicyError(Code.UNAVAILABLE, f"the step stream ended: {error}") from error
        finally:
            if self._pending.get(key) is waiter:
                del self._pending[key]
            if self._outdated and not self._pending:
                self.close()

    def close(self) -> None:
        """Cancel the stream."""
        self._reader.cancel()
        self._stream.cancel()

    async def _read(self) -> None:
        error = PolicyError(Code.UNAVAILABLE, "the server ended the step stream")
        try:
            async for response in self._stream:
                waiter = self._pending.get((response.session_id, response.step_index))
                if waiter is None or waiter.done():
                    continue
                if response.HasField("failure"):
                    failure = error_of_step(response.failure)
                    self._outdated |= failure.import_required
                    waiter.set_exception(failure)
                else:
                    waiter.set_result(response.step)
        except grpc.aio.AioRpcError as raised:
            ended = error_of_call(raised)
            code = ended.code if ended.code is Code.UNAUTHENTICATED else Code.UNAVAILABLE
            error = PolicyError(code, str(ended), ended.reason)
        finally:
            for waiter in self._pending.values():
                if not waiter.done():
                    waiter.set_exception(error)
