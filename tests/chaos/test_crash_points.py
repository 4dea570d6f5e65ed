"""SIGKILL at every point between two steps of the learner or the actor that must agree, on a real server.

A learner or an actor is forked from this process and kills itself at that point. Each learner first writes the episodes
of an update to a file of the test, from which the expected lineage is computed.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch.utils.tensorboard  # noqa: F401 (imported once, before the forks)

from actors.transport.ledger import Ledger
from actors.workers.outbox import Outbox
from deploy.launch.embedded_redis import EmbeddedRedis
from learner.run.checkpoint import load_checkpoint
from tests.support.builders import make_episode
from tests.support.chaos.forked_learner import Fault, train
from tests.support.chaos.interruption import after, before
from tests.support.launching import rows
from tests.support.learning.toy_learner import ToyProducer
from tests.support.stores import Store

pytestmark = [pytest.mark.integration, pytest.mark.chaos]

UPDATES = 4


def fork(body: Callable[[], object]) -> int:
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


def ledger_of(store: Store) -> Ledger:
    ledger = store().ledger()
    ledger.check()
    return ledger


POINTS = {  # the first checkpoint and the first publication are those of the new generation
    "taken": 4,
    "updated": 3,
    "before the link": 4,
    "after the link": 4,
    "acknowledged": 3,
    "published": 4,
}
"""Names of `forked_learner.POINTS`, and at which call a learner kills itself there."""


@pytest.mark.parametrize("ack", ["after_checkpoint", pytest.param("after_step", marks=pytest.mark.long)])
@pytest.mark.parametrize("point", POINTS)
def test_each_episode_is_trained_on_once_when_a_learner_is_killed(
    store: Store, embedded_redis: EmbeddedRedis, tmp_path: Path, point: str, ack: str
) -> None:
    changes: dict[str, Any] = {"ack": ack, "checkpoint_every": 2} if ack == "after_step" else {}
    if point in ("before the link", "after the link") and changes:
        changes["checkpoint_every"] = 1  # a third checkpoint is needed
    producer, run = ToyProducer(store()), tmp_path / "run"
    run.mkdir()

    def learn(number: int, fault: Fault | None = None) -> bool:
        """Produce episodes and check the ledger while a learner trains; returns whether it was killed."""
        socket = embedded_redis.socket_path
        child = fork(lambda: os._exit(train(store.url, socket, store.namespace, tmp_path, number, fault, changes)))
        while True:
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                return was_killed(status)
            if producer.transport.head() >= 0:
                producer()
            producer.transport.ledger().check()
            if fault is None and any(row["update"] >= UPDATES for row in rows(tmp_path / "applied.jsonl")):
                (tmp_path / "stop").touch()
            time.sleep(0.02)

    assert learn(0, Fault(point, POINTS[point], signal.SIGKILL))
    ledger_of(store)
    resumed_at = load_checkpoint(run).progress.update
    assert not learn(1)
    ledger, applied = ledger_of(store), rows(tmp_path / "applied.jsonl")
    lost = [row for row in applied if row["learner"] == 0 and row["update"] > resumed_at]
    lineage = [i for row in applied if row not in lost for i in row["ids"]]
    assert len(lineage) == len(set(lineage)) == ledger.trained == load_checkpoint(run).progress.episodes_trained
    assert ledger.trained >= UPDATES * 4
    assert [row["episode_id"] for row in rows(run / "episodes.jsonl")] == lineage
    acknowledged = changes and point != "updated"
    assert ledger.trained_then_lost == (sum(len(row["ids"]) for row in lost) if acknowledged else 0)
    assert ledger.dead_lettered == ledger.lost_with_store == 0


@pytest.mark.parametrize("point", ["before put", "after put"])
def test_episodes_lost_with_a_killed_actor_are_counted(store: Store, point: str) -> None:
    store().open_generation(-1, "learner")

    def act() -> None:
        transport = store()
        outbox = Outbox(transport, "run", "a", 0, capacity_steps=1000)
        transport.put_all = (before if point == "before put" else after)(transport.put_all, 2)  # type: ignore[method-assign]
        for wave in range(2):
            for n in range(3):
                outbox.add(make_episode(n, actor="a", sequence=3 * wave + n))
            outbox.report()
            outbox.ship(0.0)

    assert was_killed(os.waitpid(fork(act), 0)[1])
    arrived = 3 if point == "before put" else 6
    ledger = ledger_of(store)
    assert (ledger.accepted, ledger.actors["a", 0].unsent) == (arrived, 6 - arrived)
    Outbox(store(), "run", "a", 1, capacity_steps=1000).report()  # its next incarnation
    ledger = ledger_of(store)
    assert (ledger.accepted, ledger.actors["a", 0].lost_with_actor) == (arrived, 6 - arrived)
