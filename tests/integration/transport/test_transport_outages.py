"""Calls wait for a server that answers but cannot serve requests. A server that evicts keys is refused."""

from __future__ import annotations

import logging
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis

from actors.errors import UserError
from actors.transport import redis_server
from actors.transport.base import OutOfMemory, Unreachable
from actors.transport.redis import RedisTransport, connect, require_store
from actors.transport.retry import Retry, is_outage
from actors.workers.weight_client import WeightClient
from deploy.launch.embedded_redis import find_server
from tests.conftest import OTHERS
from tests.support.builders import make_weights
from tests.support.learning.toy_learner import ToyProducer, make_learner
from tests.support.queueing import BUSY, OK, put, report, take_ids

pytestmark = pytest.mark.integration

BINARIES = {"valkey": find_server(), "valkey-scripts": find_server(), **OTHERS}
Trouble = Callable[[Path, Any], Any]


@contextmanager
def launched(binary: Path, folder: Path, *options: str) -> Iterator[Any]:
    """Start a server, and yield a client with all rights once its socket exists."""
    command = [binary, "--port", "0", "--unixsocket", folder / "socket", "--dir", folder, "--save", "", *options]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        client = redis.Redis(unix_socket_path=str(folder / "socket"))
        try:
            deadline = time.monotonic() + 10
            while not (folder / "socket").exists():
                assert time.monotonic() < deadline
                time.sleep(0.01)
            yield client
        finally:
            client.close()
            process.kill()


@pytest.fixture(params=BINARIES, scope="module")
def store(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Any, bool]]:
    """This module's own server: its folder, a client, and whether to use scripts instead of functions."""
    folder = tmp_path_factory.mktemp("store")
    with launched(BINARIES[request.param], folder) as client:
        yield folder, client, request.param.endswith("scripts")


@contextmanager
def disk_error(folder: Path, client: Any) -> Iterator[None]:
    """The server cannot save its data, as a folder has the name of its file."""
    (folder / "dump.rdb").mkdir()
    client.config_set("save", "3600 1000000")
    save(client, "err")
    try:
        yield
    finally:
        (folder / "dump.rdb").rmdir()
        save(client, "ok")
        client.config_set("save", "")
        (folder / "dump.rdb").unlink()


def save(client: Any, outcome: str) -> None:
    client.bgsave()
    deadline = time.monotonic() + 10
    while client.info("persistence")["rdb_last_bgsave_status"] != outcome:
        assert time.monotonic() < deadline
        time.sleep(0.01)


@contextmanager
def no_replicas(folder: Path, client: Any) -> Iterator[None]:
    client.config_set("min-replicas-to-write", 1)
    try:
        yield
    finally:
        client.config_set("min-replicas-to-write", 0)


@contextmanager
def busy(folder: Path, client: Any) -> Iterator[None]:
    """Another client's script runs without end."""
    client.config_set("lua-time-limit", 1)
    other = redis.Redis(unix_socket_path=str(folder / "socket"))

    def run_forever() -> None:
        with pytest.raises(redis.ResponseError, match=r"[Kk]illed"):
            other.eval("while true do end", 0)

    thread = threading.Thread(target=run_forever)
    thread.start()
    deadline = time.monotonic() + 10
    while not is_refused(lambda: client.get("key")):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    try:
        yield
    finally:
        client.script_kill()
        thread.join()
        other.close()


def is_refused(call: Callable[[], Any]) -> bool:
    try:
        call()
    except redis.ResponseError:
        return True
    return False


@pytest.mark.parametrize("trouble", [disk_error, no_replicas, busy])
def test_calls_wait_for_a_server_that_cannot_serve_requests(
    store: tuple[Path, Any, bool], trouble: Trouble, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, client, scripts = store
    url = f"unix://{folder}/socket"
    transport = connect(url, None, namespace, scripts)
    transport.open_generation(-1, "learner")
    put(transport, 0, 1)
    ids = take_ids(transport, 1)
    monkeypatch.setattr(redis_server.time, "sleep", lambda seconds: None)
    with trouble(folder, client):
        for verb in (
            lambda: put(transport, 2),
            lambda: report(transport, produced=3),
            lambda: transport.take(1, 0),
            lambda: transport.ack(ids),
            lambda: transport.publish(make_weights(0)),
            lambda: transport.open_generation(-1, "learner"),
        ):
            with pytest.raises(Unreachable):
                verb()
        if trouble is not no_replicas:  # which refuses only writes
            with pytest.raises(UserError, match="cannot serve requests") as raised:
                connect(url, None, namespace, scripts)
            assert is_outage(raised.value)
        if trouble is busy:
            for read in (transport.ledger, transport.health, transport.head):
                with pytest.raises(Unreachable):
                    read()
    monkeypatch.undo()
    assert put(transport, 2) == [OK]
    assert transport.ack(ids) == ids
    assert len(transport.take(9, 0)) == 2
    transport.ledger().check()


def test_puts_into_a_full_store_are_busy_until_episodes_are_settled(
    store: tuple[Path, Any, bool], namespace: str
) -> None:
    folder, client, scripts = store
    transport = connect(f"unix://{folder}/socket", None, namespace, scripts)
    transport.open_generation(-1, "learner")
    assert put(transport, 0, payload=b"x" * 100_000) == [OK]
    with eviction(client, "noeviction", client.info("memory")["used_memory"] - 60_000):
        assert put(transport, 1, payload=b"x") == [BUSY]
        assert len(transport.ack(take_ids(transport))) == 1
    assert put(transport, 1) == [OK]
    transport.ledger().check()


def test_training_survives_a_full_disk_of_the_store(
    store: tuple[Path, Any, bool], tmp_path: Path, namespace: str
) -> None:
    folder, client, scripts = store
    url = f"unix://{folder}/socket"
    learner = make_learner(tmp_path, connect(url, None, namespace, scripts), updates=4)
    producer, calls = ToyProducer(connect(url, None, namespace, scripts)), []
    over = threading.Event()

    def fill_the_disk() -> None:
        with disk_error(folder, client):
            over.wait(20)

    def produce() -> bool:
        if learner.progress.update == 2 and not calls:
            thread = threading.Thread(target=fill_the_disk)
            thread.start()
            calls.append(thread)
            threading.Timer(0.5, over.set).start()
        return bool(Retry()(producer))

    assert learner.run(produce).update == 4
    calls[0].join()
    learner.transport.ledger().check()


def test_calls_wait_for_a_server_that_is_loading_its_data(tmp_path: Path) -> None:
    options = ("--appendonly", "no", "--dbfilename", "dump.rdb")
    with launched(find_server(), tmp_path, *options) as client:
        for n in range(20):
            client.set(f"filler{n}", os.urandom(2000))  # incompressible
        client.save()
    (tmp_path / "socket").unlink(missing_ok=True)
    slowly = ("--key-load-delay", "80000", "--loading-process-events-interval-bytes", "1024")
    with launched(find_server(), tmp_path, *options, *slowly) as client:
        url = f"unix://{tmp_path}/socket"
        with pytest.raises(UserError, match="cannot serve requests") as raised:
            connect(url)
        assert is_outage(raised.value)
        transport = Retry()(lambda: connect(url))
        transport.open_generation(-1, "learner")
        assert put(transport, 0) == [OK]


def test_the_actor_keeps_its_weights_if_the_payload_of_newer_ones_is_lost(
    store: tuple[Path, Any, bool], namespace: str, caplog: pytest.LogCaptureFixture
) -> None:
    folder, client, scripts = store
    transport = connect(f"unix://{folder}/socket", None, namespace, scripts)
    transport.open_generation(-1, "learner")
    weight_client = WeightClient(transport)
    transport.publish(make_weights(0))
    first = weight_client.newest()
    assert first is not None
    transport.publish(make_weights(1))
    client.delete(f"{{{namespace}}}:weights:1:1")
    transport._cache.clear()  # as on a machine without the learner
    assert weight_client.newest(first.digest) is None
    assert weight_client.damaged == 1
    assert "lost the payload of weights 1" in caplog.text
    transport.publish(make_weights(2))
    found = weight_client.newest(first.digest)
    assert found is not None
    assert found.version == 2


@contextmanager
def eviction(client: Any, policy: str, limit: int) -> Iterator[None]:
    client.config_set("maxmemory-policy", policy)
    client.config_set("maxmemory", limit)
    try:
        yield
    finally:
        client.config_set("maxmemory", 0)
        client.config_set("maxmemory-policy", "noeviction")


LIMIT = 2**30


@pytest.mark.parametrize(
    ("policy", "limit", "refused", "warned"),
    [
        ("noeviction", LIMIT, False, False),
        ("noeviction", 0, False, False),
        ("allkeys-lru", LIMIT, True, False),
        ("allkeys-random", LIMIT, True, False),
        ("allkeys-lfu", 0, False, True),  # nothing is evicted without a limit; with one it would be
        ("volatile-lru", LIMIT, False, True),  # evicts only payloads that are put again
    ],
)
def test_a_server_that_evicts_keys_is_refused(
    store: tuple[Path, Any, bool],
    namespace: str,
    caplog: pytest.LogCaptureFixture,
    policy: str,
    limit: int,
    refused: bool,
    warned: bool,
) -> None:
    folder, client, scripts = store
    url = f"unix://{folder}/socket"
    with eviction(client, policy, limit):
        transport = connect(url, None, namespace, scripts)
        if refused:
            for start in (lambda: require_store(url, transport._config, namespace), lambda: opened(transport)):
                with pytest.raises(UserError, match="set its maxmemory-policy to noeviction") as raised:
                    start()
                assert not is_outage(raised.value)
                assert "\n" not in str(raised.value)
            assert client.exists(f"{{{namespace}}}:ledger") == 0
        else:
            opened(transport)
            opened(transport)
    warnings = [r for r in caplog.records if r.levelno == logging.WARNING and "noeviction" in r.getMessage()]
    assert len(warnings) == warned


def test_a_server_that_is_full_before_it_has_our_functions_is_reported_as_such(
    store: tuple[Path, Any, bool], namespace: str
) -> None:
    folder, client, scripts = store
    client.script_flush()
    scripts = scripts or int(client.info("server")["redis_version"].partition(".")[0]) < 7
    if not scripts:
        client.function_flush()
    transport = connect(f"unix://{folder}/socket", None, namespace, scripts)
    with eviction(client, "noeviction", 1):
        if scripts:
            opened(transport)
        else:
            with pytest.raises(
                OutOfMemory, match="memory limit and cannot load Tamiyo's functions: raise its maxmemory"
            ):
                opened(transport)
    opened(transport)


def opened(transport: RedisTransport) -> None:
    transport.open_generation(-1, "learner")


def test_a_server_whose_policy_cannot_be_read_is_used_with_a_warning(
    store: tuple[Path, Any, bool], namespace: str, caplog: pytest.LogCaptureFixture
) -> None:
    folder, client, scripts = store
    client.acl_setuser("plain", enabled=True, nopass=True, keys=["*"], commands=["+@all", "-info", "-config"])
    client.acl_setuser("config", enabled=True, nopass=True, keys=["*"], commands=["+@all", "-info"])
    plain = connect(f"unix://plain:x@{folder}/socket", None, namespace, scripts)
    with eviction(client, "allkeys-lru", LIMIT):
        opened(plain)
        assert "not permitted to read whether Redis evicts" in caplog.text
        with pytest.raises(UserError, match="noeviction"):  # falls back from INFO to CONFIG
            opened(connect(f"unix://config:x@{folder}/socket", None, namespace, scripts))
    assert put(plain, 0) == [OK]
