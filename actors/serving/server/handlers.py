"""`Handlers`: the gRPC methods of the service. Every refusal is sent as a status, logged and counted."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Protocol, TypeVar

import grpc
import structlog
from google.protobuf.message import DecodeError, Message

from actors.serving.server.credentials import OWNER
from actors.serving.server.metrics import ServingMetrics
from actors.serving.server.service import PolicyService
from actors.serving.status import abort
from actors.sessions.refusal import Reason, Refusal
from actors.wire import policy_pb2

SERVICE = policy_pb2.DESCRIPTOR.services_by_name["PolicyService"].full_name
REQUEST_ID = "x-request-id"
MAX_STREAM_STEPS = 1024  # steps of one stream that are in progress or whose answers are not yet sent
MAX_STREAM_BYTES = 4 << 20  # size of the answers of these steps

Context = grpc.aio.ServicerContext[Any, Any]
M = TypeVar("M", bound=Message, covariant=True)


class _MessageType(Protocol[M]):
    def FromString(self, data: bytes) -> M: ...


Respond = Callable[[PolicyService, Any, Context], Awaitable[Message | bytes]]


class Handlers:
    """The methods of PolicyService. `service` is None until the first weights are loaded."""

    def __init__(self, metrics: ServingMetrics) -> None:
        self.service: PolicyService | None = None
        self.calls = 0  # in progress
        self._metrics = metrics
        self._log = structlog.get_logger("tamiyo.serving")
        self._readers: set[asyncio.Task[None]] = set()

    def generic_handler(self) -> grpc.GenericRpcHandler[Any, Any]:
        """Return the handler to register with a gRPC server."""
        methods = {
            "GetModel": self._unary("GetModel", policy_pb2.GetModelRequest, self._get_model),
            "OpenSession": self._unary("OpenSession", policy_pb2.OpenSessionRequest, self._open),
            "ResetSession": self._unary("ResetSession", policy_pb2.ResetSessionRequest, self._reset),
            "CloseSession": self._unary("CloseSession", policy_pb2.CloseSessionRequest, self._close),
            "EndEpisode": self._unary("EndEpisode", policy_pb2.EndEpisodeRequest, self._end_episode),
            "Step": self._unary("Step", policy_pb2.StepRequest, self._step),
            "StepStream": grpc.stream_stream_rpc_method_handler(
                self._step_stream, _parser(policy_pb2.StepStreamRequest), _serialize
            ),
        }
        return grpc.method_handlers_generic_handler(SERVICE, methods)

    def end_streams(self) -> None:
        """End all streams: they accept no more steps, and answer those in progress."""
        for reader in self._readers:
            reader.cancel()

    def record_refusal(self, refusal: Refusal, method: str, request_id: str = "") -> None:
        """Count and log a refusal."""
        self._metrics.refusals.labels(refusal.reason).inc()
        self._log.info(
            "refused", method=method, code=refusal.code.name, reason=refusal.reason.value, message=refusal.message,
            request_id=request_id or uuid.uuid4().hex,
        )  # fmt: skip

    def _ready(self, request: Message | None) -> PolicyService:
        """Return the service. Raises `Refusal` if the request is malformed (None) or no weights are loaded."""
        if request is None:
            raise Refusal(Reason.MALFORMED, "the request is not a message of tamiyo.v1")
        if self.service is None:
            raise Refusal(Reason.NOT_READY, "the server has not loaded any weights yet")
        return self.service

    def _unary(self, name: str, request_type: _MessageType[M], respond: Respond) -> grpc.RpcMethodHandler[Any, Any]:
        """Return a method that turns the exceptions of `respond` into gRPC statuses."""

        async def handle(request: M | None, context: Context) -> Message | bytes:
            self.calls += 1
            try:
                return await respond(self._ready(request), request, context)
            except Refusal as refusal:
                request_id = _request_id(context)
                self.record_refusal(refusal, name, request_id)
                refusal.metadata["request_id"] = request_id
                await abort(context, refusal)
            except Exception:
                request_id = _request_id(context)
                self._log.exception("failed", method=name, request_id=request_id)
                message = f"internal error: see request {request_id} in the server's log"
                await context.abort(grpc.StatusCode.INTERNAL, message)
                raise AssertionError("context.abort always raises") from None
            finally:
                self.calls -= 1

        return grpc.unary_unary_rpc_method_handler(handle, _parser(request_type), _serialize)

    async def _get_model(self, service: PolicyService, request: Any, context: Context) -> Message:
        return service.models.describe(service.options)

    async def _open(self, service: PolicyService, request: Any, context: Context) -> Message:
        response = await service.open_session(request, OWNER.get())
        self._log.info(
            "session opened", session=response.session_id[:6], policy_version=response.policy_version,
            imported=bool(request.exported_state), request_id=_request_id(context), peer=context.peer(),
        )  # fmt: skip
        return response

    async def _reset(self, service: PolicyService, request: Any, context: Context) -> Message:
        return service.reset_session(request, OWNER.get())

    async def _close(self, service: PolicyService, request: Any, context: Context) -> Message:
        response = service.close_session(request, OWNER.get())
        self._log.info("session closed", session=request.session_id[:6], request_id=_request_id(context))
        return response

    async def _end_episode(self, service: PolicyService, request: Any, context: Context) -> bytes:
        return service.end_episode(request, OWNER.get())

    async def _step(self, service: PolicyService, request: Any, context: Context) -> bytes:
        start = time.perf_counter()
        answer = await service.start_step(request, OWNER.get())
        self._metrics.step_s.observe(time.perf_counter() - start)
        return answer

    async def _step_stream(
        self, requests: AsyncIterator[policy_pb2.StepStreamRequest | None], context: Context
    ) -> None:
        self.calls += 1
        stream = _StepStreamCall(self, _request_id(context))
        reader = asyncio.create_task(stream.read(requests))
        self._readers.add(reader)
        try:
            while (response := await stream.answers.get()) is not None:
                await context.write(response)
                stream.capacity.release()  # only after the write, which blocks if the client does not read
            if stream.end_reason is not None:
                self.record_refusal(stream.end_reason, "StepStream", stream.request_id)
                await abort(context, stream.end_reason)
        finally:
            self.calls -= 1
            self._readers.discard(reader)
            reader.cancel()
            stream.cancel_steps()

    def max_stream_steps(self) -> int:
        """Return how many steps of one stream may be in progress or have unsent answers."""
        if self.service is None:
            return MAX_STREAM_STEPS
        return max(1, min(MAX_STREAM_STEPS, MAX_STREAM_BYTES // self.service.max_response_bytes))


class _StepStreamCall:
    """One call of StepStream: its steps in progress, and their answers in order of completion."""

    def __init__(self, handlers: Handlers, request_id: str) -> None:
        self.answers: asyncio.Queue[policy_pb2.StepStreamResponse | None] = asyncio.Queue()
        self.end_reason: Refusal | None = None
        self.request_id = request_id
        self.capacity = asyncio.Semaphore(handlers.max_stream_steps())  # released when an answer is sent
        self._handlers = handlers
        self._steps: set[asyncio.Future[bytes]] = set()

    async def read(self, requests: AsyncIterator[policy_pb2.StepStreamRequest | None]) -> None:
        """Start each step as it arrives. After the last one, wait for the steps in progress."""
        try:
            async for request in requests:
                await self.capacity.acquire()
                self._start(request)
        except Refusal as refusal:
            self.end_reason = refusal
        except asyncio.CancelledError:
            self.end_reason = Refusal(Reason.DRAINING, "this server is shutting down: continue at another server")
        if self._steps:
            await asyncio.wait(self._steps)
        self.answers.put_nowait(None)

    def cancel_steps(self) -> None:
        for step in self._steps:
            step.cancel()

    def _start(self, request: policy_pb2.StepStreamRequest | None) -> None:
        step_request = request.step if request is not None else policy_pb2.StepRequest()
        start = time.perf_counter()
        try:
            step = self._handlers._ready(request).start_step(step_request, OWNER.get())
        except Refusal as refusal:
            self._fail(step_request, refusal)
            return
        self._steps.add(step)
        step.add_done_callback(lambda done: self._answer(step_request, done, start))

    def _answer(self, request: policy_pb2.StepRequest, done: asyncio.Future[bytes], start: float) -> None:
        self._steps.discard(done)
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
        if isinstance(error, Refusal):
            self._handlers.record_refusal(error, "StepStream", self.request_id)
            failure = policy_pb2.StepFailure(
                code=error.code, reason=error.reason, message=error.message, metadata=error.metadata
            )
        else:
            self._handlers._log.error("failed", method="StepStream", request_id=self.request_id, exc_info=error)
            code, _ = grpc.StatusCode.INTERNAL.value
            failure = policy_pb2.StepFailure(
                code=code, message=f"internal error: see request {self.request_id} in the server's log"
            )
        self.answers.put_nowait(
            policy_pb2.StepStreamResponse(session_id=request.session_id, step_index=request.step_index, failure=failure)
        )


def _request_id(context: Context) -> str:
    """Return the request id that the client sent, to match its log with the server's, or a new one."""
    for key, value in context.invocation_metadata() or ():
        if key == REQUEST_ID and isinstance(value, str) and value.isascii():
            return value[:64]
    return uuid.uuid4().hex


def _parser(message_type: _MessageType[M]) -> Callable[[bytes], M | None]:
    def parse(data: bytes) -> M | None:
        try:
            return message_type.FromString(data)
        except DecodeError:
            return None

    return parse


def _serialize(message: Message | bytes) -> bytes:
    return message if isinstance(message, bytes) else message.SerializeToString()
