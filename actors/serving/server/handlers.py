"""`Handlers`: the gRPC methods of the service."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import grpc
import structlog
from google.protobuf.message import Message

from actors.serving.methods import make_handler
from actors.serving.server.calls import Calls, Context, request_id_of
from actors.serving.server.credentials import OWNER
from actors.serving.server.metrics import ServingMetrics
from actors.serving.server.service import PolicyService
from actors.sessions.refusal import Reason, Refusal
from actors.wire import policy_pb2

MAX_STREAM_STEPS = 1024  # steps of one stream that are in progress or whose answers are not yet sent
MAX_STREAM_BYTES = 4 << 20  # size of the answers of these steps


class Handlers:
    """The methods of PolicyService. `service` is None until the first weights are loaded."""

    def __init__(self, calls: Calls, metrics: ServingMetrics) -> None:
        self.service: PolicyService | None = None
        self._calls, self._metrics = calls, metrics
        self._log = structlog.get_logger("tamiyo.serving")
        self.readers: set[asyncio.Task[None]] = set()
        """One for each stream; if it is cancelled, the stream accepts no more steps, and answers those in progress."""

    def generic_handler(self) -> grpc.GenericRpcHandler[Any, Any]:
        """Return the handler to register with a gRPC server."""
        behaviors = {
            "GetModel": self._get_model,
            "OpenSession": self._open_session,
            "ResetSession": self._reset_session,
            "CloseSession": self._close_session,
            "EndEpisode": self._end_episode,
            "Step": self._step,
            "StepStream": self._step_stream,
        }
        return make_handler({name: self._calls.guard(name, behavior) for name, behavior in behaviors.items()})

    def _ready(self, request: Message | None) -> PolicyService:
        """Return the service. Raises `Refusal` if the request is malformed (None) or no weights are loaded."""
        if request is None:
            raise Refusal(Reason.MALFORMED, "the request is not a message of tamiyo.v1")
        if self.service is None:
            raise Refusal(Reason.NOT_READY, "the server has not loaded any weights yet")
        return self.service

    async def _get_model(self, request: Any, context: Context) -> Message:
        service = self._ready(request)
        return service.models.describe(service.options)

    async def _open_session(self, request: Any, context: Context) -> Message:
        response = await self._ready(request).open_session(request, OWNER.get())
        self._log.info(
            "session opened", session=response.session_id[:6], policy_version=response.policy_version,
            imported=bool(request.exported_state), request_id=request_id_of(context), peer=context.peer(),
        )  # fmt: skip
        return response

    async def _reset_session(self, request: Any, context: Context) -> Message:
        return self._ready(request).reset_session(request, OWNER.get())

    async def _close_session(self, request: Any, context: Context) -> Message:
        response = self._ready(request).close_session(request, OWNER.get())
        self._log.info("session closed", session=request.session_id[:6], request_id=request_id_of(context))
        return response

    async def _end_episode(self, request: Any, context: Context) -> bytes:
        return self._ready(request).end_episode(request, OWNER.get())

    async def _step(self, request: Any, context: Context) -> bytes:
        start = time.perf_counter()
        answer = await self._ready(request).start_step(request, OWNER.get())
        self._metrics.step_s.observe(time.perf_counter() - start)
        return answer

    async def _step_stream(self, requests: Any, context: Context) -> None:
        stream = _StepStream(self, request_id_of(context))
        reader = asyncio.create_task(stream.read(requests))
        self.readers.add(reader)
        try:
            while (response := await stream.answers.get()) is not None:
                await context.write(response)
                stream.capacity.release()  # only after the write, which blocks if the client does not read
            if stream.drained:
                raise Refusal(Reason.DRAINING, "this server is shutting down: continue at another server")
        finally:
            self.readers.discard(reader)
            reader.cancel()
            for step in stream.steps:
                step.cancel()


class _StepStream:
    """One call of StepStream: its steps in progress, and their answers in order of completion."""

    def __init__(self, handlers: Handlers, request_id: str) -> None:
        self.answers: asyncio.Queue[policy_pb2.StepStreamResponse | None] = asyncio.Queue()
        self.steps: set[asyncio.Future[bytes]] = set()  # in progress
        self.drained = False  # whether the server has ended the stream
        largest = 1 if handlers.service is None else handlers.service.max_response_bytes
        self.capacity = asyncio.Semaphore(max(1, min(MAX_STREAM_STEPS, MAX_STREAM_BYTES // largest)))
        """Released when an answer is sent."""
        self._handlers, self._request_id = handlers, request_id

    async def read(self, requests: AsyncIterator[policy_pb2.StepStreamRequest | None]) -> None:
        """Start each step as it arrives. After the last one, wait for the steps in progress."""
        try:
            async for request in requests:
                await self.capacity.acquire()
                self._start(request)
        except asyncio.CancelledError:
            self.drained = True
        if self.steps:
            await asyncio.wait(self.steps)
        self.answers.put_nowait(None)

    def _start(self, message: policy_pb2.StepStreamRequest | None) -> None:
        request = policy_pb2.StepRequest() if message is None else message.step
        start = time.perf_counter()
        try:
            step = self._handlers._ready(message).start_step(request, OWNER.get())
        except Refusal as refusal:
            self._fail(request, refusal)
            return
        self.steps.add(step)
        step.add_done_callback(lambda done: self._answer(request, done, start))

    def _answer(self, request: policy_pb2.StepRequest, done: asyncio.Future[bytes], start: float) -> None:
        self.steps.discard(done)
        if done.cancelled():
            return
        error = done.exception()
        if error is not None:
            self._fail(request, error)
            return
        self._handlers._metrics.step_s.observe(time.perf_counter() - start)
        response = policy_pb2.StepStreamResponse(session_id=request.session_id, step_index=request.step_index)
        response.step.MergeFromString(done.result())
        self.answers.put_nowait(response)

    def _fail(self, request: policy_pb2.StepRequest, error: BaseException) -> None:
        refusal = self._handlers._calls.refusal(error, "StepStream", self._request_id)
        failure = policy_pb2.StepFailure(
            code=refusal.code, reason=refusal.reason, message=refusal.message, metadata=refusal.metadata
        )
        self.answers.put_nowait(
            policy_pb2.StepStreamResponse(session_id=request.session_id, step_index=request.step_index, failure=failure)
        )
