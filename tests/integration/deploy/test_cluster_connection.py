"""Connecting to a Ray cluster: transient failures are retried, others give a one-line error at once."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import psutil
import pytest
import ray

from actors.errors import UserError
from deploy.launch import cluster as module
from deploy.launch.cluster import cluster, is_transient
from tests.support.launching import tamiyo
from tests.support.serving.client_server import client_server

STARTING = "Traceback ...\nRuntimeError: Starting Ray client server failed. See ray_client_server_23000.err."
ZOMBIE = "Traceback ...\npsutil.ZombieProcess: PID still exists but it's a zombie (pid=7)"


@pytest.mark.integration
@pytest.mark.slow
def test_a_command_connects_at_the_third_attempt(tmp_path: Path) -> None:
    with client_server([STARTING, ZOMBIE]) as (address, asked):
        with tamiyo(tmp_path, "stop", "nobody", "--address", address, RAY_AUTH_MODE="disabled") as stop:
            assert stop.wait(60) == 2
        assert asked.connections == 3
        assert "Starting Ray client server failed" in stop.out
        assert stop.out.count("retrying") == 1
        (line,) = stop.err.splitlines()
        assert line == f"tamiyo: error: no run 'nobody' is running at {address}"


class Connections:
    """A fake `ray.init`, with a clock that advances by the time slept."""

    def __init__(self, patch: pytest.MonkeyPatch, *errors: BaseException, then: BaseException | None = None) -> None:
        self.errors, self.then, self.waits, self.attempts = list(errors), then, [0.0], 0
        patch.setattr(ray, "init", self.init)
        clock = SimpleNamespace(sleep=self.waits.append, monotonic=lambda: sum(self.waits))
        patch.setattr(module, "time", clock)

    def init(self, **arguments: Any) -> None:
        self.attempts += 1
        error = self.errors.pop(0) if self.errors else self.then
        if error is not None:
            raise error


def test_a_process_that_ends_during_the_address_scan_is_a_transient_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tries, told = Connections(monkeypatch, psutil.ZombieProcess(7), psutil.NoSuchProcess(7)), list[str]()
    with cluster("auto", log=told.append):
        pass
    assert tries.attempts == 3
    assert len(told) == 1


def test_transient_failures_are_reported_after_half_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    tries = Connections(monkeypatch, then=ConnectionAbortedError(STARTING))
    with (
        pytest.raises(UserError, match=r"no Ray cluster answers at auto .*Starting Ray client server failed"),
        cluster("auto"),
    ):
        pass
    assert 30 <= sum(tries.waits) < 40
    assert tries.waits == sorted(tries.waits)


@pytest.mark.parametrize(
    "error",
    [
        ConnectionError("Could not find any running Ray instance."),
        ConnectionError("ray client connection timeout"),
        RuntimeError("Version mismatch: The cluster was started with"),
        ray.exceptions.AuthenticationError("the token is wrong"),
    ],
)
def test_permanent_failures_are_reported_at_once(error: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    tries = Connections(monkeypatch, then=error)
    with pytest.raises(UserError, match=re.escape(str(error).splitlines()[0])), cluster("auto"):
        pass
    assert tries.attempts == 1


def test_an_unavailable_grpc_channel_is_transient() -> None:
    with grpc.insecure_channel("127.0.0.1:1") as channel:
        call = channel.unary_unary("/nothing/Here")
        with pytest.raises(grpc.RpcError) as unavailable:
            call(b"", timeout=5)
    assert is_transient(unavailable.value)
    assert not is_transient(grpc.RpcError())
