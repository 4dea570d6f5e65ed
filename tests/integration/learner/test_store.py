"""A learner and its store: one without room, one that forgets a call, and one that another learner uses."""

from __future__ import annotations

import dataclasses
import itertools
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from actors.codec import encode_episode
from actors.errors import UserError
from actors.policy.publish import from_weights
from actors.transport.base import EpisodeHeader, PutStatus
from actors.transport.ledger import ActorLedger
from actors.transport.redis import Transport, connect
from deploy.launch.embedded_redis import EmbeddedRedis
from deploy.launch.ownership import refuse_second_learner
from learner.run.checkpoint import load_checkpoint
from tests.support.learning.toy import toy_seed, toy_wave
from tests.support.learning.toy_learner import ToyProducer, lines, make_learner
from tests.support.stores import Store

pytestmark = pytest.mark.integration
QUEUED, BYTES = 24, 100_000


@pytest.fixture
def server() -> Iterator[EmbeddedRedis]:
    """One whose memory is limited."""
    with EmbeddedRedis() as server:
        yield server


def fill(transport: Transport) -> None:
    weights = transport.fetch()
    source = {name: getattr(weights, name) for name in ("state_stride", "version", "generation")}
    seeds = [toy_seed(5, False, salt) for salt in range(QUEUED)]
    episodes = toy_wave(from_weights(weights), seeds, names=itertools.count(100), **source)
    for episode in sorted(episodes, key=lambda e: int(e.episode_id.rpartition("/")[2])):
        large = dataclasses.replace(episode, telemetry={"k" * BYTES: 1.0})
        assert transport.put(EpisodeHeader.from_episode(large), encode_episode(large)).status is PutStatus.OK


@pytest.mark.parametrize("scripts", [False, pytest.param(True, marks=pytest.mark.long)])
def test_training_makes_the_room_that_its_weights_need(server: EmbeddedRedis, tmp_path: Path, scripts: bool) -> None:
    """What it takes makes room, so that it must not wait for room first."""
    own, producers, transport = (connect(server.url, scripts=scripts) for _ in range(3))
    make_learner(tmp_path, own, updates=3).run(ToyProducer(producers))
    fill(transport)
    client = redis.Redis.from_url(server.url)
    client.config_set("maxmemory", int(client.info("memory")["used_memory"]) - 8 * BYTES)
    learner = make_learner(tmp_path, connect(server.url, scripts=scripts), resume=True, updates=6, max_policy_lag=20)
    deadline = time.monotonic() + 30
    progress = learner.run(lambda: time.monotonic() > deadline)
    assert (progress.update, progress.generation) == (6, 2)
    assert any("no room for new weights" in note for note in learner.notes)
    assert learner.notes[-1] == "the store has room for weights again: they were published"
    assert transport.head() == progress.version
    ledger = transport.ledger()
    ledger.check()
    assert ledger.trained == progress.episodes_trained == 24
    client.close()


def test_weights_are_published_when_room_comes_while_the_learner_waits(server: EmbeddedRedis, tmp_path: Path) -> None:
    """Nothing is queued, and without weights nobody acts: publishing alone is tried again."""
    client = redis.Redis.from_url(server.url)
    producer = ToyProducer(connect(server.url))
    producer.transport.report("actor0", 0, ActorLedger(), {})
    client.config_set("maxmemory", 1)
    learner = make_learner(tmp_path, connect(server.url), updates=2)
    deadline = time.monotonic() + 30

    def look() -> bool:
        if producer.transport.head() >= 0:
            producer()
        elif learner.notes:
            client.config_set("maxmemory", 0)
        return time.monotonic() > deadline

    progress = learner.run(look)
    assert (progress.update, progress.generation) == (2, 1)
    assert "no room for new weights" in learner.notes[0]
    client.close()


class Forgetful:
    """Makes the store forget the nth call of `name` that had an effect, as in a power failure or a failover."""

    def __init__(self, store: Store, transport: Transport, name: str, nth: int) -> None:
        self.store, self.original, self.left = store, getattr(transport, name), nth
        setattr(transport, name, self)

    def __call__(self, *args: Any, **options: Any) -> Any:
        restore = self.store.freeze()
        result = self.original(*args, **options)
        self.left -= bool(result)
        if result and not self.left:
            restore()
        return result


@pytest.mark.parametrize("call", ["take", "ack"])
@pytest.mark.parametrize("settings", [{}, {"checkpoint_every": 2}], ids=str)
def test_a_forgotten_call_does_not_train_episodes_twice(
    store: Store, tmp_path: Path, call: str, settings: dict[str, Any]
) -> None:
    transport = store()
    learner = make_learner(tmp_path, transport, updates=8, **settings)
    forgetful = Forgetful(store, transport, call, 2)
    learner.run(ToyProducer(store()))
    assert forgetful.left <= 0
    ids = [row["episode_id"] for row in lines(tmp_path / "episodes.jsonl")]
    ledger = transport.ledger()
    ledger.check()
    assert len(ids) == len(set(ids)) == 32
    assert ledger.trained == load_checkpoint(tmp_path).progress.episodes_trained == 32


def test_a_learner_at_work_is_noticed_and_one_that_ended_is_not(store: Store, tmp_path: Path) -> None:
    newcomer = store()
    refuse_second_learner(newcomer, "mine")  # a new run
    stop = threading.Event()
    learner = make_learner(tmp_path, store)
    thread = threading.Thread(target=learner.run, args=(stop.is_set,))
    thread.start()
    try:
        while newcomer.head() < 0:
            assert thread.is_alive()
        with pytest.raises(UserError, match="a learner is training run 'mine' already"):
            refuse_second_learner(newcomer, "mine")
    finally:
        stop.set()
        thread.join()
    refuse_second_learner(newcomer, "mine")
