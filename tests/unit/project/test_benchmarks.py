"""Benchmarks share one interface: a quick run prints a table and writes targets, machine and rows."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

SLOW = ("learner", "acting", "env", "race --sides tamiyo", "serve")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["transport", *(pytest.param(name, marks=pytest.mark.long) for name in SLOW)])
def test_a_quick_run_has_the_common_output(name: str, tmp_path: Path) -> None:
    path, (module, *flags) = tmp_path / "result.json", name.split()
    command = [sys.executable, "-m", f"benchmarks.{module}", "--quick", "--json", str(path), *flags]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=110)
    assert ended.returncode == 0, ended.stderr
    result = json.loads(path.read_text())
    assert set(result) == {"targets", "machine", "rows"}
    assert result["machine"]["cores"] >= 1
    assert all(set(target) == {"name", "value", "goal", "met"} for target in result["targets"])
    figures = [v for row in result["rows"] for k, v in row.items() if k.endswith(("steps/s", "episodes/s"))]
    assert figures
    assert min(figures) > 0
    assert len(ended.stdout.splitlines()) > len(result["rows"])


@pytest.mark.slow
@pytest.mark.long
def test_recurrent_policies_obey_masks_in_every_kind_of_action_space() -> None:
    command = [sys.executable, "-m", "benchmarks.peers.ours"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=110)
    assert ended.returncode == 0, ended.stderr
    claims = [json.loads(line) for line in ended.stdout.splitlines()][1:]
    assert len(claims) == 4
    for claim in claims:
        assert claim["works"], claim
        said = "trained" if "box" in claim["claim"] else r"0 of \d{3} steps illegal"
        assert re.fullmatch(f"6 updates, {said}", claim["remark"])
