"""Servers of other kinds: Sentinels, nodes of a Redis Cluster, and versions that are too old."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from subprocess import DEVNULL, Popen

import pytest
import redis

from actors.errors import UserError
from actors.transport import redis_server
from actors.transport.base import Unreachable
from actors.transport.redis import connect
from deploy.launch.embedded_redis import find_server
from tests.support.ports import free_port, free_ports
from tests.support.queueing import OK, put
from tests.support.waiting import wait_for

pytestmark = pytest.mark.integration


@contextmanager
def running(folder: Path, port: int, *settings: str) -> Iterator[redis.Redis]:
    """Run a server on a port of loopback. `settings` are lines of its configuration, perhaps after `--sentinel`."""
    flags, lines = settings[: settings[:1] == ("--sentinel",)], settings[settings[:1] == ("--sentinel",) :]
    file = folder / f"{port}.conf"  # which a Sentinel rewrites
    file.write_text("\n".join([f"port {port}", "bind 127.0.0.1", f"dir {folder}", *lines]))
    process = Popen([find_server(), file, *flags], stdout=DEVNULL)
    client = redis.Redis(port=port)
    try:
        for _ in range(100):
            try:
                client.ping()
                break
            except redis.ConnectionError:
                time.sleep(0.05)
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


def succeeds(call: Callable[[], object]) -> bool:
    try:
        call()
    except Unreachable:
        return False
    return True
