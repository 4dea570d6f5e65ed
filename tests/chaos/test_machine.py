"""A run survives a full disk."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from deploy.launch.embedded_redis import EmbeddedRedis
from tests.support.chaos.harness import chaos_run

pytestmark = [
    pytest.mark.chaos,
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.long,
    pytest.mark.timeout(240),
    pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root"),
]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=48m", "tmpfs", folder], check=True)
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


def fill(path: Path) -> None:
    with suppress(OSError), path.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))


def test_a_run_waits_while_its_disk_is_full(tmp_path: Path, disk: Path) -> None:
    with EmbeddedRedis() as server, chaos_run(tmp_path, "chaos", server, root=disk) as run:
        filler = disk / "filler"
        fill(filler)
        run.wait_for(lambda: "no space left on the disk" in run.command.out)
        at = run.update
        time.sleep(2.0)
        assert run.update <= at + 1
        filler.unlink()
        run.running_again("redis and its disk", time.monotonic())
        run.wait_for(lambda: "the disk has space again" in run.command.out)
        run.identities()
        ledger = run.end()
        assert len(ledger.actors) == 1  # no process died
