"""SIGKILL at every point between two steps of the learner or the actor that must agree, on a real server.

A learner or an actor is forked from this process and kills itself at that point. Each learner first writes the episodes
of an update to a file of the test, from which the expected lineage is computed.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch.utils.tensorboard  # noqa: F401 (imported once, before the forks)

from actors.transport.ledger import Ledger
from actors.transport.redis import RedisTransport, connect
from actors.workers.outbox import Outbox
from deploy.launch.embedded_redis import EmbeddedRedis
from learner.run import checkpoint as checkpoint_module
from learner.run import run_state as run_state_module
from learner.run.checkpoint import list_checkpoints, load_checkpoint
from learner.train import Learner
from tests.support.builders import make_episode
from tests.support.chaos.interruption import after, before
from tests.support.learning.toy_learner import ToyProducer, make_learner

pytestmark = [pytest.mark.integration, pytest.mark.chaos]

UPDATES, BATCH = 4, 4


def fork(body: Callable[[], None]) -> int:
    child = os.fork()
    if child == 0:
        try:
            body()
            os._exit(0)
        finally:
            os._exit(1)
    return child


def was_killed(status: int) -> bool:
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return os.WIFSIGNALED(status)


class Queue:
    """A run on a real server, and a record of the episodes that its learners trained on."""

    def __init__(self, url: str, namespace: str, folder: Path) -> None:
        self.url, self.namespace, self.folder = url, namespace, folder
        self.first = 0  # process id of the learner that is killed

    def open(self) -> RedisTransport:
        return connect(self.url, None, self.namespace)

    def learn(self, resume: bool, prepare: Callable[[Learner], None], **changes: Any) -> None:
        learner = make_learner(self.folder, self.open(), resume, updates=UPDATES, batch_episodes=BATCH, **changes)
        update = learner._update

        def recorded(episodes: Any, elapsed_s: float) -> dict[str, float]:
            row = {
                "learner": os.getpid(),
                "update": learner.progress.update + 1,
                "ids": [e.episode_id for e in episodes],
            }
            with (self.folder / "applied.jsonl").open("a") as file:
                file.write(json.dumps(row) + "\n")
            return update(episodes, elapsed_s)

        learner._update = recorded  # type: ignore[method-assign]
        prepare(learner)
        learner.run()

    def lineage(self, resumed_at: int) -> list[str]:
        """Ids that the surviving weights were trained on."""
        rows = [json.loads(line) for line in (self.folder / "applied.jsonl").read_text().splitlines()]
        return [i for row in rows if row["learner"] != self.first or row["update"] <= resumed_at for i in row["ids"]]

    def rolled_back(self, resumed_at: int) -> list[str]:
        """Ids of the first learner's updates that no checkpoint contains."""
        rows = [json.loads(line) for line in (self.folder / "applied.jsonl").read_text().splitlines()]
        return [i for row in rows if row["learner"] == self.first and row["update"] > resumed_at for i in row["ids"]]

    def ledger(self) -> Ledger:
        transport = self.open()
        ledger = transport.ledger()
        transport.close()
        ledger.check()
        return ledger


@pytest.fixture
def queue(embedded_redis: EmbeddedRedis, namespace: str, tmp_path: Path) -> Queue:
    return Queue(embedded_redis.url, namespace, tmp_path)


def feed_until_it_ends(child: int, producer: ToyProducer) -> bool:
    """Produce episodes and check the ledger while the learner runs; returns whether it was killed."""
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return was_killed(status)
        if producer.transport.head() >= 0:
            producer()
        producer.transport.ledger().check()
        time.sleep(0.02)


POINTS: dict[str, Callable[[Learner], None]] = {
    "after take": lambda learner: setattr(learner.transport, "take", after(learner.transport.take, 4)),
    "after the step": lambda learner: setattr(learner, "_update", after(learner._update, 3)),
    # the first checkpoint is that of the new generation
    "during the checkpoint": lambda learner: setattr(checkpoint_module, "link", before(checkpoint_module.link, 4)),
    "after the checkpoint": lambda learner: setattr(
        run_state_module, "save_checkpoint", after(run_state_module.save_checkpoint, 4)
    ),
    "after ack": lambda learner: setattr(learner.transport, "ack", after(learner.transport.ack, 3)),
    "after publish": lambda learner: setattr(learner.transport, "publish", after(learner.transport.publish, 4)),
}


@pytest.mark.parametrize("ack", ["after_checkpoint", pytest.param("after_step", marks=pytest.mark.long)])
@pytest.mark.parametrize("point", POINTS)
def test_each_episode_is_trained_on_once_when_a_learner_is_killed(queue: Queue, point: str, ack: str) -> None:
    changes = {"ack": ack, "checkpoint_every": 2} if ack == "after_step" else {}
    if point in ("during the checkpoint", "after the checkpoint") and changes:
        changes["checkpoint_every"] = 1  # a third checkpoint is needed
    producer = ToyProducer(queue.open())
    queue.first = fork(lambda: queue.learn(False, POINTS[point], **changes))
    assert feed_until_it_ends(queue.first, producer)
    queue.ledger()
    resume = bool(list_checkpoints(queue.folder / "checkpoints"))
    resumed_at = load_checkpoint(queue.folder).progress.update if resume else 0
    assert not feed_until_it_ends(fork(lambda: queue.learn(resume, lambda learner: None, **changes)), producer)
    ledger, lineage = queue.ledger(), queue.lineage(resumed_at)
    assert len(lineage) == len(set(lineage)) == ledger.trained == UPDATES * BATCH
    assert load_checkpoint(queue.folder).progress.update == UPDATES
    acknowledged = changes and point != "after the step"
    assert ledger.trained_then_lost == (len(queue.rolled_back(resumed_at)) if acknowledged else 0)
    assert ledger.dead_lettered == ledger.lost_with_store == 0


@pytest.mark.parametrize("point", ["before put", "after put"])
def test_episodes_lost_with_a_killed_actor_are_counted(queue: Queue, point: str) -> None:
    queue.open().open_generation(-1, "learner")

    def act() -> None:
        transport = queue.open()
        outbox = Outbox(transport, "run", "a", 0, capacity_steps=1000)
        transport.put_all = (before if point == "before put" else after)(transport.put_all, 2)  # type: ignore[method-assign]
        for wave in range(2):
            for n in range(3):
                outbox.add(make_episode(n, actor="a", sequence=3 * wave + n))
            outbox.report()
            outbox.ship(0.0)

    assert was_killed(os.waitpid(fork(act), 0)[1])
    arrived = 3 if point == "before put" else 6
    ledger = queue.ledger()
    assert (ledger.accepted, ledger.actors["a", 0].unsent) == (arrived, 6 - arrived)
    Outbox(queue.open(), "run", "a", 1, capacity_steps=1000).report()  # its next incarnation
    ledger = queue.ledger()
    assert (ledger.accepted, ledger.actors["a", 0].lost_with_actor) == (arrived, 6 - arrived)
