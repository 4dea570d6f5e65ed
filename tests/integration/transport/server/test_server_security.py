"""TLS, and the least privileges of each role in `users.acl`."""

from __future__ import annotations

import hashlib
import logging
import os
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import redis

from actors.config import ActingConfig
from actors.errors import UserError
from actors.transport.base import Malformed
from actors.transport.redis import Transport, connect, namespaces
from actors.workers.rollout_worker import RolloutWorker, WorkerSettings
from deploy.launch.embedded_redis import find_server
from tests.support.builders import make_weights
from tests.support.ports import free_port
from tests.support.queueing import DUPLICATE, OK, put, report, take_ids
from tests.support.serving.certificates import Authority
from tests.support.stores import running

pytestmark = pytest.mark.integration

ACL = Path(__file__).parents[4] / "deploy" / "redis" / "users.acl"
ROLES = ("actor", "learner", "reader", "monitor")


def users(folder: Path) -> Path:
    text = ACL.read_text()
    for role in ROLES:
        text = text.replace(f"${{{role.upper()}_SHA256}}", hashlib.sha256(f"secret of {role}".encode()).hexdigest())
    (folder / "users.acl").write_text(text)
    return folder / "users.acl"


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Transport]]:
    """`guarded(role, namespace)` connects as that user to a server that uses `users.acl`."""
    folder = tmp_path_factory.mktemp("acl")

    def connect_as(role: str, namespace: str) -> Transport:
        (folder / role).write_text(f"secret of {role}\n")
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TAMIYO_REDIS_PASSWORD_FILE", str(folder / role))
            return connect(f"unix://{role}@{folder}/socket", None, namespace)

    with running(folder, "--port", "0", "--aclfile", users(folder)):
        yield connect_as


@pytest.fixture
def learner(guarded: Callable[..., Transport], namespace: str) -> Transport:
    """The learner's handle, after it connected first and published weights."""
    transport = guarded("learner", namespace)
    transport.open_generation(-1, "learner")
    transport.publish(make_weights(0))
    return transport


def refused(*calls: Callable[[], Any]) -> None:
    for call in calls:
        with pytest.raises(redis.ResponseError, match=r"[Nn]o permissions"):
            call()


def test_an_actor_can_only_put_report_and_fetch(
    learner: Transport, guarded: Callable[..., Transport], namespace: str
) -> None:
    actor = guarded("actor", namespace)
    assert [actor.new_incarnation("b").is_first for _ in range(5)] == [True, False, False, False, False]
    assert put(actor, 0, 0, 1) == [OK, DUPLICATE, OK]
    report(actor, produced=3, accepted=2, unsent=1)
    actor.ledger().check()
    with pytest.raises(Malformed, match="ahead of the store's clock"):  # it may call TIME
        report(actor, 2**53 - 1)
    assert actor.fetch() is not None
    ids, key, raw = take_ids(learner), actor.server.key, actor.server.client
    assert len(ids) == 2
    refused(
        lambda: actor.open_generation(-1, "me"),
        lambda: actor.take(1, 0),
        lambda: actor.ack(ids),
        lambda: actor.publish(make_weights(1)),
        lambda: actor.health(),
        lambda: raw.hset(key("weights"), "head", 99),
        lambda: raw.hset(key("generations"), "current", 99),
        lambda: raw.get(key("payload:run/a/0/1")),
        lambda: raw.xread({key("episodes"): 0}),
        lambda: raw.set("other", 1),
        lambda: raw.function_flush(),
        lambda: raw.eval("return 1", 0),
        lambda: raw.flushall(),
        lambda: raw.config_get("*"),
        lambda: raw.keys("*"),
    )
    assert learner.ack(ids) == ids


def test_a_learner_can_train_but_not_administer_the_server(
    learner: Transport, namespace: str, caplog: pytest.LogCaptureFixture
) -> None:
    learner.server.require_noeviction()
    assert caplog.text == ""  # it may read the policy
    put(learner, 0, 1, 2)
    first, second, third = take_ids(learner)
    assert learner.begin_attempt(first) == 1
    learner.end_attempt(first)
    assert learner.ack([first]) == [first]
    assert learner.dead_letter(second, "reason")
    assert learner.requeue(learner.dead_letters()[0].dead_id) is OK
    learner.revoke(1)
    learner.open_generation(0, "learner")
    assert [d.entry_id for d in learner.pending()] == [third]
    learner.report_learner({"update": 1})
    learner.ledger().check()
    raw = learner.server.client
    refused(
        lambda: raw.flushall(),
        lambda: raw.config_set("maxmemory", 1),
        lambda: raw.acl_list(),
        lambda: raw.set("other", 1),
        lambda: raw.function_flush(),
        lambda: raw.shutdown(),
    )


def test_a_reader_can_only_fetch_weights_and_a_monitor_can_only_read(
    learner: Transport, guarded: Callable[..., Transport], namespace: str
) -> None:
    reader, monitor = guarded("reader", namespace), guarded("monitor", namespace)
    put(learner, 0)
    assert reader.fetch() is not None
    reader.ledger().check()
    monitor.ledger().check()
    assert monitor.health().generation == 1
    assert monitor.dead_letters() == []
    for user in (reader, monitor):
        refused(
            lambda t=user: put(t, 5),
            lambda t=user: t.take(1, 0),
            lambda t=user: t.publish(make_weights(1)),
            lambda t=user: t.server.client.delete(t.server.key("ledger")),
        )


def test_users_of_one_run_cannot_touch_the_keys_of_another(tmp_path: Path) -> None:
    acl = users(tmp_path)
    acl.write_text(acl.read_text().replace("{*}", "{mine}"))
    with running(tmp_path, "--port", "0", "--aclfile", acl):

        def open_as(role: str, run: str) -> Transport:
            return connect(f"unix://{role}:secret of {role}@{tmp_path}/socket", None, run)

        learner, actor = open_as("learner", "mine"), open_as("actor", "mine")
        learner.open_generation(-1, "learner")
        assert put(actor, 0) == [OK]
        report(actor, produced=1, accepted=1)
        actor.ledger().check()
        for role in ROLES:
            other = open_as(role, "other")
            refused(other.ledger, lambda t=other: t.fetch(-1))
        refused(lambda: put(open_as("actor", "other"), 0), lambda: open_as("learner", "other").open_generation(-1, "x"))
        learner.close()
        actor.close()


def test_an_actor_without_a_learner_reports_that_none_is_running(tmp_path: Path) -> None:
    """The actor may not load the functions, which the learner has not loaded yet."""
    with running(tmp_path, "--port", "0", "--aclfile", users(tmp_path)):
        url = f"unix://actor:secret of actor@{tmp_path}/socket"
        with pytest.raises(UserError, match="is a learner running"):
            RolloutWorker(WorkerSettings(ActingConfig(), 0, "run", 0, url, "run", first_weights_s=0.5))


def test_the_server_refuses_the_shipped_file_with_its_placeholders(tmp_path: Path) -> None:
    command = [find_server(), "--port", "0", "--aclfile", ACL, "--dir", tmp_path]
    assert subprocess.run(command, capture_output=True, timeout=10, check=False).returncode != 0


@contextmanager
def behind_tls(folder: Path, authority: Authority, port: int) -> Iterator[None]:
    """A server behind a proxy that terminates TLS, as the bundled one was built without it."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*authority.issue("server"))

    def pump(source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError), closing(sink):
            while data := source.recv(65536):
                sink.sendall(data)

    def serve() -> None:
        while True:
            try:
                outer = context.wrap_socket(listener.accept()[0], server_side=True)
            except ssl.SSLError:
                continue
            except OSError:
                return
            inner = socket.socket(socket.AF_UNIX)
            inner.connect(str(folder / "socket"))
            for pair in ((outer, inner), (inner, outer)):
                threading.Thread(target=pump, args=pair, daemon=True).start()

    options = ("--port", "0", "--requirepass", "secret")
    with running(folder, *options), socket.create_server(("127.0.0.1", port)) as listener:
        threading.Thread(target=serve, daemon=True).start()
        yield


def test_rediss_verifies_the_servers_certificate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("TAMIYO_REDIS_PASSWORD", "secret")
    port, authority = free_port(), Authority(tmp_path)
    url = f"rediss://127.0.0.1:{port}/0"
    trusting = f"{url}?ssl_ca_certs={authority.certificate}"
    with behind_tls(tmp_path, authority, port):
        transport = connect(trusting, None, "tls")
        transport.open_generation(-1, "learner")
        assert put(transport, 0) == [OK]
        assert len(transport.take(1, 0)) == 1
        assert namespaces(trusting) == ["tls"]
        transport.close()
        for wrong in (url, f"{url}?ssl_ca_certs={tmp_path}/none.pem", f"redis://:secret@127.0.0.1:{port}/0"):
            with pytest.raises(UserError) as raised:
                connect(wrong)
            assert "secret" not in str(raised.value)
    assert "secret" not in caplog.text
    assert os.environ["TAMIYO_REDIS_PASSWORD"] == "secret"
