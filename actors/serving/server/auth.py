"""Bearer tokens from a file, and the interceptor that asks for them."""

from __future__ import annotations

import hmac
import time
from collections.abc import Awaitable, Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import grpc

from actors.errors import UserError
from actors.serving.refusal import Reason, Refusal

LOOK_S = 1.0  # between two looks at the file
HEALTH = "/grpc.health.v1.Health/"  # open to everybody: load balancers have no token
Metadata = Iterable[tuple[str, str | bytes]]


class Tokens:
    """`TOKEN [EXPIRY]` a line, `#` begins a comment. While the file is unreadable the last ones stay in force."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        self._path, self._clock = path, clock
        self._stamp, self._looked_s = -1, 0.0
        self._tokens: list[tuple[bytes, float]] = []
        try:
            self._read()
        except (OSError, ValueError) as error:
            raise UserError(f"the tokens cannot be read ({error}): a line is TOKEN or TOKEN 2030-01-31") from error
        if not self._tokens:
            raise UserError(f"{path} holds no token: write one a line")

    def check(self, metadata: Metadata) -> float:
        """When the call's token expires, in seconds since 1970. Raises `Refusal`."""
        self._look()
        given = next((v for k, v in metadata if k == "authorization"), "")
        scheme, _, token = (given.decode() if isinstance(given, bytes) else given).partition(" ")
        if scheme.lower() != "bearer" or not token:
            raise Refusal(Reason.TOKEN_MISSING, "send metadata `authorization: Bearer TOKEN`")
        expiry = None
        for known, until in self._tokens:  # all of them, so that time tells nothing
            if hmac.compare_digest(known, token.strip().encode()):
                expiry = until
        if expiry is None:
            raise Refusal(Reason.TOKEN_INVALID, "this token is not known here")
        if expiry <= self._clock():
            raise Refusal(Reason.TOKEN_EXPIRED, "this token has expired: ask for a new one")
        return expiry

    def _look(self) -> None:
        if time.monotonic() - self._looked_s < LOOK_S:
            return
        self._looked_s = time.monotonic()
        try:
            self._read()
        except (OSError, ValueError):  # while it is being replaced
            return

    def _read(self) -> None:
        stamp = self._path.stat().st_mtime_ns
        if stamp == self._stamp:
            return
        tokens = []
        for line in self._path.read_text().splitlines():
            token, _, expiry = line.partition("#")[0].strip().partition(" ")
            if token:
                tokens.append((token.encode(), _seconds(expiry.strip()) if expiry.strip() else float("inf")))
        self._tokens, self._stamp = tokens, stamp


def _seconds(text: str) -> float:
    moment = datetime.fromisoformat(text)
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


class TokenInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]
    """Refuses calls without a valid token before their requests are read."""

    def __init__(self, tokens: Tokens, refused: Callable[[Refusal, str], None]) -> None:
        self._tokens, self._refused = tokens, refused

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        handler = await continuation(handler_call_details)
        method = handler_call_details.method
        if method.startswith(HEALTH) or not handler:
            return handler
        try:
            self._tokens.check(handler_call_details.invocation_metadata)
        except Refusal as refusal:
            self._refused(refusal, method)
            return _refusing(handler, refusal)
        return handler


def _refusing(handler: Any, refusal: Refusal) -> Any:
    """Of the same kind as the handler in whose place it stands."""

    async def abort(_: Any, context: grpc.aio.ServicerContext[Any, Any]) -> Any:
        await context.abort(refusal.code, refusal.message, refusal.trailers())

    kinds = {
        (False, False): grpc.unary_unary_rpc_method_handler,
        (False, True): grpc.unary_stream_rpc_method_handler,
        (True, False): grpc.stream_unary_rpc_method_handler,
        (True, True): grpc.stream_stream_rpc_method_handler,
    }
    return kinds[bool(handler.request_streaming), bool(handler.response_streaming)](abort)
