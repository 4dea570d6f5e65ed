"""Run commands as processes in tests, `tamiyo` in particular, and find every process they leave behind."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

MARK = "TAMIYO_TEST_MARK"
RAY_TOKEN = secrets.token_hex(32)  # a process reads its token for Ray once
SMALL = {
    "--env.tasks": "spirals",
    "--env.horizon_epochs": "4",
    "--env.inner_steps": "2",
    "--actors.count": "1",
    "--actors.envs_per_actor": "2",
    "--learner.batch_episodes": "4",
    "--learner.updates": "3",
    "--run.reference_episodes": "2",
}


class Command:
    """A running command with its own session and temporary folder."""

    def __init__(self, folder: Path, words: Sequence[str], environment: Mapping[str, str]) -> None:
        self.mark = uuid.uuid4().hex
        self.temporary = Path(tempfile.mkdtemp(prefix="t", dir="/tmp"))  # short: Ray puts unix sockets there
        self._out, self._err = folder / f"{self.mark}.out", folder / f"{self.mark}.err"
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env={**os.environ, MARK: self.mark, "TMPDIR": str(self.temporary), **environment},
                start_new_session=True,
                # Background processes of a shell ignore SIGINT.
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
            )

    @property
    def out(self) -> str:
        return self._out.read_text(errors="replace")

    @property
    def err(self) -> str:
        return self._err.read_text(errors="replace")

    def wait(self, timeout_s: float = 90.0) -> int:
        return self.process.wait(timeout_s)

    def wait_for(self, condition: Callable[[], bool], timeout_s: float = 60.0) -> None:
        deadline = time.monotonic() + timeout_s
        while not condition():
            assert self.process.poll() is None, f"ended too early: {self.out}\n{self.err}"
            assert time.monotonic() < deadline, f"timed out: {self.out}\n{self.err}"
            time.sleep(0.1)

    def end(self, timeout_s: float = 20.0, number: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.wait(timeout_s)

    def relatives(self) -> list[psutil.Process]:
        """All living processes that inherited the mark of this command, and in their `info` the command lines."""
        living = [p for p in psutil.process_iter(["environ", "status", "cmdline"]) if p.info["status"] != "zombie"]
        return [p for p in living if (p.info["environ"] or {}).get(MARK) == self.mark]

    def left(self, timeout_s: float = 3.0) -> list[str]:
        """The processes and temporary folders that still exist after a short wait."""
        deadline = time.monotonic() + timeout_s
        while True:
            processes = [line for p in self.relatives() if (line := command_line(p))]
            found = processes + [p.name for p in self.temporary.iterdir() if p.name.startswith("tamiyo")]
            if not found or time.monotonic() > deadline:
                return found
            time.sleep(0.1)

    def clean(self) -> None:
        self.process.kill()  # a server may have overwritten its environment, and with it the mark
        for process in self.relatives():
            process.kill()
        self.process.wait(10)
        shutil.rmtree(self.temporary, ignore_errors=True)


def command_line(process: psutil.Process) -> str:
    """The start of a command line; empty if the process has just ended."""
    return " ".join((process.info["cmdline"] or [])[:3])


@contextmanager
def running(folder: Path, words: Sequence[str], environment: Mapping[str, str]) -> Iterator[Command]:
    """Run a command while the context is open, then kill all its processes."""
    command = Command(folder, words, environment)
    try:
        yield command
    finally:
        command.clean()


@contextmanager
def tamiyo(folder: Path, command: str, *flags: str, **settings: str) -> Iterator[Command]:
    """Run `tamiyo COMMAND` while the context is open; `settings` are environment variables."""
    with running(folder, [sys.executable, "-m", "deploy.cli", command, *flags], settings) as found:
        yield found


def small(root: Path, name: str, **changes: Any) -> list[str]:
    """Flags of a small run; `changes` as section__field=value."""
    flags = SMALL | {"--run.root": str(root), "--run.name": name}
    flags |= {f"--{key.replace('__', '.')}": str(value) for key, value in changes.items()}
    return [part for pair in flags.items() for part in pair]


def rows(path: Path) -> list[dict[str, Any]]:
    """Complete lines of a JSONL file."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]
