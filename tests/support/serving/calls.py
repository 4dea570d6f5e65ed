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
    return (("authorization", f"Bearer {token}"),) if token else ()


@contextmanager
def connections(address: str, count: int) -> Iterator[list[grpc.Channel]]:
    """Open `count` channels, each with a connection of its own."""
    with ExitStack() as stack:
        options = [("grpc.use_local_subchannel_pool", 1)]
        yield [stack.enter_context(grpc.insecure_channel(address, options)) for _ in range(count)]


@contextmanager
def half_open(channels: list[grpc.Channel], method: str, count: int, token: str = "") -> Iterator[list[Any]]:
    """Start calls that send no request."""
    ends = [queue.SimpleQueue[None]() for _ in range(count)]
    calls = [
        channels[i % len(channels)].stream_stream(method)(iter(end.get, None), metadata=bearer(token))
        for i, end in enumerate(ends)
    ]
    try:
        yield calls
    finally:
        for call, end in zip(calls, ends, strict=True):
            call.cancel()
            end.put(None)


def outcome(call: Any, timeout_s: float = 10.0) -> str:
    """Wait for the end of a call. Returns its reason or status code."""
    wait_for(lambda: not call.is_active(), timeout_s)
    return error_info(call).reason or call.code().name
