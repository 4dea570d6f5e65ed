"""What is soaked: a run on a server of its own, and a policy server that follows it, under a light load."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import grpc

from actors.transport.ledger import Ledger
from actors.transport.redis import PASSWORD_VARIABLE, connect
from benchmarks.serving.load import open_loop
from deploy.launch.embedded_redis import EmbeddedRedis

NAME = "soak"
SESSIONS, PACE_HZ, ROUND_S = 8, 5.0, 10.0
START_S = 600.0


@dataclass(frozen=True)
class Subject:
    """What was started: process ids by name, and where to look."""

    roots: dict[int, str]
    folder: Path
    url: str

    @property
    def updates(self) -> int:
        path = self.folder / "metrics.jsonl"
        return path.read_bytes().count(b"\n") if path.exists() else 0

    def ledger(self) -> Ledger:
        transport = connect(self.url, namespace=NAME)
        try:
            return transport.ledger()
        finally:
            transport.close()


class Players(threading.Thread):
    """Rounds of sessions that step at their pace, by turns one by one and on a stream; nobody closes them."""

    def __init__(self, address: str, round_s: float) -> None:
        super().__init__(name="players", daemon=True)
        self._address, self._round_s = address, round_s
        self._over = threading.Event()
        self.steps, self.error = 0, ""

    def run(self) -> None:
        stream = False
        while not self._over.is_set():
            try:
                load = asyncio.run(open_loop(self._address, SESSIONS, PACE_HZ, stream, self._round_s))
            except grpc.RpcError as error:
                if self._over.is_set():
                    return
                if error.code() is not grpc.StatusCode.UNAVAILABLE:
                    self.error = f"{error.code().name}: {error.details()}"
                    return
                time.sleep(1.0)  # it has no weights yet
                continue
            self.steps += round(load.steps_per_s * 0.9 * self._round_s)
            stream = not stream

    def stop(self) -> None:
        self._over.set()
        self.join(2 * self._round_s + 10.0)


@contextmanager
def soaked(root: Path, flags: Sequence[str], round_s: float) -> Iterator[tuple[Subject, Players]]:
    """Under way, and two updates old. Raises `RuntimeError` with its last words where it does not get that far."""
    with EmbeddedRedis() as server:
        parts = urlsplit(server.url)
        os.environ[PASSWORD_VARIABLE] = parts.password or ""
        url = f"unix://{parts.path}"
        names = ["--run.root", str(root), "--run.name", NAME, "--run.redis", url]
        with (
            _command(root, "train", *names, *flags) as train,
            _command(
                root, "serve", "--redis", url, "--name", NAME, "--listen", "127.0.0.1:0", "--session-ttl-s", "60"
            ) as policy,
        ):
            roots = {train.pid: "driver", policy.pid: "policy server", server.pid: "store"}
            subject = Subject(roots, root / NAME, url)
            _await(lambda: subject.updates >= 2, train, root / "train.err")
            _await(lambda: "serving on" in (root / "serve.out").read_text(), policy, root / "serve.err")
            players = Players((root / "serve.out").read_text().split()[-1], round_s)
            players.start()
            try:
                yield subject, players
            finally:
                players.stop()


@contextmanager
def _command(root: Path, command: str, *flags: str) -> Iterator[subprocess.Popen[bytes]]:
    """One `tamiyo` command, ended as by Ctrl-C and `kill`."""
    with (root / f"{command}.out").open("wb") as out, (root / f"{command}.err").open("wb") as err:
        line = [sys.executable, "-m", "deploy.cli", command, *flags]
        process = subprocess.Popen(line, stdout=out, stderr=err, start_new_session=True)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _await(condition: Callable[[], bool], process: subprocess.Popen[bytes], errors: Path) -> None:
    deadline = time.monotonic() + START_S
    while not condition():
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"it did not start: {errors.read_text()[-2000:]}")
        time.sleep(0.2)
