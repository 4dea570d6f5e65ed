"""The service's methods as gRPC sees them: bytes in, bytes out, every refusal a status and a line in the log."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Protocol, TypeVar

import grpc
import structlog
from google.protobuf.message import DecodeError, Message

from actors.serving.refusal import Reason, Refusal
from actors.serving.server.auth import Tokens
from actors.serving.server.service import PolicyService
from actors.serving.server.telemetry import Telemetry
from actors.wire import policy_pb2

SERVICE = policy_pb2.DESCRIPTOR.services_by_name["PolicyService"].full_name
REQUEST_ID = "x-request-id"
STREAM_STEPS = 1024  # of one stream whose answers have not been sent, at most
STREAM_BYTES = 4 << 20  # that such answers may take, together

Context = grpc.aio.ServicerContext[Any, Any]
M = TypeVar("M", bound=Message, covariant=True)


class _Kind(Protocol[M]):
    def FromString(self, data: bytes) -> M: ...


class Handlers:
    """`service` is absent until weights have loaded."""

    def __init__(self, telemetry: Telemetry, tokens: Tokens | None) -> None:
        self.service: PolicyService | None = None
        self.calls = 0  # under way
        self._telemetry, self._tokens = telemetry, tokens
        self._log = structlog.get_logger("tamiyo.serving")
        self._readers: set[asyncio.Task[None]] = set()

    def generic(self) -> grpc.GenericRpcHandler[Any, Any]:
        unary = grpc.unary_unary_rpc_method_handler
        methods = {
            "GetModel": unary(self._get_model, _parser(policy_pb2.GetModelRequest), _serialise),
            "OpenSession": unary(self._open, _parser(policy_pb2.OpenSessionRequest), _serialise),
            "ResetSession": unary(self._reset, _parser(policy_pb2.ResetSessionRequest), _serialise),
            "CloseSession": unary(self._close, _parser(policy_pb2.CloseSessionRequest), _serialise),
            "Step": unary(self._step, _parser(policy_pb2.StepRequest)),
            "StepStream": grpc.stream_stream_rpc_method_handler(
                self._step_stream, _parser(policy_pb2.StepStreamRequest), _serialise
            ),
        }
        return grpc.method_handlers_generic_handler(SERVICE, methods)

    def end_streams(self) -> None:
        """Streams take no more steps, answer those under way, and end."""
        for reader in self._readers:
            reader.cancel()

    def refused(self, refusal: Refusal, method: str, request_id: str = "") -> None:
        """Count and log."""
        self._telemetry.refusals.labels(refusal.reason).inc()
        self._log.info(
            "refused", method=method, code=refusal.code.name, reason=refusal.reason.value, message=refusal.message,
            request_id=request_id or uuid.uuid4().hex,
        )  # fmt: skip

    def _ready(self, request: Message | None) -> PolicyService:
        if request is None:
            raise Refusal(Reason.MALFORMED, "these bytes are no message of tamiyo.v1")
        if self.service is None:
            raise Refusal(Reason.NOT_READY, "no weights have loaded yet")
        return self.service

    async def _get_model(self, request: policy_pb2.GetModelRequest | None, context: Context) -> Message:
        async def get() -> Message:
            return self._ready(request).get_model()

        return await self._guarded("GetModel", context, get)

    async def _open(self, request: policy_pb2.OpenSessionRequest, context: Context) -> Message:
        async def open_session() -> policy_pb2.OpenSessionResponse:
            service = self._ready(request)
            owner = self._tokens.check(context.invocation_metadata() or ()) if self._tokens else ""
            response = await service.open_session(request, owner)
            self._log.info(
                "session opened", session=response.session_id[:6], policy_version=response.policy_version,
                imported=bool(request.exported_state), request_id=_request_id(context), peer=context.peer(),
            )  # fmt: skip
            return response

        return await self._guarded("OpenSession", context, open_session)

    async def _reset(self, request: policy_pb2.ResetSessionRequest, context: Context) -> Message:
        async def reset() -> Message:
            return self._ready(request).reset_session(request)

        return await self._guarded("ResetSession", context, reset)

    async def _close(self, request: policy_pb2.CloseSessionRequest, context: Context) -> Message:
        async def close() -> Message:
            response = self._ready(request).close_session(request)
            self._log.info("session closed", session=request.session_id[:6], request_id=_request_id(context))
            return response

        return await self._guarded("CloseSession", context, close)

    async def _step(self, request: policy_pb2.StepRequest, context: Context) -> bytes:
        start = time.perf_counter()

        async def step() -> bytes:
            return await self._ready(request).begin(request)

        answer = await self._guarded("Step", context, step)
        self._telemetry.step_s.observe(time.perf_counter() - start)
        return answer

    T = TypeVar("T")

    async def _guarded(self, method: str, context: Context, call: Callable[[], Awaitable[T]]) -> T:
        self.calls += 1
        try:
            return await call()
        except Refusal as refusal:
            request_id = _request_id(context)
            self.refused(refusal, method, request_id)
            refusal.metadata["request_id"] = request_id
            await context.abort(refusal.code, refusal.message, refusal.trailers())
        except Exception:
            request_id = _request_id(context)
            self._log.exception("failed", method=method, request_id=request_id)
            await context.abort(grpc.StatusCode.INTERNAL, f"the server failed; its log has request {request_id}")
        finally:
            self.calls -= 1
        raise AssertionError("abort raises")

    async def _step_stream(
        self, requests: AsyncIterator[policy_pb2.StepStreamRequest | None], context: Context
    ) -> None:
        self.calls += 1
        stream = _Stream(self, _request_id(context))
        reader = asyncio.create_task(stream.read(requests))
        self._readers.add(reader)
        try:
            while (response := await stream.answers.get()) is not None:
                await context.write(response)
                stream.room.release()  # and not earlier: what waits here would grow with every step of a slow reader
            if stream.ended is not None:
                self.refused(stream.ended, "StepStream", stream.request_id)
                await context.abort(stream.ended.code, stream.ended.message, stream.ended.trailers())
        finally:
            self.calls -= 1
            self._readers.discard(reader)
            reader.cancel()
            stream.abandon()

    def stream_steps(self) -> int:
        """Steps of one stream that may be under way or wait to be sent."""
        if self.service is None:
            return STREAM_STEPS
        return max(1, min(STREAM_STEPS, STREAM_BYTES // self.service.answer_bytes))


class _Stream:
    """One stream's steps under way; their answers in the order in which they come."""

    def __init__(self, handlers: Handlers, request_id: str) -> None:
        self.answers: asyncio.Queue[policy_pb2.StepStreamResponse | None] = asyncio.Queue()
        self.ended: Refusal | None = None
        self.request_id = request_id
        self.room = asyncio.Semaphore(handlers.stream_steps())  # released when an answer has been sent
        self._handlers = handlers
        self._steps: set[asyncio.Future[bytes]] = set()

    async def read(self, requests: AsyncIterator[policy_pb2.StepStreamRequest | None]) -> None:
        """Begin every step as it comes; at the end wait for those under way."""
        try:
            async for request in requests:
                await self.room.acquire()
                self._begin(request)
        except Refusal as refusal:
            self.ended = refusal
        except asyncio.CancelledError:
            self.ended = Refusal(Reason.DRAINING, "this server is shutting down: go on elsewhere")
        if self._steps:
            await asyncio.wait(self._steps)
        self.answers.put_nowait(None)

    def abandon(self) -> None:
        for step in self._steps:
            step.cancel()

    def _begin(self, request: policy_pb2.StepStreamRequest | None) -> None:
        own = request.step if request is not None else policy_pb2.StepRequest()
        start = time.perf_counter()
        try:
            step = self._handlers._ready(request).begin(own)
        except Refusal as refusal:
            self._fail(own, refusal)
            return
        self._steps.add(step)
        step.add_done_callback(lambda done: self._answer(own, done, start))

    def _answer(self, request: policy_pb2.StepRequest, done: asyncio.Future[bytes], start: float) -> None:
        self._steps.discard(done)
        if done.cancelled():
            return
        error = done.exception()
        if error is not None:
            self._fail(request, error)
            return
        self._handlers._telemetry.step_s.observe(time.perf_counter() - start)
        response = policy_pb2.StepStreamResponse(session_id=request.session_id, step_index=request.step_index)
        response.step.MergeFromString(done.result())
        self.answers.put_nowait(response)

    def _fail(self, request: policy_pb2.StepRequest, error: BaseException) -> None:
        if isinstance(error, Refusal):
            self._handlers.refused(error, "StepStream", self.request_id)
            failure = policy_pb2.StepFailure(
                code=error.number, reason=error.reason, message=error.message, metadata=error.metadata
            )
        else:
            self._handlers._log.error("failed", method="StepStream", request_id=self.request_id, exc_info=error)
            code, _ = grpc.StatusCode.INTERNAL.value
            failure = policy_pb2.StepFailure(code=code, message=f"the server failed; its log has {self.request_id}")
        self.answers.put_nowait(
            policy_pb2.StepStreamResponse(session_id=request.session_id, step_index=request.step_index, failure=failure)
        )


def _request_id(context: Context) -> str:
    """The client's own, so that its log and ours can be read side by side, else a new one."""
    for key, value in context.invocation_metadata() or ():
        if key == REQUEST_ID and isinstance(value, str) and value.isascii():
            return value[:64]
    return uuid.uuid4().hex


def _parser(kind: _Kind[M]) -> Callable[[bytes], M | None]:
    def parse(data: bytes) -> M | None:
        try:
            return kind.FromString(data)
        except DecodeError:
            return None

    return parse


def _serialise(message: Message) -> bytes:
    return message.SerializeToString()
