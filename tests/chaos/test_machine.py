"""Runs survive a full disk and a network outage."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest

from deploy.launch.embedded_redis import EmbeddedRedis
from tests.support.chaos.harness import chaos_run
from tests.support.stores import running

pytestmark = [
    pytest.mark.chaos,
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.long,
    pytest.mark.timeout(240),
    pytest.mark.skipif(os.geteuid() != 0, reason="mounting and network namespaces need root"),
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


class TcpServer(NamedTuple):
    url: str


NAME, HOST, GUEST = "tamiyochaos", "10.213.77.1", "10.213.77.2"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[TcpServer]:
    """A server on one side of a veth pair; runs are in a network namespace on the other side."""
    if shutil.which("ip") is None:
        pytest.skip("no ip command (Debian: iproute2)")
    if subprocess.run(["ip", "netns", "add", NAME], capture_output=True).returncode:
        pytest.skip("network namespaces are not allowed here")
    password = secrets.token_hex(8)
    try:
        for words in (
            f"link add {NAME}0 type veth peer name {NAME}1 netns {NAME}",
            f"addr add {HOST}/30 dev {NAME}0",
            f"link set {NAME}0 up",
            f"-n {NAME} addr add {GUEST}/30 dev {NAME}1",
            f"-n {NAME} link set {NAME}1 up",
            f"-n {NAME} link set lo up",
            f"-n {NAME} route add default via {HOST}",
        ):
            subprocess.run(["ip", *words.split()], check=True)
        with running(tmp_path, "--port", "7077", "--bind", HOST, "--requirepass", password, "--appendonly", "no"):
            yield TcpServer(f"redis://:{password}@{HOST}:7077/0")
    finally:
        subprocess.run(["ip", "netns", "del", NAME], check=False)
        subprocess.run(["ip", "link", "del", f"{NAME}0"], check=False, capture_output=True)


def test_a_run_waits_while_its_network_is_down(tmp_path: Path, server: TcpServer) -> None:
    with chaos_run(tmp_path, "chaos", server, within=("ip", "netns", "exec", NAME)) as run:
        before = run.ledger()
        subprocess.run(["ip", "link", "set", f"{NAME}0", "down"], check=True)
        time.sleep(1.0)
        at = run.update
        time.sleep(4.0)
        assert run.update <= at + 1
        subprocess.run(["ip", "link", "set", f"{NAME}0", "up"], check=True)
        run.running_again("redis behind a cut network", time.monotonic())
        assert run.identities().accepted > before.accepted
        run.end()
