"""`History`: a run with several learners at once, random faults, and checks of its outcome.

Each learner is forked, reaches the store over its own connection, and records each of its updates with hashes of the
weights before and after. The surviving lineage is found by following these records back from the final weights,
independently of checkpoints, rows and the ledger.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import os
import random
import signal
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import redis
from numpy.typing import NDArray

from actors.errors import UserError
from actors.policy.publish import from_weights
from actors.transport import redis_server
from actors.transport.base import Fenced
from actors.transport.ledger import Ledger
from actors.transport.redis import RedisTransport, connect
from actors.transport.retry import Retry
from actors.types.weights import WeightSet
from actors.workers.outbox import Outbox
from learner import checkpoint as checkpoint_module
from learner.checkpoint import list_checkpoints, load_checkpoint
from learner.train import Learner
from tests.chaos.network import CUT, HELD, MUTE, OPEN, Network
from tests.chaos.test_crash_points import after, before
from tests.support.launching import rows
from tests.support.toy import toy_seed, toy_wave
from tests.support.toy_learner import make_learner

CABLES, MAX_LEARNERS, BATCH = 4, 3, 4
FENCED, BROKEN = 3, 4  # exit statuses


def hash_of(tensors: Mapping[str, NDArray[Any]]) -> str:
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(name.encode() + tensors[name].tobytes())
    return digest.hexdigest()


def weights_hash(learner: Learner) -> str:
    return hash_of({name: tensor.numpy() for name, tensor in learner.network.state_dict().items()})


POINTS: dict[str, Callable[[Learner], tuple[Any, str, bool]]] = {
    "claimed in the folder": lambda learner: (learner.transport, "claim_generation", False),
    "claimed in the store": lambda learner: (learner.transport, "claim_generation", True),
    "loaded": lambda learner: (learner.state.lineage, "newest", True),
    "before it opens": lambda learner: (learner.transport, "open_generation", False),
    "opened": lambda learner: (learner.transport, "open_generation", True),
    "recovered": lambda learner: (learner.intake, "recover", True),
    "taken": lambda learner: (learner.transport, "take", True),
    "updated": lambda learner: (learner, "_update", True),
    "before it asks for the fence": lambda learner: (learner.state.lineage, "fence", False),
    "before the link": lambda learner: (checkpoint_module, "link", False),
    "after the link": lambda learner: (checkpoint_module, "link", True),
    "before it removes old files": lambda learner: (checkpoint_module, "_prune", False),
    "before it acknowledges": lambda learner: (learner.transport, "ack", False),
    "acknowledged": lambda learner: (learner.transport, "ack", True),
    "published": lambda learner: (learner.transport, "publish", True),
}
"""Where a learner can be suspended or killed: the object, the name of its method, and whether after the call."""


def prepare(learner: Learner, point: str, nth: int, action: Callable[[], None]) -> None:
    """Run `action` at the nth call of that point."""
    subject, name, late = POINTS[point](learner)
    original = getattr(subject, name)
    setattr(subject, name, (after if late else before)(original, nth, action))


@dataclass
class LearnerProcess:
    """A learner's process, as its parent sees it."""

    pid: int
    cable: int
    stopped: bool = False
    status: int | None = None

    @property
    def was_killed(self) -> bool:
        return self.status is not None and os.WIFSIGNALED(self.status)


@dataclass
class History:
    """A run under random faults, and a record of these."""

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
        self.outbox = Outbox(self.transport, "actor0", 0, capacity=1000)
        self.client = redis.Redis.from_url(self.url)
        self.numbers = itertools.count()
        self.salts = itertools.count()
        self.snapshots: list[dict[bytes, tuple[int, bytes]]] = []
        self.weights: WeightSet | None = None

    # Learners

    def begin(self, point: str | None = None) -> LearnerProcess:
        """Fork another learner; with `point`, it suspends or kills itself there."""
        used = {m.cable for m in self.living}
        cable = next(n for n in range(CABLES) if n not in used)
        self.network.set(cable, OPEN)
        nth, action = self.random.randint(1, 4), self.random.choice([signal.SIGSTOP, signal.SIGSTOP, signal.SIGKILL])
        number = len(self.learners)
        pid = os.fork()
        if pid == 0:
            status = BROKEN
            try:
                status = self._live(cable, number, point, nth, action)
            finally:
                os._exit(status)
        process = LearnerProcess(pid, cable)
        self.learners.append(process)
        return process

    def _live(self, cable: int, number: int, point: str | None, nth: int, action: signal.Signals) -> int:
        redis_server.SOCKET_TIMEOUT_S = 1.0
        password = self.url.split("@")[0].rpartition(":")[2]
        url = f"unix://:{password}@{self.network.paths[cable]}"
        try:
            transport = Retry()(lambda: connect(url, None, self.namespace))
            learner = self._learner(transport)
            update = learner._update

            def recorded(episodes: Any, elapsed_s: float) -> dict[str, float]:
                row = {"before": weights_hash(learner), "ids": [e.episode_id for e in episodes]}
                metrics = update(episodes, elapsed_s)
                row |= {"after": weights_hash(learner), "update": learner.progress.update}
                row |= {"learner": number, "generation": learner.progress.generation}
                with (self.folder / "applied.jsonl").open("a") as file:
                    file.write(json.dumps(row) + "\n")
                return metrics

            learner._update = recorded  # type: ignore[method-assign]
            if point is not None:

                def fail() -> None:
                    (self.folder / f"fault{number}").write_text(f"{action.name} at: {point}")
                    os.kill(os.getpid(), action)

                prepare(learner, point, nth, fail)
            learner.run((self.folder / "stop").exists)
        except Fenced:
            return FENCED
        except BaseException:
            (self.folder / f"broken{number}").write_text(traceback.format_exc())
            return BROKEN
        return 0

    def _learner(self, transport: RedisTransport) -> Learner:
        run_dir = self.folder / "run"
        resume = bool(list_checkpoints(run_dir / "checkpoints"))
        with suppress(UserError):  # the checkpoint was removed meanwhile: start without it
            return make_learner(run_dir, transport, resume, updates=10**6, batch_episodes=BATCH, **self.changes)
        return make_learner(run_dir, transport, updates=10**6, batch_episodes=BATCH, **self.changes)

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
        """Inject one random fault."""
        living, running = self.living, self.running
        stopped = [m for m in living if m.stopped]
        choices: list[str] = ["an empty store", "an older store"]
        if len(living) < MAX_LEARNERS:
            choices += ["another learner"] * 6
        if running:
            choices += ["stopped", "stopped", "killed", HELD, MUTE, CUT]
        if stopped:
            choices += ["killed while stopped"]
        action = self.random.choice(choices)
        if action == "another learner":
            self.begin(self.random.choice([None, *POINTS, *POINTS]))
        elif action == "stopped":
            self.stop(self.random.choice(running))
        elif action == "killed":
            os.kill(self.random.choice(running).pid, signal.SIGKILL)
        elif action == "killed while stopped":
            os.kill(self.random.choice(stopped).pid, signal.SIGKILL)
        elif action in (HELD, MUTE, CUT):
            self.network.set(self.random.choice(running).cable, action)
        else:
            self.lose(older=action == "an older store")
        self.faults[action] += 1

    def stop(self, process: LearnerProcess) -> None:
        os.kill(process.pid, signal.SIGSTOP)
        process.stopped = True

    def heal(self, probability: float) -> None:
        """Resume stopped learners and reopen connections, each with this probability."""
        for process in self.living:
            if process.stopped and self.random.random() < probability:
                process.stopped = False
                os.kill(process.pid, signal.SIGCONT)
        for cable, state in enumerate(self.network.state):
            if state != OPEN and self.random.random() < probability:
                self.network.set(cable, OPEN)

    def remember(self) -> None:
        """Take a snapshot of the store."""
        names = self.client.keys(f"{{{self.namespace}}}:*")
        pipeline = self.client.pipeline(transaction=True)
        for name in names:
            pipeline.pttl(name)
            pipeline.dump(name)
        replies = pipeline.execute()
        found = zip(names, zip(replies[::2], replies[1::2], strict=True), strict=True)
        self.snapshots.append({name: (max(0, ttl), data) for name, (ttl, data) in found if data is not None})

    def lose(self, older: bool) -> None:
        """Empty the store, or restore an older snapshot, and break its connections as a crash does."""
        snapshot = self.random.choice(self.snapshots) if older and self.snapshots else {}
        pipeline = self.client.pipeline(transaction=True)
        names = self.client.keys(f"{{{self.namespace}}}:*")
        if names:
            pipeline.delete(*names)
        for name, (ttl, data) in snapshot.items():
            pipeline.restore(name, ttl, data, replace=True)
        pipeline.execute()
        self.client.client_kill_filter(_type="normal", skipme=True)

    # Acting

    def act(self) -> None:
        """Fill the queue with episodes of the newest weights, and check the ledger."""
        ledger = self.transport.ledger()
        ledger.check()
        if ledger.queued < 2 * BATCH and len(self.outbox) < 4 * BATCH:
            head = self.transport.head()
            if self.weights is None or head != self.weights.version:
                self.weights = self.transport.fetch(-1) or self.weights
            if self.weights is not None and head >= 0:
                self._play(self.weights)
        self.outbox.ship(0.0)
        time.sleep(0.01)

    def _play(self, weights: WeightSet) -> None:
        seeds = [toy_seed(1 + salt % 5, salt % 2 == 0, salt) for salt in itertools.islice(self.salts, BATCH)]
        episodes = toy_wave(
            from_weights(weights),
            seeds,
            state_stride=weights.state_stride,
            version=weights.version,
            generation=weights.generation,
            names=self.numbers,
        )
        for episode in sorted(episodes, key=lambda e: int(e.episode_id.rpartition("/")[2])):
            self.outbox.add(episode)

    @property
    def applied(self) -> list[dict[str, Any]]:
        return rows(self.folder / "applied.jsonl")

    def act_for(self, updates: int, timeout_s: float) -> bool:
        """Act until any learners have made this many more updates; False on timeout."""
        goal, deadline = len(self.applied) + updates, time.monotonic() + timeout_s
        while len(self.applied) < goal:
            if time.monotonic() > deadline:
                return False
            self.act()
        return True

    def run(self, faults: int) -> None:
        """Inject this many faults, then let the run recover and end."""
        self.begin()
        assert self.act_for(2, 60.0)
        while sum(self.faults.values()) < faults:
            self.inject_fault()
            self.act_for(self.random.randint(0, 3), self.random.uniform(0.1, 1.0))
            if self.random.random() < 0.3:
                self.remember()
            self.heal(0.25)
            if not self.running:
                self.begin(self.random.choice([None, None, *POINTS]))
        for path in self.folder.glob("fault*"):
            self.faults[path.read_text()] += 1
        self._rest()

    def _rest(self) -> None:
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
        for zombie in self.living[CABLES - 1 :]:
            os.kill(zombie.pid, signal.SIGKILL)
        assert self._until(lambda: len(self.living) < CABLES, 10.0)
        last = self.begin()
        assert self._until(lambda: last not in self.living, 60.0), f"the last learner does not end: {self.learners}"
        assert last.status == 0, self._broken()

    def _until(self, condition: Callable[[], bool], timeout_s: float, wake: float = 0.0) -> bool:
        deadline = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() > deadline:
                return False
            self.heal(wake)
            self.act()
        return True

    def close(self) -> None:
        for process in self.living:
            os.kill(process.pid, signal.SIGKILL)
            os.waitpid(process.pid, 0)
        self.transport.close()
        self.client.close()

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
        """Check that ledger, checkpoint, rows and weights agree on one lineage."""
        for process in self.learners:
            assert process.status is not None
            assert os.WIFSIGNALED(process.status) or os.WEXITSTATUS(process.status) in (0, FENCED), self._broken()
        ledger, lineage = self.transport.ledger(), self.lineage()
        ledger.check()
        written = [row["episode_id"] for row in rows(self.folder / "run" / "episodes.jsonl")]
        twice = [i for i, n in Counter(lineage).items() if n > 1]
        assert not twice, f"trained twice in the lineage: {twice}"
        progress = load_checkpoint(self.folder / "run").progress
        trained = {
            "ledger": ledger.trained,
            "lineage": len(lineage),
            "rows": len(written),
            "checkpoint": progress.episodes_trained,
        }
        assert len(set(trained.values())) == 1, trained
        assert written == lineage
        updates = [row["update"] for row in rows(self.folder / "run" / "metrics.jsonl")]
        assert updates == sorted(set(updates))
        counts = self.outbox.counts
        assert ledger.actors["actor0", 0].produced == counts.produced
        return ledger

    def _broken(self) -> str:
        return "\n".join(path.read_text() for path in self.folder.glob("broken*"))
