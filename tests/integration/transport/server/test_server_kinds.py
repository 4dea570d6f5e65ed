"""Connecting to servers: Sentinels, nodes of a Redis Cluster, old versions, passwords, and errors of each."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from subprocess import DEVNULL, Popen

import pytest
import redis

from actors.errors import UserError
from actors.transport import redis_server, retry
from actors.transport.base import Unreachable
from actors.transport.redis import connect
from actors.transport.retry import Retry
from deploy.launch.embedded_redis import EmbeddedRedis, find_server
from tests.support.ports import free_port, free_ports
from tests.support.queueing import OK, put
from tests.support.waiting import wait_for

pytestmark = pytest.mark.integration


def succeeds(call: Callable[[], object]) -> bool:
    try:
        call()
    except (Unreachable, redis.ConnectionError):
        return False
    return True


@contextmanager
def running(folder: Path, port: int, *settings: str) -> Iterator[redis.Redis]:
    """Run a server on a port of loopback. `settings` are lines of its configuration, perhaps after `--sentinel`."""
    flags, lines = settings[: settings[:1] == ("--sentinel",)], settings[settings[:1] == ("--sentinel",) :]
    file = folder / f"{port}.conf"  # which a Sentinel rewrites
    file.write_text("\n".join([f"port {port}", "bind 127.0.0.1", f"dir {folder}", *lines]))
    process = Popen([find_server(), file, *flags], stdout=DEVNULL)
    client = redis.Redis(port=port)
    try:
        wait_for(lambda: succeeds(client.ping))
        yield client
    finally:
        client.close()
        process.kill()
        process.wait()


def test_a_node_of_a_cluster_is_refused(tmp_path: Path) -> None:
    port, words = free_port(), "in a Redis Cluster, which is not supported: give a server"
    with running(tmp_path, port, "cluster-enabled yes"), pytest.raises(UserError, match=words):
        connect(f"redis://127.0.0.1:{port}/0")


def test_an_old_version_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    monkeypatch.setattr(redis_server, "OLDEST", (99, 0))
    with running(tmp_path, port), pytest.raises(UserError, match=r"has version [0-9.]+: use 6.2 or newer"):
        connect(f"redis://127.0.0.1:{port}/0")


def test_a_sentinel_leads_to_the_primary(tmp_path: Path) -> None:
    primary, sentinel = free_ports(2)
    watched = f"sentinel monitor main 127.0.0.1 {primary} 1"
    with running(tmp_path, primary) as client, running(tmp_path, sentinel, "--sentinel", watched):
        with pytest.raises(UserError, match=r"is a Sentinel: give redis\+sentinel://"):
            connect(f"redis://127.0.0.1:{sentinel}/0")
        transport = connect(f"redis+sentinel://127.0.0.1:1,127.0.0.1:{sentinel}/main/0")
        transport.open_generation(-1, "learner")
        assert put(transport, 0) == [OK]
        assert client.xlen("{tamiyo}:episodes") == 1
        transport.close()
        with pytest.raises(UserError, match="no Redis answers"):
            connect(f"redis+sentinel://127.0.0.1:{sentinel}/other/0")


@pytest.mark.long
def test_a_sentinel_leads_to_the_next_primary_after_a_failover(tmp_path: Path) -> None:
    primary, replica, sentinel = free_ports(3)
    watched = (f"sentinel monitor main 127.0.0.1 {primary} 1", "sentinel down-after-milliseconds main 200")
    with ExitStack() as stack:
        first = stack.enter_context(running(tmp_path, primary))
        second = stack.enter_context(running(tmp_path, replica, f"replicaof 127.0.0.1 {primary}"))
        guide = stack.enter_context(running(tmp_path, sentinel, "--sentinel", *watched))
        transport = connect(f"redis+sentinel://127.0.0.1:1,127.0.0.1:{sentinel}/main/0")
        transport.open_generation(-1, "learner")
        assert put(transport, 0) == [OK]
        wait_for(lambda: second.xlen("{tamiyo}:episodes") == 1, 20.0)
        wait_for(lambda: len(guide.sentinel_slaves("main")) == 1, 20.0)
        first.shutdown(nosave=True)
        wait_for(lambda: second.info("replication")["role"] == "master", 20.0)
        wait_for(lambda: succeeds(lambda: put(transport, 1)), 20.0)
        assert second.xlen("{tamiyo}:episodes") == 2
        transport.close()


# Passwords, and servers that do not answer


Renewable = tuple[str, Path, Callable[[str], None]]


def test_the_password_is_read_from_the_environment(
    embedded_redis: EmbeddedRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    password, bare = embedded_redis.url.removeprefix("unix://:").split("@")
    monkeypatch.setenv("TAMIYO_REDIS_PASSWORD", password)
    connect(f"unix://{bare}").close()
    monkeypatch.setenv("TAMIYO_REDIS_PASSWORD", "wrong")
    with pytest.raises(UserError, match="TAMIYO_REDIS_PASSWORD"):
        connect(f"unix://{bare}")
    monkeypatch.delenv("TAMIYO_REDIS_PASSWORD")
    with pytest.raises(UserError, match="refused the login"):
        connect(f"unix://{bare}")


@pytest.mark.parametrize(
    "url", ["redis://:secret@127.0.0.1:1/0", "unix://:secret@/nowhere/redis.sock", "http://h:1", "redis://[::1"]
)
def test_an_unreachable_server_is_reported_in_one_line_without_the_password(url: str) -> None:
    with pytest.raises(UserError) as raised:
        connect(url)
    message = str(raised.value)
    assert not any(part in message for part in ("\n", "secret"))
    assert "start one there" in message or "give redis://" in message


@pytest.fixture
def renewable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Renewable]:
    """The URL of a server without its password, the file that holds it, and a function that changes it in the server
    and closes all connections."""
    with EmbeddedRedis() as server:
        password, bare = server.url.removeprefix("unix://:").split("@")
        (tmp_path / "password").write_text(password)
        monkeypatch.setenv("TAMIYO_REDIS_PASSWORD_FILE", str(tmp_path / "password"))
        admin = redis.Redis.from_url(server.url)

        def renew(new: str) -> None:
            admin.config_set("requirepass", new)
            admin.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")

        yield f"unix://{bare}", tmp_path / "password", renew


def test_a_renewed_password_is_read_again(renewable: Renewable) -> None:
    url, file, renew = renewable
    transport = connect(url)
    for new in ("second", "third"):
        renew(new)
        file.unlink()  # between the removal of the old file and the new one
        writing = threading.Timer(0.3, file.write_text, [f"{new}\n"])
        writing.start()
        transport.ledger()
        assert transport.current_generation() == 0
        writing.join()
    transport.close()


def test_a_login_refused_for_a_minute_is_an_error(renewable: Renewable, monkeypatch: pytest.MonkeyPatch) -> None:
    url, _, renew = renewable
    for module in (redis_server, retry):
        monkeypatch.setattr(module, "LOGIN_S", 0.3)
    monkeypatch.setattr(redis_server, "RETRIES", 1)
    transport, lines = connect(url), list[str]()
    renew("second")
    calls: tuple[Callable[[], object], ...] = (transport.ledger, lambda: connect(url))
    for call in calls:
        began = time.monotonic()
        with pytest.raises(UserError, match="refused the login") as raised:
            Retry(lines.append)(call)
        assert 0.3 < time.monotonic() - began < 30.0
        assert "\n" not in str(raised.value)
    assert all("waiting for it" in line for line in lines)
    assert len(lines) == 2
    transport.close()
