"""A learner that starts on a store without room: what it takes makes room, so that it must not wait for room first."""

from __future__ import annotations

import dataclasses
import itertools
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from actors.codec import encode_episode
from actors.policy.publish import from_weights
from actors.transport.base import EpisodeHeader, PutStatus
from actors.transport.ledger import ActorLedger
from actors.transport.redis import Transport, connect
from deploy.launch.embedded_redis import EmbeddedRedis
from tests.support.learning.toy import toy_seed, toy_wave
from tests.support.learning.toy_learner import ToyProducer, make_learner

pytestmark = pytest.mark.integration
QUEUED, BYTES = 24, 100_000


@pytest.fixture
def server() -> Iterator[EmbeddedRedis]:
    """One of its own, as its memory is limited."""
    with EmbeddedRedis() as server:
        yield server


def fill(transport: Transport) -> None:
    weights = transport.fetch()
    episodes = toy_wave(
        from_weights(weights),
        [toy_seed(5, False, salt) for salt in range(QUEUED)],
        state_stride=weights.state_stride,
        version=weights.version,
        generation=weights.generation,
        names=itertools.count(100),
    )
    for episode in sorted(episodes, key=lambda e: int(e.episode_id.rpartition("/")[2])):
        large = dataclasses.replace(episode, telemetry={"k" * BYTES: 1.0})
        assert transport.put(EpisodeHeader.from_episode(large), encode_episode(large)).status is PutStatus.OK


@pytest.mark.parametrize("scripts", [False, pytest.param(True, marks=pytest.mark.long)])
def test_training_makes_the_room_that_its_weights_need(server: EmbeddedRedis, tmp_path: Path, scripts: bool) -> None:
    def handle() -> Transport:
        return connect(server.url, scripts=scripts)

    make_learner(tmp_path, handle(), updates=3).run(ToyProducer(handle()))
    transport = handle()
    fill(transport)
    client = redis.Redis.from_url(server.url)
    client.config_set("maxmemory", int(client.info("memory")["used_memory"]) - 8 * BYTES)
    learner = make_learner(tmp_path, handle(), resume=True, updates=6, max_policy_lag=20)
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
