"""What an actor's environments leave behind ends soon after the actor, however it ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from actors.workers.faults import reaper
from tests.support.env.gym_envs import nap
from tests.support.waiting import wait_for

pytestmark = pytest.mark.integration

ACTOR = """
import multiprocessing, os, pathlib, subprocess, sys, time
from actors.workers.faults.reaper import start_reaper
start_reaper()
nap = sys.argv[2]
subprocess.Popen(["sh", "-c", f"{nap} & wait"], start_new_session=True)  # a tree
subprocess.run(["sh", "-c", f"{nap} &"])  # a daemon
subprocess.Popen(["sh", "-c", f"trap '' TERM; while :; do {nap}; done"])  # that ignores SIGTERM
multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,)).start()
subprocess.Popen(nap.split(), env={})
pathlib.Path(sys.argv[1]).touch()
sys.stdin.read()
os._exit(3)
"""


def started(folder: Path) -> list[psutil.Process]:
    """The living processes that inherited the test's mark, or that an actor's reaper has to know by itself."""
    found = []
    for process in psutil.process_iter():
        try:
            mine = process.environ().get("TEST_FOLDER") == str(folder) or nap(folder) in " ".join(process.cmdline())
        except psutil.Error:
            continue
        if mine and process.status() != psutil.STATUS_ZOMBIE:
            found.append(process)
    return found


def test_what_is_marked_ends_if_the_actor_has_ended_before_the_reaper_began(tmp_path: Path) -> None:
    actor = subprocess.Popen(["true"])
    actor.wait()
    left = subprocess.Popen(nap(tmp_path).split(), env=os.environ | {reaper.MARK: str(tmp_path)})
    subprocess.run([sys.executable, reaper.__file__, str(actor.pid), str(tmp_path)], check=True, timeout=60)
    assert left.wait(10) == -signal.SIGTERM


@pytest.mark.parametrize("ending", [pytest.param("exit", marks=pytest.mark.long), "kill"])
def test_nothing_is_left(tmp_path: Path, ending: str) -> None:
    bystander, flag = subprocess.Popen(["sleep", "600"]), tmp_path / "started"
    command, mark = [sys.executable, "-c", ACTOR, str(flag), nap(tmp_path)], {"TEST_FOLDER": str(tmp_path)}
    actor = subprocess.Popen(command, stdin=subprocess.PIPE, env=os.environ | mark)
    try:
        wait_for(flag.exists, 60.0)
        time.sleep(5.0)  # the reaper looks at descendants every two seconds, once it has started
        assert len(started(tmp_path)) >= 8
        if ending == "kill":
            actor.send_signal(signal.SIGKILL)
        else:
            actor.communicate()
        assert actor.wait(10) == (3 if ending == "exit" else -signal.SIGKILL)
        wait_for(lambda: started(tmp_path) == [], 60.0)
        assert bystander.poll() is None
    finally:
        for process in [*started(tmp_path), bystander]:
            process.kill()
        bystander.wait()
