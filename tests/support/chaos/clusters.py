"""A three-node Ray cluster and a Redis server with a password, for tests of runs on clusters."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.chaos.nodes import ANSWER
from tests.support.launching import small
from tests.support.ports import free_port

SLOWLY = {"RAY_raylet_start_wait_time_s": "120"}  # the tests share a busy machine


class Nodes:
    """A cluster in a separate process, as Ray reads its security settings only once; see `tests.support.chaos.nodes`.

    `address` is for drivers on its machines, `client` for `ray://` clients elsewhere.
    """

    def __init__(self, environment: dict[str, str]) -> None:
        port = free_port()
        self.client = f"ray://127.0.0.1:{port}"
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.chaos.nodes", str(port)],
            env=os.environ | environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.address = self.read()

    def read(self) -> str:
        reply = next(line for line in self.process.stdout if line.startswith(ANSWER))
        return reply.removeprefix(ANSWER).strip()

    def ask(self, command: str) -> str:
        print(command, file=self.process.stdin, flush=True)
        return self.read()


@contextmanager
def three_nodes() -> Iterator[Nodes]:
    """Start a head node with room for the learner and one actor, and two nodes with room for one actor each.

    The cluster requires a token, which this process and its children have.
    """
    security = {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "RAY_USAGE_STATS_ENABLED": "0",
        **SLOWLY,
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in security.items():
            patch.setenv(name, value)
        nodes = Nodes(security)
        try:
            yield nodes
        finally:
            nodes.process.communicate("", timeout=30)


def flags(root: Path, name: str, address: str, url: str, **changes: object) -> list[str]:
    changes = {"learner__updates": 1_000_000} | changes
    return [*small(root, name, **changes), *("--address", address, "--redis", url)]
