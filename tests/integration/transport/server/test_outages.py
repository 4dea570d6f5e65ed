"""Calls wait for a server that cannot serve requests, and what it forgot is sent again. One that evicts is refused."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import redis

from actors.config import QueueConfig
from actors.errors import UserError
from actors.transport import redis_server
from actors.transport.base import OutOfMemory, Unreachable
from actors.transport.redis import connect, require_store
from actors.transport.retry import is_outage
from actors.workers.outbox import Outbox
from tests.conftest import OTHERS, SERVERS
from tests.support.builders import make_episode, make_weights
from tests.support.queueing import BUSY, OK, counts, put, report, take_ids
from tests.support.stores import Store, running
from tests.support.waiting import wait_for

pytestmark = pytest.mark.integration

Trouble = Callable[[Path, Any], Any]


@pytest.fixture(params=SERVERS, scope="module")
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Any]]:
    """This module's own server: its folder, which has a name that tells its kind, and a client."""
    folder = tmp_path_factory.mktemp(request.param)
    with running(folder, "--port", "0", binary=OTHERS.get(request.param)) as client:
        yield folder, client


@pytest.fixture
def store(server: tuple[Path, Any], namespace: str) -> Iterator[Store]:
    folder = server[0]
    store = Store(f"unix://{folder}/socket", namespace, scripts="scripts" in folder.name)
    yield store
    store.close()


@contextmanager
def disk_error(folder: Path, client: Any) -> Iterator[None]:
    """The server cannot save its data, as a folder has the name of its file."""

    def save(outcome: str) -> None:
        client.bgsave()
        wait_for(lambda: client.info("persistence")["rdb_last_bgsave_status"] == outcome)

    (folder / "dump.rdb").mkdir()
    client.config_set("save", "3600 1000000")
    save("err")
    try:
        yield
    finally:
        (folder / "dump.rdb").rmdir()
        save("ok")
        client.config_set("save", "")
        (folder / "dump.rdb").unlink()


@contextmanager
def configured(client: Any, **settings: str | int) -> Iterator[None]:
    """The server has these settings."""
    named = {name.replace("_", "-"): value for name, value in settings.items()}
    before = {name: client.config_get(name)[name] for name in named}
    for name, value in named.items():
        client.config_set(name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            client.config_set(name, value)


def no_replicas(folder: Path, client: Any) -> Any:
    return configured(client, min_replicas_to_write=1)


@contextmanager
def replica(folder: Path, client: Any) -> Iterator[None]:
    """Until it is promoted."""
    client.replicaof("127.0.0.1", "1")
    try:
        yield
    finally:
        client.replicaof("NO", "ONE")


@contextmanager
def busy(folder: Path, client: Any) -> Iterator[None]:
    """Another client's script runs without end."""

    def run_forever() -> None:
        with (
            redis.Redis(unix_socket_path=str(folder / "socket")) as other,
            pytest.raises(redis.ResponseError, match=r"[Kk]illed"),
        ):
            other.eval("while true do end", 0)

    def is_refused() -> bool:
        try:
            return client.get("key") is not None
        except redis.ResponseError:
            return True

    client.config_set("lua-time-limit", 1)
    thread = threading.Thread(target=run_forever)
    thread.start()
    wait_for(is_refused)
    try:
        yield
    finally:
        client.script_kill()
        thread.join()


@pytest.mark.parametrize("trouble", [disk_error, no_replicas, replica, busy])
def test_calls_wait_for_a_server_that_cannot_serve_requests(
    server: tuple[Path, Any], store: Store, trouble: Trouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    transport, sleeps = store(), list[float]()
    transport.open_generation(-1, "learner")
    put(transport, 0, 1)
    ids = take_ids(transport, 1)
    with ExitStack() as over:
        over.enter_context(trouble(*server))
        monkeypatch.setattr(redis_server.time, "sleep", sleeps.append)
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
        if trouble in (disk_error, busy):  # the others refuse only writes
            with pytest.raises(UserError, match="cannot serve requests") as raised:
                store()
            assert is_outage(raised.value)
        if trouble is busy:
            for read in (transport.ledger, transport.health, transport.head):
                with pytest.raises(Unreachable):
                    read()
        sleeps.clear()

        def end_the_trouble(seconds: float) -> None:
            sleeps.append(seconds)
            if len(sleeps) == 3:
                over.close()

        monkeypatch.setattr(redis_server.time, "sleep", end_the_trouble)
        assert put(transport, 2) == [OK]
    monkeypatch.undo()
    assert transport.ack(ids) == ids
    assert len(transport.take(9, 0)) == 2
    transport.ledger().check()


def test_functions_that_a_server_lost_are_loaded_again(server: tuple[Path, Any], store: Store) -> None:
    transport, (_, client) = store(), server
    transport.open_generation(-1, "learner")
    for call in (lambda: put(transport, 0) == [OK], lambda: len(transport.take(1, 0)) == 1):
        flush(client)
        assert call()


def flush(client: Any) -> bool:
    """Forget all scripts and functions; returns whether the server has functions."""
    client.script_flush()
    has_functions = int(client.info("server")["redis_version"].partition(".")[0]) >= 7
    if has_functions:
        client.function_flush()
    return has_functions


# Memory


def eviction(client: Any, policy: str, limit: int) -> Any:
    return configured(client, maxmemory_policy=policy, maxmemory=limit)


def test_puts_into_a_full_store_are_busy_until_episodes_are_settled(server: tuple[Path, Any], store: Store) -> None:
    transport, (_, client) = store(), server
    transport.open_generation(-1, "learner")
    big, statuses = b"x" * 200_000, []
    with eviction(client, "noeviction", client.info("memory")["used_memory"] + 1_500_000):
        while BUSY not in statuses:
            statuses += put(transport, len(statuses), payload=big)
            assert len(statuses) < 20
        accepted = len(statuses) - 1
        assert accepted >= 2
        client.config_set("maxmemory", client.info("memory")["used_memory"])  # too little even for a small episode
        outbox = Outbox(transport, "run", "b", 0, capacity_steps=1000)  # it keeps its episode and tries again later
        outbox.add(make_episode(actor="b"))
        outbox.ship(0.0)
        assert (len(outbox), outbox.counts.produced) == (1, 1)
        ids = [d.entry_id for d in transport.take(100, 0)]
        assert len(ids) == accepted
        assert transport.dead_letter(ids[0], "reason")
        assert len(transport.ack(ids[1:])) == accepted - 1
        assert put(transport, accepted, payload=big) == [OK]
    assert counts(transport, "accepted", "trained", "dead_lettered", "queued") == (accepted + 1, accepted - 1, 1, 1)


LIMIT = 2**30


def test_a_server_that_evicts_keys_is_refused(server: tuple[Path, Any], store: Store) -> None:
    with eviction(server[1], "allkeys-lru", LIMIT):
        transport = store()
        for start in (
            lambda: require_store(store.url, QueueConfig(), store.namespace),
            lambda: transport.open_generation(-1, "learner"),
        ):
            with pytest.raises(UserError, match="set its maxmemory-policy to noeviction") as raised:
                start()
            assert not is_outage(raised.value)
        assert store.keys() == []


@pytest.mark.parametrize(
    ("policy", "limit", "warned"),
    [
        ("noeviction", LIMIT, False),
        ("allkeys-lfu", 0, True),  # nothing is evicted without a limit; with one it would be
        ("volatile-lru", LIMIT, True),  # evicts only payloads that are put again
    ],
)
def test_other_policies_are_used_perhaps_with_one_warning(
    server: tuple[Path, Any], store: Store, caplog: pytest.LogCaptureFixture, policy: str, limit: int, warned: bool
) -> None:
    transport = store()
    with eviction(server[1], policy, limit):
        for _ in range(2):
            transport.open_generation(-1, "learner")
    assert caplog.text.count("noeviction") == warned


def test_a_server_whose_policy_cannot_be_read_is_used_with_a_warning(
    server: tuple[Path, Any], store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    server[1].acl_setuser("plain", enabled=True, nopass=True, keys=["*"], commands=["+@all", "-info"])
    plain = connect(store.url.replace("unix://", "unix://plain:x@"), None, store.namespace, store.scripts)
    with eviction(server[1], "allkeys-lru", LIMIT):
        plain.open_generation(-1, "learner")
    assert "not permitted to read whether Redis evicts" in caplog.text
    assert put(plain, 0) == [OK]
    plain.close()


def test_a_server_that_is_full_before_it_has_our_functions_is_reported_as_such(
    server: tuple[Path, Any], store: Store
) -> None:
    transport, has_functions = store(), flush(server[1])
    with eviction(server[1], "noeviction", 1):
        if has_functions and not store.scripts:
            with pytest.raises(OutOfMemory, match="cannot load Tamiyo's functions: raise its maxmemory"):
                transport.open_generation(-1, "learner")
        else:
            transport.open_generation(-1, "learner")
    transport.open_generation(-1, "learner")
