"""Connecting to a Ray cluster: transient failures are retried, others give a one-line error at once."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import grpc
import psutil
import pytest
import ray

from actors.errors import UserError
from deploy.launch import cluster as module
from deploy.launch.cluster import RETRY_S, cluster

STARTING = ConnectionAbortedError("Traceback ...\nRuntimeError: Starting Ray client server failed. See its log.")


class Connections:
    """A fake `ray.init`, with a clock that advances by the time slept."""

    def __init__(
        self, patch: pytest.MonkeyPatch, *errors: BaseException, then: BaseException | None = None, takes_s: float = 0
    ) -> None:
        self.errors, self.then, self.waits, self.attempts, self.takes_s = list(errors), then, [0.0], 0, takes_s
        patch.setattr(ray, "init", self.init)
        clock = SimpleNamespace(sleep=self.waits.append, monotonic=lambda: sum(self.waits))
        patch.setattr(module, "time", clock)

    def init(self, **arguments: Any) -> None:
        self.attempts += 1
        error = self.errors.pop(0) if self.errors else self.then
        if error is not None:
            self.waits.append(self.takes_s)
            raise error


@pytest.mark.parametrize(
    ("errors", "takes_s"), [((psutil.ZombieProcess(7), STARTING, grpc.RpcError()), 0.0), ((STARTING,), 31.0)]
)
def test_transient_failures_are_retried(
    monkeypatch: pytest.MonkeyPatch, errors: tuple[BaseException, ...], takes_s: float
) -> None:
    """A process may end while Ray scans all of them, and its client server may fail while it starts, which can take it
    half a minute."""
    tries = Connections(monkeypatch, *errors, takes_s=takes_s)
    with cluster("auto"):
        pass
    assert tries.attempts == len(errors) + 1


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
    error: BaseException, waited_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = Connections(monkeypatch, then=error)
    with pytest.raises(UserError, match=re.escape(str(error).splitlines()[-1])) as caught, cluster("auto"):
        pass
    assert "\n" not in str(caught.value)
    assert waited_s <= sum(tries.waits) < waited_s + 5
