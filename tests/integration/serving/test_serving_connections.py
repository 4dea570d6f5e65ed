"""Connections that nobody with a token uses give way before they use up the server's file descriptors."""

from __future__ import annotations

import resource
import socket
import time
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from actors.serving.client.endpoint import METHODS
from actors.serving.messages import step_request
from actors.serving.server.connections import RESERVED_FILES, Connections
from actors.wire import policy_pb2
from tests.support.learning.toy import SPACES
from tests.support.serving.calls import bearer, wait_for
from tests.support.serving.servers import connect_outcome, serving, step_inputs, write_file

pytestmark = pytest.mark.integration
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])  # and empty settings


def connect(address: str, count: int) -> list[socket.socket]:
    """Open connections that complete the handshake of HTTP/2 and then say nothing."""
    host, _, port = address.rpartition(":")
    connections = [socket.create_connection((host.strip("[]"), int(port))) for _ in range(count)]
    for connection in connections:
        connection.sendall(PREFACE)
    return connections


def is_open(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        while connection.recv(4096):
            pass  # settings of the server
    except BlockingIOError:
        return True
    except ConnectionError:
        pass
    return False


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]"])
def test_idle_connections_give_way_oldest_first_and_used_ones_stay(tmp_path: Path, host: str) -> None:
    tokens = write_file(tmp_path / "tokens", "good\nother\n")
    with (
        serving(listen=f"{host}:0", token_file=tokens, max_connections=20) as running,
        grpc.insecure_channel(running.address) as channel,
    ):

        def call(method: str, request: object) -> object:
            """Without retries: a lost connection fails the call."""
            return channel.unary_unary(*METHODS[method])(request, timeout=5, metadata=bearer("good"))

        session = call("OpenSession", policy_pb2.OpenSessionRequest(spaces_hash=SPACES.hash)).session_id  # type: ignore[attr-defined]
        first = connect(running.address, 15)
        time.sleep(1.2)  # a sweep has seen them
        second = connect(running.address, 10)
        wait_for(lambda: sum(map(is_open, first)) == 9)
        assert all(map(is_open, second))
        flood = connect(running.address, 100)  # more than gRPC accepts at a time
        wait_for(lambda: sum(map(is_open, (*first, *second, *flood))) <= 19)
        with grpc.insecure_channel(running.address, [("grpc.use_local_subchannel_pool", 1)]) as checks:
            stub = health_pb2_grpc.HealthStub(checks)
            status = stub.Check(health_pb2.HealthCheckRequest(), timeout=5, wait_for_ready=True).status
        assert status == health_pb2.HealthCheckResponse.SERVING
        assert connect_outcome(running.address, token="other") == "OK"
        for index in range(2):
            call("Step", step_request(session, index, *step_inputs(0, index), True, False))
        for connection in (*first, *second, *flood):
            connection.close()


def test_the_limit_of_connections_leaves_files_for_everything_else() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        wanted = (hard - RESERVED_FILES) // 4
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(1024, wanted), hard))
        assert Connections(wanted).limit == wanted
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 2 * wanted + RESERVED_FILES  # raised
        found = Connections(hard)
        assert 2 * found.limit <= found.refused_from <= hard - RESERVED_FILES
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == hard
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
