"""`Calls`: who makes a call, how many calls are in progress, and what becomes of their exceptions."""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn

import grpc
import structlog

from actors.serving.server.credentials import OWNER, TokenFile
from actors.serving.server.metrics import ServingMetrics
from actors.serving.status import abort
from actors.sessions.refusal import Reason, Refusal

HEALTH = "/grpc.health.v1.Health/"
REQUEST_ID = "x-request-id"

Context = grpc.aio.ServicerContext[Any, Any]
Behavior = Callable[[Any, Context], Awaitable[Any]]


@dataclass(slots=True, eq=False)
class _ActiveCall:
    """A call that was admitted and has not ended."""

    owner: str  # hash of its token; "" if tokens are not used
    task: asyncio.Task[Any]
    end_reason: Refusal | None = None  # set if the server ends the call


class Calls(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]
    """As an interceptor, checks the token of every call before its request is read: a call without a valid one is
    refused before it counts against any limit. Health checks, which load balancers send, need no token.

    The calls of guarded methods count against the limit of the server and that of their token until they end. Their
    exceptions are logged, counted, and sent as statuses.
    """

    def __init__(self, max_calls: int, tokens: TokenFile | None, metrics: ServingMetrics) -> None:
        self._max_calls, self._tokens, self._metrics = max_calls, tokens, metrics
        self._log = structlog.get_logger("tamiyo.serving")
        self._active: set[_ActiveCall] = set()
        self._by_owner: Counter[str] = Counter()

    @property
    def active(self) -> int:
        """Number of calls in progress."""
        return len(self._active)

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        method = handler_call_details.method
        if self._tokens is not None and not method.startswith(HEALTH):
            try:
                OWNER.set(self._tokens.check(handler_call_details.invocation_metadata or ()))
            except Refusal as refusal:  # a method that takes a stream begins before a request has arrived
                return grpc.stream_unary_rpc_method_handler(partial(self._fail, refusal, method))
        return await continuation(handler_call_details)

    def guard(self, method: str, behavior: Behavior) -> Behavior:
        """Return `behavior` within the limits, and with its exceptions sent as statuses."""

        async def guarded(request: Any, context: Context) -> Any:
            call: _ActiveCall | None = None
            error: BaseException
            try:
                call = self._admit(OWNER.get())
                return await behavior(request, context)
            except asyncio.CancelledError:
                if call is None or call.end_reason is None:
                    raise
                call.task.uncancel()
                error = call.end_reason
            except Exception as raised:
                error = raised
            finally:
                if call is not None:
                    self._active.remove(call)
                    self._by_owner[call.owner] -= 1
            return await self._fail(error, method, request, context)

        return guarded

    def end_invalid(self) -> None:
        """End calls whose token is no longer valid."""
        if self._tokens is None:
            return
        for call in self._active:
            try:
                self._tokens.confirm(call.owner)
            except Refusal as refusal:
                if call.end_reason is None:
                    call.end_reason = refusal
                    call.task.cancel()

    def refusal(self, error: BaseException, method: str, request_id: str) -> Refusal:
        """Log and count an exception. Returns the refusal that is sent for it."""
        if isinstance(error, Refusal):
            refusal = error
            self._log.info(
                "refused", method=method, code=refusal.code.name, reason=refusal.reason.value,
                message=refusal.message, request_id=request_id,
            )  # fmt: skip
        else:
            self._log.error("failed", method=method, request_id=request_id, exc_info=error)
            text = f"internal error: see request {request_id} in the server's log"
            refusal = Refusal(Reason.INTERNAL, text)
        self._metrics.refusals.labels(refusal.reason).inc()
        refusal.metadata["request_id"] = request_id
        return refusal

    async def _fail(self, error: BaseException, method: str, request: Any, context: Context) -> NoReturn:
        await abort(context, self.refusal(error, method.rpartition("/")[2], request_id_of(context)))

    def _admit(self, owner: str) -> _ActiveCall:
        """Check the limits, and register the call. Raises `Refusal`."""
        if self.active >= self._max_calls:
            raise Refusal(
                Reason.CALLS_FULL, f"{self.active} calls are in progress, the limit of this server: try again"
            )
        share = None if self._tokens is None else self._tokens.share(self._max_calls)
        if share is not None and self._by_owner[owner] >= share:
            raise Refusal(Reason.CALLS_FULL, f"{share} calls with this token are in progress, its limit: try again")
        task = asyncio.current_task()
        assert task is not None
        call = _ActiveCall(owner, task)
        self._active.add(call)
        self._by_owner[owner] += 1
        return call


def request_id_of(context: Context) -> str:
    """Return the request id that the client sent, to match its log with the server's, or a new one."""
    for key, value in context.invocation_metadata() or ():
        if key == REQUEST_ID and isinstance(value, str) and value.isascii():
            return value[:64]
    return uuid.uuid4().hex
