"""Clients of the metrics port that send nothing, or half a request, do not keep it from being scraped."""

from __future__ import annotations

import socket
import time
import urllib.request
from collections.abc import Iterator

import pytest
from prometheus_client import CollectorRegistry, Gauge

from actors.metrics import http
from actors.metrics.http import MAX_CONNECTIONS, MetricsServer


@pytest.fixture
def server() -> Iterator[MetricsServer]:
    registry = CollectorRegistry()
    Gauge("some_gauge", "help", registry=registry).set(7)
    server = MetricsServer("127.0.0.1", 0, registry)
    yield server
    server.close()


def stuck(server: MetricsServer, count: int) -> list[socket.socket]:
    connections = [socket.create_connection(("127.0.0.1", server.server_port), timeout=5) for _ in range(count)]
    for connection in connections[1::2]:
        connection.sendall(b"GET /metrics HTTP/1.1\r\n")
    return connections


def trickle(connection: socket.socket) -> None:
    for _ in range(100):  # five seconds
        connection.sendall(b"x")
        time.sleep(0.05)


def scrape(server: MetricsServer) -> str:
    return urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/metrics", timeout=5).read().decode()


def test_the_oldest_of_many_connections_give_way(server: MetricsServer) -> None:
    connections = stuck(server, 3 * MAX_CONNECTIONS)
    assert "some_gauge 7.0" in scrape(server)
    assert [c.recv(1) for c in connections[:MAX_CONNECTIONS]] == [b""] * MAX_CONNECTIONS


def test_a_connection_ends_in_time_also_if_it_trickles(server: MetricsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "REQUEST_S", 0.3)
    connections = stuck(server, 4)
    with pytest.raises(OSError, match=r"reset|Broken pipe"):
        trickle(connections[1])
    assert [c.recv(1) for c in (connections[0], connections[2], connections[3])] == [b""] * 3
    assert "some_gauge 7.0" in scrape(server)
