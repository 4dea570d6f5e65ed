"""`ChaosRun`: a small, real run into which tests inject faults, and whose guarantees they check from outside."""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psutil
import redis

from actors.transport.ledger import Ledger
from actors.transport.redis import Transport, connect
from deploy.launch.embedded_redis import EmbeddedRedis
from learner.run.checkpoint import Checkpoint, load_checkpoint
from tests.support.launching import Command, command_line, rows, small, tamiyo

TARGETS_S = {"actor": 5.0, "learner": 15.0, "node": 30.0, "redis": 10.0}
SLACK = float(os.environ.get("TAMIYO_CHAOS_SLACK", "8"))  # factor on the targets, which are for an idle machine


class ChaosRun:
    """A running `tamiyo train` that uses `server`."""

    def __init__(self, command: Command, folder: Path, server: EmbeddedRedis) -> None:
        self.command, self.folder, self.server = command, folder, server
        self.versions: dict[int, bytes] = {}  # version -> manifest of all published weights seen
        self.times_s: dict[str, float] = {}

    # Observation

    @property
    def update(self) -> int:
        """The newest update in the metrics."""
        return int(max((m["update"] for m in self.metrics), default=0))

    @property
    def metrics(self) -> list[dict[str, Any]]:
        return rows(self.folder / "metrics.jsonl")

    @property
    def episode_ids(self) -> list[str]:
        return [row["episode_id"] for row in rows(self.folder / "episodes.jsonl")]

    @property
    def checkpoint(self) -> Checkpoint:
        return load_checkpoint(self.folder)

    def queue(self) -> closing[Transport]:
        return closing(connect(self.server.url, None, self.folder.name))

    def ledger(self) -> Ledger:
        with self.queue() as queue:
            return queue.ledger()

    def processes(self, kind: str) -> list[psutil.Process]:
        """The processes of Ray actors of this class, oldest first. Ray titles them `ray::` and the class."""
        found = [p for p in self.command.relatives() if command_line(p).startswith(f"ray::{kind}")]
        return sorted(found, key=lambda p: p.create_time())

    def wait_for(self, condition: Callable[[], bool], timeout_s: float = 60.0) -> None:
        def look() -> bool:
            self.watch_versions()
            return condition()

        self.command.wait_for(look, timeout_s)

    def wait_for_updates(self, count: int) -> None:
        goal = self.update + count
        self.wait_for(lambda: self.update >= goal)

    def watch_versions(self) -> None:
        """Check that no version's manifest, which holds the hash of its weights, has changed."""
        client = redis.Redis.from_url(self.server.url)
        try:
            published = client.hgetall(f"{{{self.folder.name}}}:weights")
        except redis.RedisError:  # it may be down on purpose
            return
        finally:
            client.close()
        for field, manifest in published.items():
            if field.startswith(b"manifest:"):
                version = int(field.partition(b":")[2])
                assert self.versions.setdefault(version, manifest) == manifest, f"version {version} was published twice"

    # Faults

    def kill(self, kind: str) -> float:
        """Kill the oldest process of this class with SIGKILL; returns the time."""
        self.processes(kind)[0].send_signal(signal.SIGKILL)
        return time.monotonic()

    def acting_again(self, since_s: float, known: set[int]) -> None:
        """Wait for an episode of an incarnation that is not among those `known`."""
        self.wait_for(
            lambda: any(n > max(known, default=-1) and a.accepted for (_, n), a in self.ledger().actors.items())
        )
        self._judge("actor", since_s)

    def running_again(self, what: str, since_s: float) -> None:
        """Wait for new updates, and check how long after `since_s` the first one came."""
        before = self.update
        self.wait_for(lambda: self.update > before, 60.0)
        self._judge(what, since_s)
        self.wait_for(lambda: self.update >= before + 2)

    def _judge(self, what: str, since_s: float) -> None:
        self.times_s[what] = time.monotonic() - since_s
        limit_s = TARGETS_S[what.partition(" ")[0]]
        print(f"{what}: running again after {self.times_s[what]:.1f} s (target {limit_s:.0f} s)")
        assert self.times_s[what] < SLACK * limit_s

    # Guarantees

    def identities(self) -> Ledger:
        """Check that no episode was lost or trained on twice, and that no version was published twice."""
        ledger = self.ledger()
        ledger.check()
        assert [i for i, n in Counter(self.episode_ids).items() if n > 1] == []
        versions = [m["policy_version"] for m in self.metrics]
        assert versions == sorted(set(versions))
        self.watch_versions()
        return ledger

    def end(self) -> Ledger:
        assert self.command.end(30) == 130, self.command.out + self.command.err
        assert self.command.err == ""
        assert "Traceback" not in self.command.out
        ledger = self.identities()
        progress = self.checkpoint.progress
        assert ledger.trained == len(self.episode_ids) == progress.episodes_trained
        assert ledger.pending < 4  # at most an incomplete batch
        return ledger


@contextmanager
def chaos_run(
    logs: Path, name: str, server: EmbeddedRedis, root: Path | None = None, **changes: Any
) -> Iterator[ChaosRun]:
    """Start a run without a last update, and wait for its second update. Its folder is in `root`, by default `logs`."""
    root = root or logs
    settings = {"learner__updates": 1_000_000, "run__redis": server.url} | changes
    with tamiyo(logs, "train", *small(root, name, **settings)) as command:
        run = ChaosRun(command, root / name, server)
        run.wait_for(lambda: run.update >= 2, 200.0)
        yield run
