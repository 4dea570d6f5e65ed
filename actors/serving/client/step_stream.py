"""`StepStream`: one bidirectional stream that carries the steps of all sessions of a client."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc

from actors.serving.status import error_of_call, error_of_step
from actors.sessions.refusal import Code
from actors.sessions.session import PolicyError
from actors.wire import policy_pb2

Key = tuple[str, int]  # session id, step index


class StepStream:
    """Match requests and responses of a stream. When the stream ends, pending steps fail with UNAVAILABLE, or with
    UNAUTHENTICATED if the token was refused."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._pending: dict[Key, asyncio.Future[policy_pb2.StepResponse]] = {}
        self._write_lock = asyncio.Lock()
        self._reader = asyncio.create_task(self._read())

    @property
    def ended(self) -> bool:
        """Whether the stream has ended, for whatever reason."""
        return self._reader.done()

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
                    waiter.set_exception(error_of_step(response.failure))
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
