"""Connecting to a Ray cluster: transient failures are retried, others give a one-line error at once."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import grpc
import psutil
import pytest
import ray

from actors.errors import UserError
from deploy.launch import cluster as module
from deploy.launch.cluster import RETRY_S, cluster

STARTING = ConnectionAbortedError("Traceback ...\nRuntimeError: Starting Ray client server failed. See its log.")


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds that pass, without being waited for."""
    passed = [0.0]
    clock = SimpleNamespace(sleep=passed.append, monotonic=lambda: sum(passed))
    monkeypatch.setattr(module, "time", clock)
    return passed


@pytest.mark.parametrize(
    ("errors", "takes_s"), [((psutil.ZombieProcess(7), STARTING, grpc.RpcError()), 0.0), ((STARTING,), 31.0)]
)
def test_transient_failures_are_retried(
    monkeypatch: pytest.MonkeyPatch, waits: list[float], errors: tuple[BaseException, ...], takes_s: float
) -> None:
    """A process may end while Ray scans all of them, and its client server may fail while it starts, which can take it
    half a minute."""
    left = list(errors)

    def init(**arguments: Any) -> None:
        if left:
            waits.append(takes_s)
            raise left.pop(0)

    monkeypatch.setattr(ray, "init", init)
    with cluster("auto"):
        assert left == []


@pytest.mark.parametrize(
    ("error", "waited_s"),
    [
        (STARTING, RETRY_S),
        (ConnectionError("Could not find any running Ray instance."), 0),
        (ConnectionError("ray client connection timeout"), 0),
        (RuntimeError("Version mismatch: The cluster was started with"), 0),
        (ray.exceptions.AuthenticationError("the token is wrong"), 0),
    ],
)
def test_failures_are_reported_in_one_line(
    monkeypatch: pytest.MonkeyPatch, waits: list[float], error: BaseException, waited_s: float
) -> None:
    monkeypatch.setattr(ray, "init", Mock(side_effect=error))
    with pytest.raises(UserError, match=re.escape(str(error).splitlines()[-1])) as caught, cluster("auto"):
        pass
    assert "\n" not in str(caught.value)
    assert waited_s <= sum(waits) < waited_s + 5
