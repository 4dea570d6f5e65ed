"""`Admission`: the interceptor that checks tokens and limits concurrent calls.

The token is checked first: a call without a valid one is refused before it counts against any limit. From then until it
ends, also while its request has not arrived, a call counts against the limit of the server and that of its token.
Calls of the health service need no token and have a limit of their own; beyond it the oldest call is ended.
"""

from __future__ import annotations

import asyncio
import inspect
import math
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import grpc

from actors.serving.options import ServeOptions
from actors.serving.server.credentials import OWNER, TokenFile
from actors.serving.status import abort
from actors.sessions.refusal import Reason, Refusal

HEALTH = "/grpc.health.v1.Health/"  # needs no token, since load balancers have none
MAX_HEALTH_CALLS = 256  # concurrent Check and Watch calls
_END_OF_REQUESTS = object()

Context = grpc.aio.ServicerContext[Any, Any]
MethodBehavior = Callable[[Any, Context], Awaitable[Any]]


@dataclass(slots=True, eq=False)
class _ActiveCall:
    """A call that was admitted and has not ended."""

    owner: str  # hash of its token; "" if tokens are not used, and for health checks
    task: asyncio.Task[Any]
    due_s: float  # time by which the next request must arrive, by `time.monotonic`
    end_reason: Refusal | None = None  # set if the server ends the call


class Admission(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]
    """Wrap every method of the server. `on_refused` is called for each call that is refused or ended."""

    def __init__(
        self,
        options: ServeOptions,
        tokens: TokenFile | None,
        on_refused: Callable[[Refusal, str], None],
    ) -> None:
        self._options, self._tokens, self._on_refused = options, tokens, on_refused
        self._wrapped: dict[str, Any] = {}
        self._calls: set[_ActiveCall] = set()
        self._by_owner: Counter[str] = Counter()
        self._health: dict[_ActiveCall, None] = {}  # oldest first

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        method = handler_call_details.method
        if method not in self._wrapped:
            handler = await continuation(handler_call_details)
            if handler is None:
                return None
            self._wrapped[method] = self._wrap(method, handler)
        return self._wrapped[method]

    def sweep(self) -> None:
        """End calls whose token is no longer valid, and calls whose next request is overdue."""
        now = time.monotonic()
        for call in (*self._calls, *self._health):
            if call.end_reason is not None:
                continue
            try:
                if self._tokens is not None and call.owner:
                    self._tokens.confirm(call.owner)
            except Refusal as refusal:
                _end(call, refusal)
            if now > call.due_s:
                _end(
                    call, Refusal(Reason.IDLE, "no request arrived in time: repeat the call when there is one to send")
                )

    def _wrap(self, method: str, handler: Any) -> Any:
        """Wrap a handler. The wrapper takes requests as a stream, also for unary calls, so that it runs before the
        request arrives: calls are refused at once, and calls that never send a request can be ended."""
        behavior = _as_coroutine(handler)
        streaming = bool(handler.request_streaming)

        async def serve(requests: AsyncIterator[Any], context: Context) -> Any:
            call: _ActiveCall | None = None
            try:
                call = self._admit(method, context, streaming)
                OWNER.set(call.owner)
                incoming = _RequestStream(requests, call, self._tokens, self._options.idle_timeout_s)
                if streaming:
                    return await behavior(incoming, context)
                request = await anext(incoming, _END_OF_REQUESTS)
                if request is _END_OF_REQUESTS:
                    raise Refusal(Reason.MALFORMED, "the call ended without a request")
                call.due_s = math.inf
                return await behavior(request, context)
            except Refusal as refusal:
                await self._abort(refusal, method, context)
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if call is None or call.end_reason is None or task is None:
                    raise
                task.uncancel()
                await self._abort(call.end_reason, method, context)
            finally:
                if call is not None:
                    self._release(call)

        make_handler = (
            grpc.stream_stream_rpc_method_handler
            if handler.response_streaming
            else grpc.stream_unary_rpc_method_handler
        )
        return make_handler(serve, handler.request_deserializer, handler.response_serializer)

    def _admit(self, method: str, context: Context, streaming: bool) -> _ActiveCall:
        """Check the token and the limits, and register the call. Raises `Refusal`."""
        options, owner = self._options, ""
        task = asyncio.current_task()
        assert task is not None
        due_s = time.monotonic() + (options.idle_timeout_s if streaming else options.request_timeout_s)
        if method.startswith(HEALTH):
            if len(self._health) >= MAX_HEALTH_CALLS:
                oldest = next(iter(self._health))
                del self._health[oldest]
                _end(oldest, Refusal(Reason.CALLS_FULL, "too many concurrent health checks: the oldest is ended"))
            call = _ActiveCall(owner, task, due_s)
            self._health[call] = None
            return call
        if self._tokens is not None:
            owner = self._tokens.check(context.invocation_metadata() or ())
        if len(self._calls) >= options.max_concurrent_calls:
            raise Refusal(
                Reason.CALLS_FULL, f"{len(self._calls)} calls are in progress, the limit of this server: try again"
            )
        if (
            self._tokens is not None
            and self._tokens.multiple_valid
            and self._by_owner[owner] >= options.calls_per_token
        ):
            raise Refusal(
                Reason.CALLS_FULL,
                f"{self._by_owner[owner]} calls with this token are in progress, its limit: try again",
            )
        call = _ActiveCall(owner, task, due_s)
        self._calls.add(call)
        self._by_owner[owner] += 1
        return call

    def _release(self, call: _ActiveCall) -> None:
        self._health.pop(call, None)
        if call in self._calls:
            self._calls.remove(call)
            self._by_owner[call.owner] -= 1
            if not self._by_owner[call.owner]:
                del self._by_owner[call.owner]

    async def _abort(self, refusal: Refusal, method: str, context: Context) -> None:
        self._on_refused(refusal, method)
        await abort(context, refusal)


class _RequestStream:
    """The requests of one call. Each has the token checked again, and shows that the call is in use."""

    def __init__(
        self,
        source: AsyncIterator[Any],
        call: _ActiveCall,
        tokens: TokenFile | None,
        idle_s: float,
    ) -> None:
        self._source, self._call, self._tokens, self._idle_s = source, call, tokens, idle_s

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        """Await the next request. Raises `Refusal` if the token is no longer valid."""
        request = await anext(self._source)
        self._call.due_s = time.monotonic() + self._idle_s
        if self._tokens is not None and self._call.owner:
            self._tokens.confirm(self._call.owner)
        return request


def _end(call: _ActiveCall, refusal: Refusal) -> None:
    if call.end_reason is None:
        call.end_reason = refusal
        call.task.cancel()


def _as_coroutine(handler: Any) -> MethodBehavior:
    """Return a handler's method as a coroutine function; a generator's responses are written to the context."""
    method = handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream
    if not inspect.isasyncgenfunction(method):
        return method  # type: ignore[no-any-return]

    async def write(requests: Any, context: Context) -> None:
        async with aclosing(method(requests, context)) as responses:
            async for response in responses:
                await context.write(response)

    return write
