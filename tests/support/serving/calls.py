"""Raw gRPC calls to a policy server, among them calls that never send a request."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import grpc

from actors.serving.status import error_info
from tests.support.waiting import wait_for


def bearer(token: str) -> tuple[tuple[str, str], ...]:
    """Return the metadata of a call with this token, or without one."""
    return (("authorization", f"Bearer {token}"),) if token else ()


@contextmanager
def connections(address: str, count: int) -> Iterator[list[grpc.Channel]]:
    """Open `count` channels, each with a connection of its own."""
    with ExitStack() as stack:
        options = [("grpc.use_local_subchannel_pool", 1)]
        yield [stack.enter_context(grpc.insecure_channel(address, options)) for _ in range(count)]


class BlockedRequests:
    """An iterator of requests that blocks until `end`."""

    def __init__(self) -> None:
        self._queue: queue.Queue[None] = queue.Queue()

    def __iter__(self) -> BlockedRequests:
        return self

    def __next__(self) -> bytes:
        self._queue.get()
        raise StopIteration

    def end(self) -> None:
        self._queue.put(None)


@contextmanager
def half_open(channels: list[grpc.Channel], method: str, count: int, token: str = "") -> Iterator[list[Any]]:
    """Start calls that send no request."""
    requests = [BlockedRequests() for _ in range(count)]
    calls = [
        channels[i % len(channels)].stream_stream(method)(request, metadata=bearer(token))
        for i, request in enumerate(requests)
    ]
    try:
        yield calls
    finally:
        for call, request in zip(calls, requests, strict=True):
            call.cancel()
            request.end()


def outcome(call: Any, timeout_s: float = 10.0) -> str:
    """Wait for the end of a call. Returns its reason or status code."""
    wait_for(lambda: not call.is_active(), timeout_s)
    return error_info(call).reason or call.code().name
