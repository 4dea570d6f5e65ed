"""Servers and transports that tests start for themselves."""

from __future__ import annotations

import itertools
import subprocess
import sys
from collections.abc import Callable, Iterator
from itertools import filterfalse

import pytest

from actors.config import QueueConfig
from actors.env.kernels.folder import is_compiled
from actors.transport.base import Transport
from actors.transport.memory import MemoryStore, MemoryTransport
from actors.transport.redis import connect
from deploy.embedded_redis import EmbeddedRedis

NAMESPACES = itertools.count()


def pytest_sessionstart(session: pytest.Session) -> None:
    """Machine code is made before any test, and by one process: no test's time limit should have to pay for it."""
    if not hasattr(session.config, "workerinput"):
        for dtype in filterfalse(is_compiled, ("float32", "float64")):
            subprocess.run([sys.executable, "-c", COMPILE.format(dtype)], check=True)


COMPILE = "import torch; from actors.env.seed_fleet import compile_kernels; compile_kernels(torch.{})"
Connect = Callable[..., Transport]
"""`connect(**QueueConfig fields)` opens one more handle on the test's own store."""


@pytest.fixture(scope="session")
def embedded_redis() -> Iterator[EmbeddedRedis]:
    with EmbeddedRedis() as server:
        yield server


@pytest.fixture
def namespace() -> str:
    """A key prefix that no other test on the shared server uses."""
    return f"test{next(NAMESPACES)}"


@pytest.fixture(params=["memory", "redis", "redis-scripts"])
def open_transport(request: pytest.FixtureRequest, namespace: str) -> Iterator[Connect]:
    """Every backend: in memory, Redis functions, and the scripts that stand in for them before Redis 7."""
    opened: list[Transport] = []
    store = MemoryStore()
    url = "" if request.param == "memory" else request.getfixturevalue("embedded_redis").url

    def open_one(**fields: float) -> Transport:
        config = QueueConfig(**fields)  # type: ignore[arg-type]
        if request.param == "memory":
            opened.append(MemoryTransport(config, store))
        else:
            opened.append(connect(url, config, namespace, scripts=request.param == "redis-scripts"))
        return opened[-1]

    yield open_one
    for transport in opened:
        transport.close()


@pytest.fixture
def transport(open_transport: Connect) -> Transport:
    """One handle with the default bounds."""
    return open_transport()
