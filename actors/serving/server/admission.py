"""`Admission`: the interceptor that checks tokens and limits concurrent calls.

The token is checked first, before the request of the call is read: a call without a valid one is refused before it
counts against any limit. Then the call counts against the limit of the server and that of its token until it ends.
Health checks, which load balancers send, need no token and are not counted.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Any

import grpc

from actors.serving.options import ServeOptions
from actors.serving.server.credentials import OWNER, TokenFile
from actors.serving.status import abort
from actors.sessions.refusal import Reason, Refusal

HEALTH = "/grpc.health.v1.Health/"

Context = grpc.aio.ServicerContext[Any, Any]
MethodBehavior = Callable[[Any, Context], Awaitable[Any]]


@dataclass(slots=True, eq=False)
class _ActiveCall:
    """A call that was admitted and has not ended."""

    owner: str  # hash of its token; "" if tokens are not used
    task: asyncio.Task[Any]
    end_reason: Refusal | None = None  # set if the server ends the call


class Admission(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]
    """Wrap every method of the server. `on_refused` is called for each call that is refused or ended."""

    def __init__(
        self, options: ServeOptions, tokens: TokenFile | None, on_refused: Callable[[Refusal, str], None]
    ) -> None:
        self._options, self._tokens, self._on_refused = options, tokens, on_refused
        self._wrapped: dict[str, Any] = {}
        self._calls: set[_ActiveCall] = set()
        self._by_owner: Counter[str] = Counter()

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        method = handler_call_details.method
        if method.startswith(HEALTH):
            return await continuation(handler_call_details)
        if self._tokens is not None:
            try:
                OWNER.set(self._tokens.check(handler_call_details.invocation_metadata or ()))
            except Refusal as refusal:  # a method that takes a stream begins before a request has arrived
                return grpc.stream_unary_rpc_method_handler(partial(self._refuse, refusal, method))
        if method not in self._wrapped:
            handler = await continuation(handler_call_details)
            if handler is None:
                return None
            self._wrapped[method] = self._wrap(method, handler)
        return self._wrapped[method]

    def sweep(self) -> None:
        """End calls whose token is no longer valid."""
        for call in self._calls:
            try:
                self._confirm(call.owner)
            except Refusal as refusal:
                if call.end_reason is None:
                    call.end_reason = refusal
                    call.task.cancel()

    def _confirm(self, owner: str) -> None:
        if self._tokens is not None:
            self._tokens.confirm(owner)

    def _wrap(self, method: str, handler: Any) -> Any:
        behavior = _as_coroutine(handler)

        async def serve(request: Any, context: Context) -> Any:
            call: _ActiveCall | None = None
            try:
                call = self._admit(OWNER.get())
                return await behavior(
                    self._confirmed(request, call.owner) if handler.request_streaming else request, context
                )
            except Refusal as refusal:
                await self._refuse(refusal, method, request, context)
            except asyncio.CancelledError:
                task = asyncio.current_task()
                if call is None or call.end_reason is None or task is None:
                    raise
                task.uncancel()
                await self._refuse(call.end_reason, method, request, context)
            finally:
                if call is not None:
                    self._release(call)

        kind = f"{_arity(handler.request_streaming)}_{_arity(handler.response_streaming)}_rpc_method_handler"
        return getattr(grpc, kind)(serve, handler.request_deserializer, handler.response_serializer)

    def _admit(self, owner: str) -> _ActiveCall:
        """Check the limits, and register the call. Raises `Refusal`."""
        task, options = asyncio.current_task(), self._options
        assert task is not None
        if len(self._calls) >= options.max_concurrent_calls:
            raise Refusal(
                Reason.CALLS_FULL, f"{len(self._calls)} calls are in progress, the limit of this server: try again"
            )
        shared = self._tokens is not None and self._tokens.multiple_valid
        if shared and self._by_owner[owner] >= options.calls_per_token:
            raise Refusal(
                Reason.CALLS_FULL,
                f"{self._by_owner[owner]} calls with this token are in progress, its limit: try again",
            )
        call = _ActiveCall(owner, task)
        self._calls.add(call)
        self._by_owner[owner] += 1
        return call

    def _release(self, call: _ActiveCall) -> None:
        self._calls.remove(call)
        self._by_owner[call.owner] -= 1
        if not self._by_owner[call.owner]:
            del self._by_owner[call.owner]

    async def _confirmed(self, requests: AsyncIterator[Any], owner: str) -> AsyncIterator[Any]:
        """Iterate over the requests of a stream, with the token checked again for each. Raises `Refusal`."""
        async for request in requests:
            self._confirm(owner)
            yield request

    async def _refuse(self, refusal: Refusal, method: str, request: Any, context: Context) -> None:
        self._on_refused(refusal, method)
        await abort(context, refusal)


def _arity(streaming: bool) -> str:
    return "stream" if streaming else "unary"


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
