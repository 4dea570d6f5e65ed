"""`AsyncPolicyClient`: the asyncio client of a policy server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import grpc
import numpy as np
from numpy.typing import NDArray

from actors.serving.client.endpoint import METHODS, Endpoint
from actors.serving.client.episode import AsyncClientEpisode
from actors.serving.client.session import Answer, PolicyError
from actors.serving.client.session_protocol import Call, Operation, RetryBudget, SessionProtocol, retry_call
from actors.serving.client.step_stream import StepStream
from actors.types.actions import ActionMasks
from actors.types.spaces import Spaces
from actors.wire import policy_pb2


class AsyncPolicyClient:
    """Query a policy server from asyncio code.

        async with tamiyo.AsyncPolicyClient("127.0.0.1:50051") as client:
            session = await client.open(spaces)
            answer = await session.step(obs, blueprint_indices, masks)

    Retries and recovery are those of `PolicyClient`. The client belongs to one event loop.

    Args:
        target: Address of the server, host:port, or the addresses of several replicas: a list, or a string separated
            by commas. If one does not answer, the client tries the next.
        token: Bearer token.
        token_file: File with the bearer token; it is read at every call, so that the token can be replaced.
        tls: Connect with TLS and trust the default certificate authorities of gRPC.
        root_certificates: Connect with TLS and trust the certificates in this file (PEM).
        client_cert: Certificate of the client for mutual TLS (PEM).
        client_key: Private key of `client_cert` (PEM).
        deadline_s: Timeout of a step or open in seconds, retries included.
        attempt_s: Timeout of each attempt in seconds.
        stream: Send all steps over one bidirectional stream per server. This is faster with many sessions.
    """

    def __init__(
        self,
        target: str | Sequence[str],
        *,
        token: str = "",
        token_file: str | Path | None = None,
        tls: bool = False,
        root_certificates: str | Path | None = None,
        client_cert: str | Path | None = None,
        client_key: str | Path | None = None,
        deadline_s: float = 30.0,
        attempt_s: float = 10.0,
        stream: bool = False,
    ) -> None:
        self.endpoint = Endpoint.parse(
            target, token=token, token_file=token_file, tls=tls, root_certificates=root_certificates,
            client_cert=client_cert, client_key=client_key,
        )  # fmt: skip
        self.retry_budget, self.stream = RetryBudget(deadline_s, attempt_s), stream
        self._channels: dict[int, grpc.aio.Channel] = {}
        self._methods: dict[tuple[int, str], Callable[..., Any]] = {}
        self._streams: dict[int, StepStream] = {}
        self._spaces: Spaces | None = None  # of the server
        self._target = 0  # index of the address that was tried last

    async def __aenter__(self) -> AsyncPolicyClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def model(self) -> policy_pb2.GetModelResponse:
        """Return the served version, spaces and limits. Raises `PolicyError`."""
        response: policy_pb2.GetModelResponse = await self._perform(
            retry_call("GetModel", policy_pb2.GetModelRequest(), self.retry_budget)
        )
        return response

    async def open(self, spaces: Spaces, seed: int = 0, latest: bool = False, state: bytes = b"") -> AsyncSession:
        """Open a session; see `PolicyClient.open`. Raises `PolicyError`."""
        protocol = SessionProtocol(spaces, seed, latest, self.retry_budget, state)
        await self._perform(protocol.open())
        return AsyncSession(self, protocol)

    def episode(self, seed: int | None = None, spaces: Spaces | None = None) -> AsyncClientEpisode:
        """Begin an episode of your own environment that the server learns from; see `PolicyClient.episode`:

        async with client.episode() as episode:
            action = await episode.act(obs)
            episode.reward(reward)
        """

        async def prepare() -> SessionProtocol:
            if spaces is None and self._spaces is None:
                self._spaces = Spaces.from_json((await self.model()).spaces_json)
            wanted = spaces or self._spaces
            assert wanted is not None
            return SessionProtocol.training(wanted, seed, self.retry_budget)

        return AsyncClientEpisode(self._perform, prepare)

    async def close(self) -> None:
        """Close all connections. Open sessions expire at the server."""
        for stream in self._streams.values():
            stream.close()
        for channel in self._channels.values():
            await channel.close(None)
        self._streams.clear()
        self._channels.clear()
        self._methods.clear()

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
        index = (self._target + (1 if call.attempt else 0)) % len(self.endpoint.targets)
        try:
            if self.stream and isinstance(call.request, policy_pb2.StepRequest):
                return await self._stream(index).step(call.request, call.timeout_s)
            return await self._method(index, call.method)(
                call.request, timeout=call.timeout_s, metadata=self.endpoint.metadata()
            )
        except grpc.aio.AioRpcError as error:
            raise PolicyError.from_rpc_error(error) from error
        finally:
            self._target = index

    def _channel(self, index: int) -> grpc.aio.Channel:
        if index not in self._channels:
            self._channels[index] = self.endpoint.aio_channel(index)
        return self._channels[index]

    def _method(self, index: int, name: str) -> Callable[..., Any]:
        if (index, name) not in self._methods:
            self._methods[index, name] = self._channel(index).unary_unary(*METHODS[name])
        return self._methods[index, name]

    def _stream(self, index: int) -> StepStream:
        stream = self._streams.get(index)
        if stream is None or stream.ended:
            method: Any = self._channel(index).stream_stream(*METHODS["StepStream"])
            stream = self._streams[index] = StepStream(method(metadata=self.endpoint.metadata()))
        return stream


class AsyncSession:
    """A session of `AsyncPolicyClient`: `PolicySession` with coroutine methods."""

    def __init__(self, client: AsyncPolicyClient, protocol: SessionProtocol) -> None:
        self._client, self._protocol = client, protocol

    async def __aenter__(self) -> AsyncSession:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def policy_version(self) -> int:
        return self._protocol.policy_version

    @property
    def exported(self) -> bytes:
        return self._protocol.exported

    async def step(
        self,
        obs: NDArray[np.float32],
        blueprint_indices: NDArray[np.int64],
        masks: ActionMasks,
        deterministic: bool = True,
    ) -> Answer:
        answer: Answer = await self._client._perform(self._protocol.step(obs, blueprint_indices, masks, deterministic))
        return answer

    async def reset(self, seed: int = 0) -> None:
        await self._client._perform(self._protocol.reset(seed))

    async def close(self) -> None:
        await self._client._perform(self._protocol.close())
