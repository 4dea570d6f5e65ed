"""Weights cross the network once per machine."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from actors.codec import InvalidWeights
from actors.transport import weight_cache
from actors.transport.redis import RedisTransport, connect
from actors.transport.weight_head import FRESH_S
from deploy.launch.embedded_redis import EmbeddedRedis
from tests.support.builders import make_weights

pytestmark = pytest.mark.integration


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[EmbeddedRedis]:
    monkeypatch.setattr(weight_cache, "SHARED_MEMORY", tmp_path)
    with EmbeddedRedis() as started:
        yield started


def stored_reads(client: RedisTransport) -> int:
    found = client._weights.client.info("commandstats").get("cmdstat_get")
    return int(found["calls"]) if found else 0


def test_a_version_is_read_from_the_store_once_per_machine(server: EmbeddedRedis) -> None:
    learner, *actors = (connect(server.url) for _ in range(4))
    generation = learner.open_generation(-1, "learner")
    weights = make_weights(generation.next_version, generation.number)
    learner.publish(weights)
    learner._cache.clear()  # as if the learner were on another machine
    known = ""
    for actor in actors:
        fetched = actor.fetch()
        assert fetched is not None
        known = fetched.digest
        assert all(np.array_equal(fetched.tensors[name], tensor) for name, tensor in weights.tensors.items())
    assert stored_reads(learner) == 1

    learner.publish(make_weights(generation.next_version + 1, generation.number))
    time.sleep(2 * FRESH_S)  # actors on another machine than the learner may be told the last answer for so long
    assert all((found := actor.fetch(known)) and found.version == generation.next_version + 1 for actor in actors)
    assert stored_reads(learner) == 1  # the learner has added them


def test_weights_that_are_damaged_in_the_store_are_refused_and_not_shared(server: EmbeddedRedis) -> None:
    learner, actor = connect(server.url), connect(server.url)
    generation = learner.open_generation(-1, "learner")
    learner.publish(make_weights(generation.next_version, generation.number))
    learner._cache.clear()
    key = f"{{tamiyo}}:weights:{generation.number}:{generation.next_version}"
    intact = learner._weights.client.get(key)
    learner._weights.client.set(key, intact[:-1] + bytes([intact[-1] ^ 1]))
    for client in (actor, learner):
        with pytest.raises(InvalidWeights, match="sha256"):
            client.fetch()
    learner._weights.client.set(key, intact)
    assert actor.fetch() is not None
