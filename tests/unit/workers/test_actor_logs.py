"""The logs of actors: what environments print, tracebacks, crashes, and a limit."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from actors.workers.faults import actor_logs
from actors.workers.faults.actor_logs import ActorLogs, log_path

PRINTS = """
import os, sys, subprocess, pathlib
from actors.workers.faults.actor_logs import redirect_output
redirect_output(pathlib.Path(sys.argv[1]))
print("from Python", flush=True)
os.write(2, b"from native code\\n")
subprocess.run(["echo", "from a program"])
exec(sys.argv[2])
"""
CRASH = "import faulthandler, os; faulthandler.enable(); os.abort()"


def run(folder: Path, code: str = "") -> subprocess.CompletedProcess[str]:
    path = log_path(str(folder), "actor-1")
    return subprocess.run([sys.executable, "-c", PRINTS, str(path), code], capture_output=True, text=True, check=False)


def test_what_a_process_and_its_programs_print_is_in_its_log(tmp_path: Path) -> None:
    for _ in range(2):
        printed = run(tmp_path)
        assert (printed.returncode, printed.stdout, printed.stderr) == (0, "", "")
    first, second = (tmp_path / "actors" / "actor-1.log").read_text().split("--- actor-1, process ")[1:]
    of_last = ActorLogs(str(tmp_path)).tail("actor-1")
    assert of_last == "from Python\nfrom native code\nfrom a program"
    for part in (first, second):
        assert part.partition("\n")[2].strip() == of_last


def test_the_reason_of_a_crash_is_in_its_log(tmp_path: Path) -> None:
    assert run(tmp_path, CRASH).returncode < 0
    tail = ActorLogs(str(tmp_path)).tail("actor-1")
    assert tail.startswith("Fatal Python error: Aborted")
    assert 'File "<string>", line 1 in <module>' in tail


def test_without_a_folder_a_process_prints_as_before(tmp_path: Path) -> None:
    assert "from Python" in run(tmp_path / "elsewhere").stdout
    logs = ActorLogs("")
    logs.append("actor-1", "lost\n")
    assert (logs.path("actor-1"), logs.tail("actor-1")) == (None, "")


def test_logs_are_limited_while_they_are_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(actor_logs, "LIMIT_BYTES", 100)
    monkeypatch.setattr(actor_logs, "CHECK_INTERVAL_S", 0.0)
    logs = ActorLogs(str(tmp_path))
    logs.append("actor-1", "first\n")
    path = logs.path("actor-1")
    with path.open("ab", buffering=0) as writer:
        for part in range(3):
            writer.write(f"{part}\n".encode() * 60)
            logs.limit()
            assert path.stat().st_size == 0
            assert path.with_suffix(".log.1").read_text().endswith(f"{part}\n")
        writer.write(b"last\n")
        logs.limit()
    assert path.read_bytes() == b"last\n"
