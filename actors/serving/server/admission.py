"""`Admission`: which calls a server takes on, and for how long.

A call needs a valid token before it counts for anything. It then counts against the calls that the server takes at a
time, and against its token's share of them, from its first byte to its last: also while its request has yet to come.
Calls of the health service need no token and have room of their own, which nobody can fill: the oldest give way.
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
from actors.serving.refusal import Reason, Refusal
from actors.serving.server.auth import Tokens

HEALTH = "/grpc.health.v1.Health/"  # open to everybody: load balancers have no token
HEALTH_CALLS = 256  # checks and watches under way at a time
_NOTHING = object()

Context = grpc.aio.ServicerContext[Any, Any]
Behaviour = Callable[[Any, Context], Awaitable[Any]]


@dataclass(slots=True, eq=False)
class _Call:
    """A call that was taken on."""

    owner: str  # hash of its token, "" without one
    task: asyncio.Task[Any]
    due_s: float  # when its client must have sent the next request, by `time.monotonic`
    ended: Refusal | None = None  # why the server ends it


class Admission(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]
    """Wraps every method of the server. `refused` is told of each call that is turned down or ended."""

    def __init__(
        self, options: ServeOptions, tokens: Tokens | None, refused: Callable[[Refusal, str], None]
    ) -> None:  # fmt: skip
        self._options, self._tokens, self._refused = options, tokens, refused
        self._wrapped: dict[str, Any] = {}
        self._calls: set[_Call] = set()
        self._by_owner: Counter[str] = Counter()
        self._health: dict[_Call, None] = {}  # the oldest first

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
        """End calls whose token is no longer valid, and those whose clients have sent nothing for too long."""
        now = time.monotonic()
        for call in (*self._calls, *self._health):
            if call.ended is not None:
                continue
            try:
                if self._tokens is not None and call.owner:
                    self._tokens.confirm(call.owner)
            except Refusal as refusal:
                _end(call, refusal)
            if now > call.due_s:
                _end(call, Refusal(Reason.IDLE, "no request came in time: begin the call again when there is one"))

    def _wrap(self, method: str, handler: Any) -> Any:
        """A handler with the same answers. It takes requests as a stream, so that it runs before the first one is
        there: a refusal waits for nothing, and a call without a request is one that can be seen and ended."""
        run = _behaviour(handler)
        streaming = bool(handler.request_streaming)

        async def serve(requests: AsyncIterator[Any], context: Context) -> Any:
            call: _Call | None = None
            try:
                call = self._enter(method, context, streaming)
                incoming = _Requests(requests, call, self._tokens, self._options.idle_timeout_s)
                if streaming:
                    return await run(incoming, context)
                request = await anext(incoming, _NOTHING)
                if request is _NOTHING:
                    raise Refusal(Reason.MALFORMED, "the call ended without a request")
                call.due_s = math.inf
                return await run(request, context)
            except Refusal as refusal:
                await self._turn_down(refusal, method, context)
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if call is None or call.ended is None or task is None:
                    raise
                task.uncancel()
                await self._turn_down(call.ended, method, context)
            finally:
                if call is not None:
                    self._leave(call)

        kind = (
            grpc.stream_stream_rpc_method_handler
            if handler.response_streaming
            else grpc.stream_unary_rpc_method_handler
        )
        return kind(serve, handler.request_deserializer, handler.response_serializer)

    def _enter(self, method: str, context: Context, streaming: bool) -> _Call:
        """Raises `Refusal`."""
        options, owner = self._options, ""
        task = asyncio.current_task()
        assert task is not None
        due_s = time.monotonic() + (options.idle_timeout_s if streaming else options.request_timeout_s)
        if method.startswith(HEALTH):
            if len(self._health) >= HEALTH_CALLS:
                oldest = next(iter(self._health))
                del self._health[oldest]
                _end(
                    oldest, Refusal(Reason.CALLS_FULL, "too many health checks at a time: this one has lasted longest")
                )
            call = _Call(owner, task, due_s)
            self._health[call] = None
            return call
        if self._tokens is not None:
            owner = self._tokens.check(context.invocation_metadata() or ())
        if len(self._calls) >= options.max_concurrent_calls:
            raise Refusal(Reason.CALLS_FULL, f"{len(self._calls)} calls are under way here: try again in a moment")
        if owner and self._by_owner[owner] >= options.calls_per_token:
            raise Refusal(
                Reason.CALLS_FULL,
                f"{self._by_owner[owner]} calls with this token are under way, its share: try again in a moment",
            )
        call = _Call(owner, task, due_s)
        self._calls.add(call)
        self._by_owner[owner] += 1
        return call

    def _leave(self, call: _Call) -> None:
        self._health.pop(call, None)
        if call in self._calls:
            self._calls.remove(call)
            self._by_owner[call.owner] -= 1
            if not self._by_owner[call.owner]:
                del self._by_owner[call.owner]

    async def _turn_down(self, refusal: Refusal, method: str, context: Context) -> None:
        self._refused(refusal, method)
        await context.abort(refusal.code, refusal.message, refusal.trailers())


class _Requests:
    """The requests of one call. Each is a sign of life, and of a token that is still valid."""

    def __init__(self, source: AsyncIterator[Any], call: _Call, tokens: Tokens | None, idle_s: float) -> None:
        self._source, self._call, self._tokens, self._idle_s = source, call, tokens, idle_s

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        """Raises `Refusal`."""
        request = await anext(self._source)
        self._call.due_s = time.monotonic() + self._idle_s
        if self._tokens is not None and self._call.owner:
            self._tokens.confirm(self._call.owner)
        return request


def _end(call: _Call, refusal: Refusal) -> None:
    if call.ended is None:
        call.ended = refusal
        call.task.cancel()


def _behaviour(handler: Any) -> Behaviour:
    """What a handler does, as a coroutine function that writes a stream of answers itself."""
    run = handler.unary_unary or handler.unary_stream or handler.stream_unary or handler.stream_stream
    if not inspect.isasyncgenfunction(run):
        return run  # type: ignore[no-any-return]

    async def write(requests: Any, context: Context) -> None:
        async with aclosing(run(requests, context)) as answers:
            async for answer in answers:
                await context.write(answer)

    return write
