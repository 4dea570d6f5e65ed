"""The file that a raylet runs in the place of Ray's dashboard agent, run as it does."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import psutil

from deploy.launch.ray import start_agent
from tests.support.waiting import wait_for

STARTS = """
import os, subprocess, sys, time
env = {**os.environ, "RAY_RAYLET_PID": "1" if sys.argv[1] == "gone" else str(os.getpid())}
print(subprocess.Popen([sys.executable, *sys.argv[2:]], env=env, stdout=subprocess.DEVNULL).pid, flush=True)
sys.stdin.read()
"""
"""A process in the raylet's place, that lives until its input ends. The variable may name one that is no longer there,
as if the raylet had ended before the agent looked."""
LONG_S = 20.0


def started(tmp_path: Path, raylet: str) -> tuple[subprocess.Popen[str], psutil.Process]:
    """Start a process in the raylet's place, and the agent as its child."""
    agent = [start_agent.__file__, f"--session-dir={tmp_path}", "--node-id=node"]
    command = [sys.executable, "-c", STARTS, raylet, *agent]
    parent = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    return parent, psutil.Process(int(parent.stdout.readline()))


def ended(process: psutil.Process) -> bool:
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


def test_it_says_that_it_has_no_ports_and_lives_as_long_as_the_raylet(tmp_path: Path) -> None:
    files = [tmp_path / f"{name}_node" for name in start_agent.PORTS]
    parent, agent = started(tmp_path, "there")
    try:
        wait_for(lambda: all(f.exists() for f in files), LONG_S)
        assert [f.read_text() for f in files] == ["-1"] * len(files)
        time.sleep(2 * start_agent.POLL_S)
        assert not ended(agent)
        parent.kill()
        wait_for(lambda: ended(agent), LONG_S)
    finally:
        parent.kill()
        parent.communicate()
    assert {f.name for f in tmp_path.iterdir()} == {f.name for f in files}


def test_it_ends_if_the_raylet_ended_before_it_looked(tmp_path: Path) -> None:
    parent, agent = started(tmp_path, "gone")
    try:
        wait_for(lambda: ended(agent), LONG_S)
        assert parent.poll() is None
    finally:
        parent.kill()
        parent.communicate()
