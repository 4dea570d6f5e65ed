"""`History`: a run with several learners at once, random faults, and checks of its outcome.

Each learner is forked (`tests.support.chaos.forked_learner`), reaches the store over its own connection, and records
each of its updates with hashes of the weights before and after. The surviving lineage is found by following these
records back from the final weights, independently of checkpoints, rows and the ledger.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import tempfile
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from actors.codec import InvalidWeights
from actors.policy.publish import from_weights
from actors.transport.ledger import Ledger
from actors.transport.redis import connect
from actors.types.weights import WeightSet
from actors.workers.outbox import Outbox
from deploy.launch.embedded_redis import EmbeddedRedis
from learner.run.checkpoint import load_checkpoint
from tests.support.chaos.forked_learner import BATCH, BROKEN, FENCED, POINTS, Fault, LearnerProcess, hash_of, train
from tests.support.chaos.network import CUT, HELD, MUTE, OPEN, Network
from tests.support.launching import rows
from tests.support.learning.toy import toy_seed, toy_wave
from tests.support.stores import Store

CABLES, MAX_LEARNERS = 4, 3
STORE_FAULTS = ("an empty store", "an older store", "a store that forgot its last second")


@contextmanager
def history(server: EmbeddedRedis, name: str, folder: Path, seed: int, changes: dict[str, Any]) -> Iterator[History]:
    """A run on the server, with a network between it and each of its learners."""
    (folder / "run").mkdir(parents=True)
    with (
        tempfile.TemporaryDirectory(prefix="t", dir="/tmp") as short,  # a socket's path has at most about 100 bytes
        Network(server.socket_path, Path(short), CABLES) as network,
    ):
        made = History(server.url, name, folder, network, seed, changes)
        try:
            yield made
        finally:
            made.close()


@dataclass
class History:
    url: str
    namespace: str
    folder: Path
    network: Network
    seed: int
    changes: dict[str, Any]
    learners: list[LearnerProcess] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.transport = connect(self.url, None, self.namespace)
        self.outbox = Outbox(self.transport, "run", "actor0", 0, capacity_steps=100_000)
        self.store = Store(self.url, self.namespace)
        self.salts = itertools.count()
        self.snapshots: list[Callable[[], None]] = []  # each brings back a state of the store
        self.recent: deque[Callable[[], None]] = deque(maxlen=4)  # of the last second
        self._copied_s = 0.0
        self.weights: WeightSet | None = None

    # Learners

    def fault_at(self, point: str | None) -> Fault | None:
        action = self.random.choice([signal.SIGSTOP, signal.SIGSTOP, signal.SIGKILL])
        return Fault(point, self.random.randint(1, 4), action) if point else None

    def begin(self, fault: Fault | None = None) -> LearnerProcess:
        used = {m.cable for m in self.living}
        cable = next(n for n in range(CABLES) if n not in used)
        self.network.set(cable, OPEN)
        number = len(self.learners)
        pid = os.fork()
        if pid == 0:
            status = BROKEN
            try:
                place = (self.url, self.network.paths[cable], self.namespace, self.folder)
                status = train(*place, number, fault, self.changes)
            finally:
                os._exit(status)
        process = LearnerProcess(pid, cable)
        self.learners.append(process)
        return process

    @property
    def living(self) -> list[LearnerProcess]:
        for process in self.learners:
            if process.status is None:
                ended, status = os.waitpid(process.pid, os.WNOHANG | os.WUNTRACED)
                if ended and os.WIFSTOPPED(status):
                    process.stopped = True
                elif ended:
                    process.status = status
        return [m for m in self.learners if m.status is None]

    @property
    def running(self) -> list[LearnerProcess]:
        return [m for m in self.living if not m.stopped]

    # Faults

    def inject_fault(self) -> None:
        living, running = self.living, self.running
        stopped = [m for m in living if m.stopped]
        choices: list[str] = [*STORE_FAULTS]
        if len(living) < MAX_LEARNERS:
            choices += ["another learner"] * 6
        if running:
            choices += ["stopped", "stopped", "killed", HELD, MUTE, CUT]
        if stopped:
            choices += ["killed while stopped"]
        action = self.random.choice(choices)
        if action == "another learner":
            self.begin(self.fault_at(self.random.choice([None, *POINTS, *POINTS])))
        elif action == "stopped":
            self.stop(self.random.choice(running))
        elif action == "killed":
            os.kill(self.random.choice(running).pid, signal.SIGKILL)
        elif action == "killed while stopped":
            os.kill(self.random.choice(stopped).pid, signal.SIGKILL)
        elif action in (HELD, MUTE, CUT):
            self.network.set(self.random.choice(running).cable, action)
        else:
            self.lose(action)
        self.faults[action] += 1

    def stop(self, process: LearnerProcess) -> None:
        os.kill(process.pid, signal.SIGSTOP)
        process.stopped = True

    def heal(self, probability: float) -> None:
        for process in self.living:
            if process.stopped and self.random.random() < probability:
                process.stopped = False
                os.kill(process.pid, signal.SIGCONT)
        for cable, state in enumerate(self.network.state):
            if state != OPEN and self.random.random() < probability:
                self.network.set(cable, OPEN)

    def lose(self, fault: str) -> None:
        """Empty the store, or restore an older state, and break its connections as a crash does."""
        older = list(self.recent) if fault == STORE_FAULTS[2] else self.snapshots if fault == STORE_FAULTS[1] else []
        self.random.choice(older or [self.store.empty])()
        self.store.client.client_kill_filter(_type="normal", skipme=True)
        self.recent.clear()  # a later loss would restore what this one has removed

    # Acting

    def act(self) -> None:
        """Fill the queue with episodes of the newest weights, and check the ledger."""
        ledger = self.transport.ledger()
        ledger.check()
        if ledger.queued < 2 * BATCH and len(self.outbox) < 4 * BATCH:
            head = self.transport.head()
            if self.weights is None or head != self.weights.version:
                with suppress(InvalidWeights):  # lost with the store: actors keep theirs until the next version
                    self.weights = self.transport.fetch() or self.weights
            if self.weights is not None and head >= 0:
                self._play(self.weights)
        if time.monotonic() > self._copied_s + 0.25:
            self.recent.append(self.store.freeze())
            self._copied_s = time.monotonic()
        self.outbox.ship(0.0)
        time.sleep(0.01)

    def _play(self, weights: WeightSet) -> None:
        seeds = [toy_seed(1 + salt % 5, salt % 2 == 0, salt) for salt in itertools.islice(self.salts, BATCH)]
        source = {name: getattr(weights, name) for name in ("state_stride", "version", "generation")}
        for episode in toy_wave(from_weights(weights), seeds, **source):
            self.outbox.add(episode)

    @property
    def applied(self) -> list[dict[str, Any]]:
        return rows(self.folder / "applied.jsonl")

    def act_for(self, updates: int, timeout_s: float) -> bool:
        """Act until any learners have made this many more updates; False on timeout."""
        goal = len(self.applied) + updates
        return self._until(lambda: len(self.applied) >= goal, timeout_s)

    def run(self, faults: int) -> None:
        self.begin()
        assert self.act_for(2, 60.0)
        while sum(self.faults.values()) < faults:
            self.inject_fault()
            self.act_for(self.random.randint(0, 3), self.random.uniform(0.1, 1.0))
            if self.random.random() < 0.3:
                self.snapshots.append(self.store.freeze())
            self.heal(0.25)
            if not self.running:
                self._free_cable()
                self.begin(self.fault_at(self.random.choice([None, None, *POINTS])))
        for path in self.folder.glob("fault*"):
            self.faults[path.read_text()] += 1
        self.rest()

    def rest(self) -> None:
        """Recover with a learner that reaches the store. Zombies resume beside it or after it has ended."""
        for cable in range(CABLES):
            self.network.set(cable, OPEN)
        goal, deadline = len(self.applied) + 2, time.monotonic() + 60.0
        while len(self.applied) < goal:
            assert time.monotonic() < deadline, f"no learner trains: {self.learners}"
            if len(self.living) >= CABLES:
                os.kill(self.living[0].pid, signal.SIGKILL)
            elif not self.running:
                self.begin()
            self.act()
        if self.random.random() < 0.5:
            self.heal(1.0)
            self.act_for(2, 5.0)
        (self.folder / "stop").touch()
        assert self._until(lambda: not self.running, 60.0), f"learners do not end: {self.learners}"
        self._end_in_order()
        zombies = self.living
        assert self._until(lambda: not self.living, 90.0, wake=1.0), f"zombies do not end: {self.learners}"
        if any(zombie.was_killed for zombie in zombies):  # it may have taken over the run before
            self._end_in_order()
        self.outbox.ship(1.0)

    def _end_in_order(self) -> None:
        """Run a last learner, which takes over the run and ends at once."""
        self._free_cable()
        last = self.begin()
        assert self._until(lambda: last not in self.living, 60.0), f"the last learner does not end: {self.learners}"
        assert last.status == 0, self._broken()

    def _free_cable(self) -> None:
        """Kill suspended learners if there is no connection left for another one."""
        for zombie in self.living[CABLES - 1 :]:
            os.kill(zombie.pid, signal.SIGKILL)
        assert self._until(lambda: len(self.living) < CABLES, 10.0)

    def _until(self, condition: Callable[[], bool], timeout_s: float, wake: float = 0.0) -> bool:
        deadline = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() > deadline:
                return False
            if wake:
                self.heal(wake)
            self.act()
        return True

    def close(self) -> None:
        for process in self.living:
            os.kill(process.pid, signal.SIGKILL)
            os.waitpid(process.pid, 0)
        self.transport.close()
        self.store.close()

    # Checks

    def lineage(self) -> list[str]:
        """Ids that the surviving weights were trained on, according to the learners' records."""
        applied = self.applied
        made = {row["after"]: row for row in applied}
        at = hash_of(load_checkpoint(self.folder / "run").weights.tensors)
        ids: list[list[str]] = []
        while at in made:
            ids.append(made[at]["ids"])
            at = made[at]["before"]
        assert at == applied[0]["before"], "the lineage has a gap"
        return [i for batch in reversed(ids) for i in batch]

    def check(self) -> Ledger:
        for process in self.learners:
            assert os.WIFSIGNALED(process.status) or os.WEXITSTATUS(process.status) in (0, FENCED), self._broken()
        ledger, lineage = self.transport.ledger(), self.lineage()
        ledger.check()
        written = [row["episode_id"] for row in rows(self.folder / "run" / "episodes.jsonl")]
        assert [i for i, n in Counter(lineage).items() if n > 1] == []
        progress = load_checkpoint(self.folder / "run").progress
        assert written == lineage
        assert ledger.trained == progress.episodes_trained == len(lineage)
        updates = [row["update"] for row in rows(self.folder / "run" / "metrics.jsonl")]
        assert updates == sorted(set(updates))
        assert ledger.actors["actor0", 0].produced == self.outbox.counts.produced
        assert ledger.lost_with_store == 0 or any(self.faults[fault] for fault in STORE_FAULTS)
        return ledger

    def _broken(self) -> str:
        return "\n".join(path.read_text() for path in self.folder.glob("broken*"))
