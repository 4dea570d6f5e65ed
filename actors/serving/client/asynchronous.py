"""`AsyncPolicyClient`: the same as `PolicyClient` for asyncio, with all steps on one stream where `stream` says so."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import grpc
import numpy as np
from numpy.typing import NDArray

from actors.serving.client.endpoint import METHODS, Endpoint
from actors.serving.client.session import Answer, PolicyError
from actors.serving.client.session_protocol import Call, RetryBudget, SessionProtocol, Talk, call
from actors.serving.client.step_stream import StepStream
from actors.types.actions import ActionMasks
from actors.types.spaces import Spaces
from actors.wire import policy_pb2


class AsyncPolicyClient:
    """
    async with AsyncPolicyClient("127.0.0.1:50051") as client:
        session = await client.open(spaces)
        answer = await session.step(obs, blueprint_indices, masks)
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
        self.endpoint = Endpoint.of(
            target, token=token, token_file=token_file, tls=tls, root_certificates=root_certificates,
            client_cert=client_cert, client_key=client_key,
        )  # fmt: skip
        self.patience, self.stream = RetryBudget(deadline_s, attempt_s), stream
        self._channels: dict[int, grpc.aio.Channel] = {}
        self._methods: dict[tuple[int, str], Callable[..., Any]] = {}
        self._streams: dict[int, StepStream] = {}
        self._target = 0  # the one that answered last

    async def __aenter__(self) -> AsyncPolicyClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def model(self) -> policy_pb2.GetModelResponse:
        """What is served."""
        response: policy_pb2.GetModelResponse = await self.say(
            call("GetModel", policy_pb2.GetModelRequest(), self.patience)
        )
        return response

    async def open(self, spaces: Spaces, seed: int = 0, latest: bool = False, state: bytes = b"") -> AsyncSession:
        """Raises `PolicyError`."""
        conversation = SessionProtocol(spaces, seed, latest, self.patience, state)
        await self.say(conversation.open())
        return AsyncSession(self, conversation)

    async def close(self) -> None:
        for stream in self._streams.values():
            stream.end()
        for channel in self._channels.values():
            await channel.close(None)
        self._streams.clear()
        self._channels.clear()
        self._methods.clear()

    async def say(self, talk: Talk) -> Any:
        """Hold a conversation to its end."""
        try:
            wanted = next(talk)
            while True:
                try:
                    response = await self._ask(wanted)
                except PolicyError as error:
                    wanted = talk.throw(error)
                else:
                    wanted = talk.send(response)
        except StopIteration as end:
            return end.value

    async def _ask(self, wanted: Call) -> Any:
        if wanted.pause_s:
            await asyncio.sleep(wanted.pause_s)
        index = (self._target + (1 if wanted.attempt else 0)) % len(self.endpoint.targets)
        try:
            if self.stream and isinstance(wanted.request, policy_pb2.StepRequest):
                return await self._stream(index).step(wanted.request, wanted.timeout_s)
            return await self._method(index, wanted.method)(
                wanted.request, timeout=wanted.timeout_s, metadata=self.endpoint.metadata()
            )
        except grpc.aio.AioRpcError as error:
            raise PolicyError.of(error) from error
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
        if stream is None or stream.over:
            start: Any = self._channel(index).stream_stream(*METHODS["StepStream"])
            stream = self._streams[index] = StepStream(start(metadata=self.endpoint.metadata()))
        return stream


class AsyncSession:
    """`PolicySession`, awaited."""

    def __init__(self, client: AsyncPolicyClient, conversation: SessionProtocol) -> None:
        self._client, self._conversation = client, conversation

    async def __aenter__(self) -> AsyncSession:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def policy_version(self) -> int:
        return self._conversation.policy_version

    @property
    def exported(self) -> bytes:
        return self._conversation.exported

    async def step(
        self,
        obs: NDArray[np.float32],
        blueprint_indices: NDArray[np.int64],
        masks: ActionMasks,
        deterministic: bool = True,
    ) -> Answer:
        answer: Answer = await self._client.say(self._conversation.step(obs, blueprint_indices, masks, deterministic))
        return answer

    async def reset(self, seed: int = 0) -> None:
        await self._client.say(self._conversation.reset(seed))

    async def close(self) -> None:
        await self._client.say(self._conversation.close())
