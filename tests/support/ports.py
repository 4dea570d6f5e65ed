"""Ports on loopback that nobody listens on."""

from __future__ import annotations

import socket
from contextlib import ExitStack, suppress


def free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [int(probe.getsockname()[1]) for probe in probes]


def adjacent_ports(count: int) -> list[int]:
    while True:
        first = free_port()
        with ExitStack() as stack, suppress(OSError, OverflowError):
            for port in range(first, first + count):
                stack.enter_context(socket.create_server(("127.0.0.1", port)))
            return list(range(first, first + count))


def free_port() -> int:
    return free_ports(1)[0]
