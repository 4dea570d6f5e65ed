"""The cache of weights that the processes of a machine share."""

from __future__ import annotations

import fcntl
import hashlib
import os
import threading
import time
from pathlib import Path

import pytest

from actors.transport import weight_cache
from actors.transport.weight_cache import KEPT, WeightCache

PAYLOAD = b"weights" * 1000
HASH = hashlib.sha256(PAYLOAD).hexdigest()


class CountingStore:
    """A store with one payload that counts how often it was read."""

    def __init__(self, payload: bytes | None = PAYLOAD, seconds: float = 0.0) -> None:
        self.payload, self.seconds, self.reads = payload, seconds, 0

    def read(self) -> bytes | None:
        self.reads += 1
        time.sleep(self.seconds)
        return self.payload


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def test_the_store_is_read_once_by_many_clients_at_the_same_time(folder: Path) -> None:
    store, results = CountingStore(seconds=0.05), []
    caches = [WeightCache("run", folder) for _ in range(16)]
    threads = [threading.Thread(target=lambda c=c: results.append(c.payload(HASH, store.read))) for c in caches]  # type: ignore[misc]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [(PAYLOAD, True)] * 16
    assert store.reads == 1


@pytest.mark.parametrize("payload", [None, b"", PAYLOAD[:-1] + b"!"])
def test_a_missing_or_damaged_payload_is_not_kept_and_is_returned_unchecked(
    folder: Path, payload: bytes | None
) -> None:
    cache = WeightCache("run", folder)
    assert cache.payload(HASH, CountingStore(payload).read) == (payload, False)
    assert cache.payload(HASH, CountingStore().read) == (PAYLOAD, True)


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


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o701])
def test_a_folder_that_others_can_enter_is_not_used(folder: Path, mode: int) -> None:
    folder.mkdir()
    folder.chmod(mode)
    (folder / f"run~{HASH}").write_bytes(b"forged")
    assert WeightCache("run", folder).payload(HASH, CountingStore().read) == (PAYLOAD, False)


def test_a_link_in_the_place_of_the_folder_is_not_followed(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir(mode=0o700)
    folder.symlink_to(tmp_path / "other")
    assert WeightCache("run", folder).payload(HASH, CountingStore().read) == (PAYLOAD, False)


def test_without_room_the_payload_is_used_but_not_kept(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weight_cache, "MAX_SHARE", 0.0)
    store, cache = CountingStore(), WeightCache("run", folder)
    assert [cache.payload(HASH, store.read) for _ in range(2)] == [(PAYLOAD, True)] * 2
    assert store.reads == 2


def test_only_the_newest_files_of_a_namespace_are_kept_and_clearing_removes_only_those(folder: Path) -> None:
    def names() -> list[str]:
        return sorted(path.name for path in folder.iterdir() if not path.name.endswith(".lock"))

    other = WeightCache("run-2", folder)
    other.payload(HASH, CountingStore().read)
    cache, newest = WeightCache("run", folder), []
    for i in range(5):
        payload = bytes([i]) * 100
        newest.append("run~" + hashlib.sha256(payload).hexdigest())
        cache.payload(newest[-1].removeprefix("run~"), CountingStore(payload).read)
        time.sleep(0.01)  # for times of modification that differ
    assert names() == sorted([*newest[-KEPT:], f"run-2~{HASH}"])
    WeightCache("run", folder).clear()  # it has not used the files
    assert len(names()) == KEPT + 1
    cache.clear()
    assert names() == [f"run-2~{HASH}"]
