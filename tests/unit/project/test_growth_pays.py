"""The benchmark that writes `measured.json`: a quick run does not change the committed numbers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from actors.env.tasks.measured import MEASURED, PRICE, Gain

ROOT = Path(__file__).parents[3]


@pytest.mark.long
def test_a_quick_run_reports_and_changes_nothing(tmp_path: Path) -> None:
    before = MEASURED.read_bytes()
    command = [sys.executable, "-m", "benchmarks.growth_pays", "--quick", "--json", str(tmp_path / "out.json")]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=100)
    assert ended.returncode == 0, ended.stderr
    assert "spirals" in ended.stdout
    result = json.loads((tmp_path / "out.json").read_text())
    assert {"targets", "machine", "rows"} <= set(result)
    widths = [(row["task"], row["width"]) for row in result["rows"]]
    assert widths == [(name, width) for name in ("spirals", "digits", "xor") for width in (3, 8, 24)]
    for row in result["rows"]:
        for way in ("seed", "column"):
            # The rest is what the parameters cost, whatever the accuracy did.
            objective = float(row[f"{way} J"].split()[0])
            assert abs(row[f"{way} gain"] - objective - PRICE * row[f"{way} doublings"]) < 0.07  # J has one decimal
    assert MEASURED.read_bytes() == before


def test_the_committed_settings_are_those_of_the_environment() -> None:
    from actors.config import EnvConfig

    settings = json.loads(MEASURED.read_text())["settings"]
    config = EnvConfig()
    for name in ("horizon_epochs", "inner_steps", "batch_size", "host_lr", "slots", "column_slots"):
        assert settings[name] == getattr(config, name)
    assert settings["seeds"] >= 6


def test_a_verdict_needs_an_interval_that_excludes_zero() -> None:
    verdicts = [Gain(1.0, 0.1, 2.0).verdict, Gain(1.0, -0.1, 2.0).verdict, Gain(-1.0, -2.0, -0.1).verdict]
    assert verdicts == ["pays", "even", "hurts"]
