"""The growth example: without and with Tamiyo, with a served policy, and when that server is killed."""

from __future__ import annotations

import json
import os
import re
import runpy
import signal
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

import pytest

from actors.growth.controller import LOG_VARIABLE
from actors.growth.decision import Decision
from actors.serving.server.models import ServedRule
from actors.serving.server.server import serve_in_thread
from deploy.cli import main
from deploy.commands.serve_flags import serve_flags
from tests.support.launching import tamiyo

pytestmark = pytest.mark.integration
ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "examples" / "grow_your_model.py"
ADDED = re.compile(r"  # \+$", re.MULTILINE)
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"}


def epochs(output: str) -> list[str]:
    return [line for line in output.splitlines() if line.startswith("epoch ") and "loss" in line]


@pytest.fixture(autouse=True)
def this_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the script that `tamiyo grow` starts import this source tree."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


def server_flags(port: int, folder: Path) -> list[str]:
    key = folder / "key"
    key.write_text("0123456789abcdef" * 2)
    return ["--rule", "fixed-column:double@3", "--listen", f"127.0.0.1:{port}", "--state-key-file", str(key)]


def test_eight_lines_add_growth_to_the_example(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Without them the script is an ordinary one; with them it trains alike until a seed joins in."""
    text = EXAMPLE.read_text()
    assert len(text.splitlines()) < 60
    assert len(ADDED.findall(text)) == 8
    before = tmp_path / "before.py"
    before.write_text("".join(line for line in text.splitlines(keepends=True) if not ADDED.search(line.rstrip("\n"))))
    assert "tamiyo." not in before.read_text().partition('"""\n\n')[2]
    runpy.run_path(str(before))
    plain = capfd.readouterr().out
    assert main(["grow", str(EXAMPLE)]) == 0
    output = capfd.readouterr().out
    assert len(epochs(output)) == 15
    assert epochs(output)[:3] == epochs(plain)[:3]
    assert "14 by the policy" in output
    assert "GERMINATE column" in output
    assert "parameters grown" in output


def test_a_failing_script_and_a_script_without_decisions_are_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "own.py"
    script.write_text("import sys; sys.exit(7 if 'fail' in sys.argv else 0)")
    assert main(["grow", str(script), "fail"]) == 7
    assert main(["grow", str(script)]) == 2
    assert "made no decision" in capsys.readouterr().err


@pytest.mark.long
def test_training_continues_while_the_policy_server_is_down(tmp_path: Path, free_port: int) -> None:
    port, log = free_port, tmp_path / "log.jsonl"
    environment = {**ENVIRONMENT, "TAMIYO_POLICY": f"127.0.0.1:{port}", "TAMIYO_GROWTH_LOG": str(log)}

    def decisions() -> list[dict[str, object]]:
        lines = log.read_text().splitlines() if log.is_file() else []
        return [json.loads(line) for line in lines]

    def wait_for(count: int) -> None:
        deadline = time.monotonic() + 60
        while len(decisions()) < count:
            assert training.poll() is None, "the training ended"
            assert time.monotonic() < deadline, "the training stands still"
            time.sleep(0.01)

    with tamiyo(tmp_path, "serve", *server_flags(port, tmp_path)) as first:
        first.wait_for(lambda: "serving on" in first.out)
        training = subprocess.Popen(
            [sys.executable, EXAMPLE], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
        )
        wait_for(3)
        first.end(10, signal.SIGKILL)
        known = len(decisions())
        wait_for(known + 2)
        training.send_signal(signal.SIGSTOP)  # it must not end before the second server is up
    flags = serve_flags(server_flags(port, tmp_path))
    assert flags.rule is not None
    with serve_in_thread(flags, ServedRule(flags.rule)):  # a second server, with the same key
        training.send_signal(signal.SIGCONT)
        output, errors = training.communicate(timeout=90)
    assert training.returncode == 0, errors
    assert len(epochs(output)) == 15
    made = decisions()
    failed = [d for d in made if d["reason"] not in ("", "the horizon has passed")]
    assert len(failed) >= 1
    assert {d["op"] for d in failed} == {"WAIT"}
    assert all(d["policy_version"] == -1 for d in failed)
    assert "the policy did not answer, so this epoch is a no-op" in errors
    answered = [d["epoch"] for d in made if d["asked"]]
    assert max(answered) > max(d["epoch"] for d in failed), "the server that came back was asked again"
    assert "starts without recurrent state" not in errors, "the session went on from its exported state"


def test_a_policy_that_never_answers_is_an_error(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Otherwise a script whose model never grows would seem to succeed."""
    unreachable = (1, "WAIT", "", "", "", "unreachable", 1.0, None, 0, 1.0)
    row = Decision(*unreachable, ["DORMANT"], [0.0], [""], ["a"], -1, None, [None], [None])
    (tmp_path / "row").write_text(json.dumps(asdict(row)) + "\n")
    script = tmp_path / "script.py"
    script.write_text(f"import os, shutil\nshutil.copy({str(tmp_path / 'row')!r}, os.environ['{LOG_VARIABLE}'])\n")
    assert main(["grow", str(script), "--policy", "never-grow"]) == 2
    assert "the policy answered none of 1 decisions (unreachable)" in capfd.readouterr().err
