"""Processes of one machine share the newest version that the server named, for `FRESH_S`."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from actors.transport.weight_cache import WeightCache
from actors.transport.weight_head import FRESH_S, SharedHead

DIGEST = "0123456789abcdef"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "shared"
    path.mkdir(mode=0o700)
    return path


def head(folder: Path, server: str = "redis://a", namespace: str = "run") -> SharedHead:
    return SharedHead(WeightCache(namespace, folder), server)


def recent_of(writer: SharedHead, version: int, reader: SharedHead) -> int | None:
    """What the reader sees right after the writer; repeated, because this process may be interrupted between both."""
    for _ in range(20):
        writer.saw(version, DIGEST)
        if (seen := reader.recent()) is not None:
            assert seen[1] == DIGEST
            return seen[0]
    return None


def test_others_see_a_version_until_it_is_old(folder: Path) -> None:
    assert head(folder).recent() is None
    assert recent_of(head(folder), 7, head(folder)) == 7
    time.sleep(2 * FRESH_S)
    assert head(folder).recent() is None


def test_another_server_or_namespace_is_not_answered(folder: Path) -> None:
    assert recent_of(head(folder), 7, head(folder, "redis://b")) is None
    assert recent_of(head(folder), 7, head(folder, namespace="run-2")) is None


def test_another_process_sees_it(folder: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from actors.transport.weight_cache import WeightCache\n"
        "from actors.transport.weight_head import SharedHead\n"
        "own = SharedHead(WeightCache('run', Path(sys.argv[1])), 'redis://a')\n"
        "print('ready', flush=True)\n"
        "while (own.recent() or [0])[0] != 7: pass\n"
    )
    with subprocess.Popen([sys.executable, "-c", program, str(folder)], stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        deadline = time.monotonic() + 20
        own = head(folder)
        while other.poll() is None and time.monotonic() < deadline:
            own.saw(7, DIGEST)
        assert other.poll() == 0


def test_a_folder_that_others_can_enter_is_not_used(folder: Path) -> None:
    folder.chmod(0o755)
    assert recent_of(head(folder), 7, head(folder)) is None
    assert not list(folder.iterdir())


def test_clearing_the_cache_removes_it(folder: Path) -> None:
    cache = WeightCache("run", folder)
    SharedHead(cache, "redis://a").saw(7, DIGEST)
    assert len(list(folder.iterdir())) == 1
    cache.clear()
    assert not list(folder.iterdir())
