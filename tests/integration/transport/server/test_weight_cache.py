"""The processes of one machine share weights, so that a version crosses the network once."""

from __future__ import annotations

import fcntl
import hashlib
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import redis

from actors.codec import InvalidWeights
from actors.transport import weight_cache
from actors.transport.redis import connect
from actors.transport.weight_cache import KEPT, WeightCache
from deploy.launch.embedded_redis import EmbeddedRedis
from tests.support.builders import make_weights

pytestmark = pytest.mark.integration

PAYLOAD = b"weights" * 1000
HASH = hashlib.sha256(PAYLOAD).hexdigest()


class CountingStore:
    """A store with one payload that counts how often it was read."""

    def __init__(self, payload: bytes = PAYLOAD, seconds: float = 0.0) -> None:
        self.payload, self.seconds, self.reads = payload, seconds, 0

    def read(self) -> bytes:
        self.reads += 1
        time.sleep(self.seconds)
        return self.payload


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def test_the_store_is_read_once_by_many_clients_at_the_same_time(folder: Path) -> None:
    store = CountingStore(seconds=0.05)
    with ThreadPoolExecutor(16) as pool:
        results = pool.map(lambda n: WeightCache("run", folder).payload(HASH, store.read), range(16))
        assert list(results) == [(PAYLOAD, True)] * 16
    assert store.reads == 1


def test_a_process_that_holds_the_turn_and_hangs_delays_others_only_so_long(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weight_cache, "WAIT_S", 0.2)
    folder.mkdir(mode=0o700)
    hung = os.open(folder / "run.lock", os.O_CREAT | os.O_RDWR, 0o600)
    try:
        fcntl.flock(hung, fcntl.LOCK_EX)
        began = time.monotonic()
        assert WeightCache("run", folder).payload(HASH, CountingStore().read) == (PAYLOAD, True)
        assert 0.2 <= time.monotonic() - began < 5.0
    finally:
        os.close(hung)


@pytest.mark.parametrize("mode", [0o770, 0o701, None])
def test_a_folder_that_others_can_enter_is_not_used(folder: Path, tmp_path: Path, mode: int | None) -> None:
    """Nor is a link in its place followed."""
    if mode is None:
        (tmp_path / "other").mkdir(mode=0o700)
        folder.symlink_to(tmp_path / "other")
    else:
        folder.mkdir()
        folder.chmod(mode)
    (folder / f"run~{HASH}").write_bytes(b"forged")
    assert WeightCache("run", folder).payload(HASH, CountingStore().read) == (PAYLOAD, False)
    assert len(list(folder.iterdir())) == 1


def test_only_the_newest_files_of_a_namespace_are_kept_and_clearing_removes_only_those(folder: Path) -> None:
    def names() -> list[str]:
        return sorted(path.name for path in folder.iterdir() if "~" in path.name)

    WeightCache("run-2", folder).payload(HASH, CountingStore().read)
    shared, newest = WeightCache("run", folder), []
    for i in range(5):
        payload = bytes([i]) * 100
        newest.append("run~" + hashlib.sha256(payload).hexdigest())
        shared.payload(newest[-1].removeprefix("run~"), CountingStore(payload).read)
        time.sleep(0.01)  # for times of modification that differ
    assert names() == sorted([*newest[-KEPT:], f"run-2~{HASH}"])
    WeightCache("run", folder).clear()  # it has not used the files
    assert len(names()) == KEPT + 1
    shared.clear()
    assert sorted(path.name for path in folder.iterdir()) == ["run-2.lock", f"run-2~{HASH}"]


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[EmbeddedRedis]:
    monkeypatch.setattr(weight_cache, "SHARED_MEMORY", tmp_path)
    with EmbeddedRedis() as started:
        yield started


def test_a_version_is_read_from_the_store_once_per_machine(server: EmbeddedRedis) -> None:
    def stored_reads() -> int:
        return int(redis.Redis.from_url(server.url).info("commandstats").get("cmdstat_get", {"calls": 0})["calls"])

    learner, elsewhere, *actors = (connect(server.url) for _ in range(5))
    generation = learner.open_generation(-1, "learner")
    weights = make_weights(generation.next_version, generation.number)
    learner.publish(weights)
    learner.close()  # as if it were on another machine
    for actor in actors:
        fetched = actor.fetch()
        assert all(np.array_equal(fetched.tensors[name], tensor) for name, tensor in weights.tensors.items())
    assert stored_reads() == 1
    elsewhere.publish(make_weights(generation.next_version + 1, generation.number))
    assert [actor.fetch(fetched.digest).version for actor in actors] == [generation.next_version + 1] * 3
    assert stored_reads() == 1  # the learner has added them


@pytest.mark.parametrize("damage", ["sha256", "lost the payload of weights 1"])
def test_weights_that_are_damaged_in_the_store_are_refused_and_not_shared(server: EmbeddedRedis, damage: str) -> None:
    raw, learner, actor = redis.Redis.from_url(server.url), connect(server.url), connect(server.url)
    learner.open_generation(-1, "learner")
    learner.publish(make_weights(1))
    key = "{tamiyo}:weights:1:1"
    if damage == "sha256":
        raw.setrange(key, 70, bytes([raw.getrange(key, 70, 70)[0] ^ 1]))
    else:
        raw.delete(key)
    learner.close()  # with the intact copy, as on a machine without the learner
    for other in (actor, connect(server.url)):
        with pytest.raises(InvalidWeights, match=damage):
            other.fetch()
    connect(server.url).publish(make_weights(2))
    assert actor.fetch().version == 2
