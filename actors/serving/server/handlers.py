"""`Handlers`: the gRPC methods of the service."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import grpc
import structlog
from google.protobuf.message import Message

from actors.serving.messages import stream_answer
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
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._ready(request).start_step(request, answer, OWNER.get())
        response = await answer
        self._metrics.step_s.observe(time.perf_counter() - start)
        return response

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
            stream.ended = True


class _StepStream:
    """One call of StepStream: its steps in progress, and their answers in order of completion."""

    def __init__(self, handlers: Handlers, request_id: str) -> None:
        self.answers: asyncio.Queue[policy_pb2.StepStreamResponse | bytes | None] = asyncio.Queue()
        self.in_progress = 0  # steps
        self.read_all = self.ended = False  # all requests; or the call has ended, and nobody waits for answers
        self.drained = False  # whether the server has ended the stream
        largest = 1 if handlers.service is None else handlers.service.max_response_bytes
        self.capacity = asyncio.Semaphore(max(1, min(MAX_STREAM_STEPS, MAX_STREAM_BYTES // largest)))
        """Released when an answer is sent."""
        self.handlers, self._request_id = handlers, request_id

    async def read(self, requests: AsyncIterator[policy_pb2.StepStreamRequest | None]) -> None:
        """Start each step as it arrives. After the last one, the stream ends with the answer to the last step."""
        try:
            async for request in requests:
                await self.capacity.acquire()
                self._start(request)
        except asyncio.CancelledError:
            self.drained = True
        self.read_all = True
        self._end_if_idle()

    def answer(self, response: policy_pb2.StepStreamResponse | bytes) -> None:
        """Have the answer to a step in progress sent."""
        self.answers.put_nowait(response)
        self.in_progress -= 1
        self._end_if_idle()

    def failure(self, request: policy_pb2.StepRequest, error: BaseException) -> policy_pb2.StepStreamResponse:
        """Return the answer to a step that was refused or failed."""
        refusal = self.handlers._calls.refusal(error, "StepStream", self._request_id)
        failure = policy_pb2.StepFailure(
            code=refusal.code, reason=refusal.reason, message=refusal.message, metadata=refusal.metadata
        )
        return policy_pb2.StepStreamResponse(
            session_id=request.session_id, step_index=request.step_index, failure=failure
        )

    def _start(self, message: policy_pb2.StepStreamRequest | None) -> None:
        request = policy_pb2.StepRequest() if message is None else message.step
        step = _StreamStep(self, request)
        self.in_progress += 1
        try:
            self.handlers._ready(message).start_step(request, step, OWNER.get())
        except Refusal as refusal:
            step.set_exception(refusal)

    def _end_if_idle(self) -> None:
        if self.read_all and not self.in_progress:
            self.answers.put_nowait(None)


class _StreamStep:
    """Waits for a step of a stream, and puts its answer into the queue of the stream at once: a future would do so in
    the next turn of the event loop."""

    __slots__ = ("_request", "_start", "_stream")

    def __init__(self, stream: _StepStream, request: policy_pb2.StepRequest) -> None:
        self._stream, self._request, self._start = stream, request, time.perf_counter()

    def cancelled(self) -> bool:
        return self._stream.ended

    def set_result(self, response: bytes, /) -> None:
        self._stream.handlers._metrics.step_s.observe(time.perf_counter() - self._start)
        self._stream.answer(stream_answer(self._request.session_id, self._request.step_index, response))

    def set_exception(self, exception: Exception, /) -> None:
        self._stream.answer(self._stream.failure(self._request, exception))
