"""Runs with several learners at once that are hurt at random, and a checker of what their histories must agree on.

Each learner is forked, reaches the store by a cable of its own, and writes down each update that it makes with a hash
of the weights before and after. The lineage that survives is then found from the final weights backwards, whatever
checkpoints, rows and the ledger say of it.
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
from actors.transport import server as server_module
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

CABLES, MOST_LEARNERS, BATCH = 4, 3, 4
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
"""Where a learner can be made to stop or die: the object, the name of its call, and whether after it."""


def prepare(learner: Learner, point: str, nth: int, deed: Callable[[], None]) -> None:
    """Have the nth call there do `deed`."""
    subject, name, late = POINTS[point](learner)
    original = getattr(subject, name)
    setattr(subject, name, (after if late else before)(original, nth, deed))


@dataclass
class Mortal:
    """A learner's process, as its parent knows it."""

    process: int
    cable: int
    stopped: bool = False
    status: int | None = None

    @property
    def was_killed(self) -> bool:
        return self.status is not None and os.WIFSIGNALED(self.status)


@dataclass
class History:
    """One run that is hurt, and what was done to it."""

    url: str
    namespace: str
    folder: Path
    network: Network
    seed: int
    changes: dict[str, Any]
    learners: list[Mortal] = field(default_factory=list)
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

    def begin(self, point: str | None = None) -> Mortal:
        """Fork one more learner."""
        used = {m.cable for m in self.living}
        cable = next(n for n in range(CABLES) if n not in used)
        self.network.set(cable, OPEN)
        nth, deed = self.random.randint(1, 4), self.random.choice([signal.SIGSTOP, signal.SIGSTOP, signal.SIGKILL])
        number = len(self.learners)
        process = os.fork()
        if process == 0:
            status = BROKEN
            try:
                status = self._live(cable, number, point, nth, deed)
            finally:
                os._exit(status)
        mortal = Mortal(process, cable)
        self.learners.append(mortal)
        return mortal

    def _live(self, cable: int, number: int, point: str | None, nth: int, deed: signal.Signals) -> int:
        server_module.SOCKET_TIMEOUT_S = 1.0
        password = self.url.split("@")[0].rpartition(":")[2]
        url = f"unix://:{password}@{self.network.paths[cable]}"
        try:
            transport = Retry()(lambda: connect(url, None, self.namespace))
            learner = self._learner(transport)
            update = learner._update

            def noted(episodes: Any, elapsed_s: float) -> dict[str, float]:
                told = {"before": weights_hash(learner), "ids": [e.episode_id for e in episodes]}
                metrics = update(episodes, elapsed_s)
                told |= {"after": weights_hash(learner), "update": learner.progress.update}
                told |= {"learner": number, "generation": learner.progress.generation}
                with (self.folder / "applied.jsonl").open("a") as file:
                    file.write(json.dumps(told) + "\n")
                return metrics

            learner._update = noted  # type: ignore[method-assign]
            if point is not None:

                def hurt() -> None:
                    (self.folder / f"hurt{number}").write_text(f"{deed.name} at: {point}")
                    os.kill(os.getpid(), deed)

                prepare(learner, point, nth, hurt)
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
        with suppress(UserError):  # it was removed meanwhile; the learner looks again
            return make_learner(run_dir, transport, resume, updates=10**6, batch_episodes=BATCH, **self.changes)
        return make_learner(run_dir, transport, updates=10**6, batch_episodes=BATCH, **self.changes)

    @property
    def living(self) -> list[Mortal]:
        for mortal in self.learners:
            if mortal.status is None:
                ended, status = os.waitpid(mortal.process, os.WNOHANG | os.WUNTRACED)
                if ended and os.WIFSTOPPED(status):
                    mortal.stopped = True
                elif ended:
                    mortal.status = status
        return [m for m in self.learners if m.status is None]

    @property
    def running(self) -> list[Mortal]:
        return [m for m in self.living if not m.stopped]

    # Faults

    def hurt(self) -> None:
        """Do one thing to it."""
        living, running = self.living, self.running
        stopped = [m for m in living if m.stopped]
        choices: list[str] = ["an empty store", "an older store"]
        if len(living) < MOST_LEARNERS:
            choices += ["a learner too many"] * 6
        if running:
            choices += ["stopped", "stopped", "killed", HELD, MUTE, CUT]
        if stopped:
            choices += ["killed while stopped"]
        deed = self.random.choice(choices)
        if deed == "a learner too many":
            self.begin(self.random.choice([None, *POINTS, *POINTS]))
        elif deed == "stopped":
            self.stop(self.random.choice(running))
        elif deed == "killed":
            os.kill(self.random.choice(running).process, signal.SIGKILL)
        elif deed == "killed while stopped":
            os.kill(self.random.choice(stopped).process, signal.SIGKILL)
        elif deed in (HELD, MUTE, CUT):
            self.network.set(self.random.choice(running).cable, deed)
        else:
            self.lose(older=deed == "an older store")
        self.faults[deed] += 1

    def stop(self, mortal: Mortal) -> None:
        os.kill(mortal.process, signal.SIGSTOP)
        mortal.stopped = True

    def heal(self, chance: float) -> None:
        """Let stopped learners continue and cables carry again, each with this chance."""
        for mortal in self.living:
            if mortal.stopped and self.random.random() < chance:
                mortal.stopped = False
                os.kill(mortal.process, signal.SIGCONT)
        for cable, state in enumerate(self.network.state):
            if state != OPEN and self.random.random() < chance:
                self.network.set(cable, OPEN)

    def remember(self) -> None:
        """Keep what the store holds now, of one moment."""
        names = self.client.keys(f"{{{self.namespace}}}:*")
        pipeline = self.client.pipeline(transaction=True)
        for name in names:
            pipeline.pttl(name)
            pipeline.dump(name)
        replies = pipeline.execute()
        found = zip(names, zip(replies[::2], replies[1::2], strict=True), strict=True)
        self.snapshots.append({name: (max(0, ttl), data) for name, (ttl, data) in found if data is not None})

    def lose(self, older: bool) -> None:
        """Empty the store, or put back what it held some time ago; connections break as when it dies."""
        back = self.random.choice(self.snapshots) if older and self.snapshots else {}
        pipeline = self.client.pipeline(transaction=True)
        names = self.client.keys(f"{{{self.namespace}}}:*")
        if names:
            pipeline.delete(*names)
        for name, (ttl, data) in back.items():
            pipeline.restore(name, ttl, data, replace=True)
        pipeline.execute()
        self.client.client_kill_filter(_type="normal", skipme=True)

    # Acting and looking

    def act(self) -> None:
        """Fill the queue by the newest weights; the ledger is exact at every look."""
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
        """Until so many more updates were made by anyone."""
        goal, deadline = len(self.applied) + updates, time.monotonic() + timeout_s
        while len(self.applied) < goal:
            if time.monotonic() > deadline:
                return False
            self.act()
        return True

    def run(self, faults: int) -> None:
        """Hurt it so often, then let it come to rest."""
        self.begin()
        assert self.act_for(2, 60.0)
        while sum(self.faults.values()) < faults:
            self.hurt()
            self.act_for(self.random.randint(0, 3), self.random.uniform(0.1, 1.0))
            if self.random.random() < 0.3:
                self.remember()
            self.heal(0.25)
            if not self.running:
                self.begin(self.random.choice([None, None, *POINTS]))
        for path in self.folder.glob("hurt*"):
            self.faults[path.read_text()] += 1
        self._rest()

    def _rest(self) -> None:
        """End with a learner that can reach everything; zombies wake up beside it, or when it has ended."""
        for cable in range(CABLES):
            self.network.set(cable, OPEN)
        goal, deadline = len(self.applied) + 2, time.monotonic() + 60.0
        while len(self.applied) < goal:
            assert time.monotonic() < deadline, f"no learner trains: {self.learners}"
            if len(self.living) >= CABLES:
                os.kill(self.living[0].process, signal.SIGKILL)
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
        if any(zombie.was_killed for zombie in zombies):  # it may have taken the run over before
            self._end_in_order()
        self.outbox.ship(1.0)

    def _end_in_order(self) -> None:
        """A learner that takes over what the dead have left, and ends at once."""
        for zombie in self.living[CABLES - 1 :]:
            os.kill(zombie.process, signal.SIGKILL)
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
        for mortal in self.living:
            os.kill(mortal.process, signal.SIGKILL)
            os.waitpid(mortal.process, 0)
        self.transport.close()
        self.client.close()

    # What must hold

    def lineage(self) -> list[str]:
        """Ids that the surviving weights were trained on, found by what learners applied."""
        applied = self.applied
        made = {row["after"]: row for row in applied}
        at = hash_of(load_checkpoint(self.folder / "run").weights.tensors)
        ids: list[list[str]] = []
        while at in made:
            ids.append(made[at]["ids"])
            at = made[at]["before"]
        assert at == applied[0]["before"], "the lineage has a gap"
        return [i for some in reversed(ids) for i in some]

    def check(self) -> Ledger:
        for mortal in self.learners:
            assert mortal.status is not None
            assert os.WIFSIGNALED(mortal.status) or os.WEXITSTATUS(mortal.status) in (0, FENCED), self._broken()
        ledger, lineage = self.transport.ledger(), self.lineage()
        ledger.check()
        written = [row["episode_id"] for row in rows(self.folder / "run" / "episodes.jsonl")]
        twice = [i for i, n in Counter(lineage).items() if n > 1]
        assert not twice, f"trained twice in the lineage: {twice}"
        progress = load_checkpoint(self.folder / "run").progress
        told = {
            "ledger": ledger.trained,
            "lineage": len(lineage),
            "rows": len(written),
            "checkpoint": progress.episodes_trained,
        }
        assert len(set(told.values())) == 1, told
        assert written == lineage
        updates = [row["update"] for row in rows(self.folder / "run" / "metrics.jsonl")]
        assert updates == sorted(set(updates))
        accounts = self.outbox.accounts
        assert ledger.actors["actor0", 0].produced == accounts.produced
        return ledger

    def _broken(self) -> str:
        return "\n".join(path.read_text() for path in self.folder.glob("broken*"))
