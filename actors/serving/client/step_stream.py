"""`StepStream`: the client's end of one bidirectional stream that all its sessions share."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc

from actors.serving.client.session import PolicyError
from actors.wire import policy_pb2

Key = tuple[str, int]


class StepStream:
    """`over` once the stream has ended, however it did; what was under way then fails as UNAVAILABLE."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._waiting: dict[Key, asyncio.Future[policy_pb2.StepResponse]] = {}
        self._writing = asyncio.Lock()
        self._reader = asyncio.create_task(self._read())

    @property
    def over(self) -> bool:
        return self._reader.done()

    async def step(self, request: policy_pb2.StepRequest, timeout_s: float) -> policy_pb2.StepResponse:
        """Raises `PolicyError`. One step of a session at a time."""
        waiter: asyncio.Future[policy_pb2.StepResponse] = asyncio.get_running_loop().create_future()
        key = (request.session_id, request.step_index)
        self._waiting[key] = waiter
        try:
            async with asyncio.timeout(timeout_s):
                async with self._writing:
                    await self._stream.write(policy_pb2.StepStreamRequest(step=request))
                return await waiter
        except TimeoutError as error:
            raise PolicyError(grpc.StatusCode.DEADLINE_EXCEEDED, f"no answer within {timeout_s:.1f} s") from error
        except (asyncio.InvalidStateError, grpc.aio.AioRpcError) as error:
            raise PolicyError(grpc.StatusCode.UNAVAILABLE, f"the stream of steps ended: {error}") from error
        finally:
            if self._waiting.get(key) is waiter:
                del self._waiting[key]

    def end(self) -> None:
        self._reader.cancel()
        self._stream.cancel()

    async def _read(self) -> None:
        reason = "the server ended the stream of steps"
        refused: PolicyError | None = None
        try:
            async for response in self._stream:
                waiter = self._waiting.get((response.session_id, response.step_index))
                if waiter is None or waiter.done():
                    continue
                if response.HasField("failure"):
                    waiter.set_exception(PolicyError.of_failure(response.failure))
                else:
                    waiter.set_result(response.step)
        except grpc.aio.AioRpcError as error:
            refused = PolicyError.of(error)
            reason = str(refused)
        finally:
            for waiter in self._waiting.values():
                if not waiter.done():
                    final = refused is not None and refused.code is grpc.StatusCode.UNAUTHENTICATED
                    code = grpc.StatusCode.UNAUTHENTICATED if final else grpc.StatusCode.UNAVAILABLE
                    waiter.set_exception(PolicyError(code, reason, refused.reason if refused else ""))
