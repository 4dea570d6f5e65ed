"""SIGKILL at every point between two steps of the learner or the actor that must agree, on a real server."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import torch.utils.tensorboard  # noqa: F401 (imported once, before the forks)

from actors.transport.ledger import Ledger
from actors.workers.outbox import Outbox
from deploy.launch.embedded_redis import EmbeddedRedis
from tests.support.builders import make_episode
from tests.support.chaos.forked_learner import Fault, after, before
from tests.support.chaos.histories import history
from tests.support.stores import Store

pytestmark = [pytest.mark.integration, pytest.mark.chaos]

POINTS = {  # the first checkpoint and the first publication are those of the new generation
    "taken": 4,
    "updated": 3,
    "before the link": 4,
    "after the link": 4,
    "acknowledged": 3,
    "published": 4,
}
"""Names of `forked_learner.POINTS`, and at which call a learner kills itself there."""


@pytest.mark.parametrize(
    "point", [pytest.param(p, marks=() if p in ("taken", "after the link") else pytest.mark.long) for p in POINTS]
)
def test_each_episode_is_trained_on_once_when_a_learner_is_killed(
    embedded_redis: EmbeddedRedis, namespace: str, tmp_path: Path, point: str
) -> None:
    with history(embedded_redis, namespace, tmp_path, 0, {}) as run:
        first = run.begin(Fault(point, POINTS[point], signal.SIGKILL))
        while first in run.living:
            run.act()
        assert first.was_killed
        run.rest()
        ledger, lineage = run.check(), run.lineage()
    assert len(lineage) == len(set(lineage)) == ledger.trained
    assert ledger.trained_then_lost == ledger.dead_lettered == ledger.lost_with_store == 0


def ledger_of(store: Store) -> Ledger:
    ledger = store().ledger()
    ledger.check()
    return ledger


@pytest.mark.parametrize("point", ["before put", "after put"])
def test_episodes_lost_with_a_killed_actor_are_counted(store: Store, point: str) -> None:
    store().open_generation(-1, "learner")

    def act() -> None:
        transport = store()
        outbox = Outbox(transport, "run", "a", 0, capacity_steps=1000)
        transport.put_all = (before if point == "before put" else after)(transport.put_all, 2)
        for wave in range(2):
            for n in range(3):
                outbox.add(make_episode(n, actor="a", sequence=3 * wave + n))
            outbox.report()
            outbox.ship(0.0)

    child = os.fork()
    if child == 0:
        try:
            act()
        finally:
            os._exit(1)
    assert os.WIFSIGNALED(os.waitpid(child, 0)[1])
    arrived = 3 if point == "before put" else 6
    ledger = ledger_of(store)
    assert (ledger.accepted, ledger.actors["a", 0].unsent) == (arrived, 6 - arrived)
    Outbox(store(), "run", "a", 1, capacity_steps=1000).report()  # its next incarnation
    ledger = ledger_of(store)
    assert (ledger.accepted, ledger.actors["a", 0].lost_with_actor) == (arrived, 6 - arrived)
