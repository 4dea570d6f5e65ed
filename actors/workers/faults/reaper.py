"""A process beside an actor that ends, once the actor has ended, what its environments started and left behind.

It finds simulators and other programs by a variable of their environment, which they inherit, and processes that were
forked or have another environment by having seen them as descendants of the actor.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
import uuid
from contextlib import suppress

import psutil

MARK = "TAMIYO_ACTOR"
FIRST_LOOK_S = 0.1  # between the first two looks at the actor's descendants; then twice as long each time, up to:
LOOK_S = 2.0
MAX_LOAD = 0.005  # share of a core for looking
TERMINATE_S = 2.0  # between SIGTERM and SIGKILL


def start_reaper() -> None:
    """Start a reaper for this process, and mark the programs that it starts from now on."""
    os.environ[MARK] = uuid.uuid4().hex
    command = [sys.executable, "-P", __file__, str(os.getpid()), os.environ[MARK]]
    # The shell makes it no child of this process: Ray kills an actor's children before it ends the actor.
    subprocess.run(
        ["/bin/sh", "-c", '"$@" &', "sh", *command], stdin=subprocess.DEVNULL, start_new_session=True, check=True
    )


def reap(pid: int, mark: str) -> None:
    """Wait for the end of the actor `pid`, which may have ended already, then end what it has left behind."""
    seen: set[psutil.Process] = set()
    pause_s = FIRST_LOOK_S
    with suppress(psutil.NoSuchProcess):
        actor = psutil.Process(pid)
        while True:
            began_s = time.process_time()
            seen = {p for p in seen if p.is_running()} | set(actor.children(recursive=True))
            look_s = time.process_time() - began_s
            with suppress(psutil.TimeoutExpired):
                actor.wait(max(pause_s, look_s / MAX_LOAD))
                break
            pause_s = min(2 * pause_s, LOOK_S)
    left = {p for p in psutil.process_iter() if _is_marked(p, mark)} | {p for p in seen if p.is_running()}
    for process in list(left):
        with suppress(psutil.Error):
            left |= set(process.children(recursive=True))
    for process in left:
        with suppress(psutil.Error):
            process.terminate()
    for process in psutil.wait_procs(left, TERMINATE_S)[1]:
        with suppress(psutil.Error):
            process.kill()


def _is_marked(process: psutil.Process, mark: str) -> bool:
    try:
        return process.pid != os.getpid() and process.environ().get(MARK) == mark
    except psutil.Error:  # it has ended, or belongs to another user
        return False


if __name__ == "__main__":
    reap(int(sys.argv[1]), sys.argv[2])
