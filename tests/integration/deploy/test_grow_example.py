"""The growth example, without and with Tamiyo, and what `tamiyo grow` says of scripts that do not grow a model."""

from __future__ import annotations

import json
import re
import runpy
from dataclasses import asdict
from pathlib import Path

import pytest

from actors.growth.controller import LOG_VARIABLE
from actors.growth.decision import Decision
from deploy.cli import main

pytestmark = pytest.mark.integration
ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "examples" / "grow_your_model.py"
PAGE = ROOT / "docs" / "growing.md"
ADDED = re.compile(r"  # \+$", re.MULTILINE)


def epochs(output: str) -> list[str]:
    return [line for line in output.splitlines() if line.startswith("epoch ") and "loss" in line]


@pytest.fixture(autouse=True)
def this_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the script that `tamiyo grow` starts import this source tree."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


def test_eight_lines_add_growth_to_the_example(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Without them the script is an ordinary one; with them it trains alike until a column joins in, or, without
    growth, to the end, as a picture shows."""
    text = EXAMPLE.read_text()
    assert len(text.splitlines()) < 60
    assert len(ADDED.findall(text)) == 8
    before = tmp_path / "before.py"
    plain = "".join(line for line in text.splitlines(keepends=True) if not ADDED.search(line.rstrip("\n")))
    assert "tamiyo." not in plain.partition('"""\n\n')[2]
    before.write_text(plain)
    runpy.run_path(str(before))
    plain = capfd.readouterr().out
    picture = tmp_path / "growth.svg"
    assert main(["grow", "--picture", str(picture), str(EXAMPLE)]) == 0
    shown = capfd.readouterr().out
    output, alone = re.split("(?=^epoch  1 )", shown, flags=re.MULTILINE)[1:]
    assert len(epochs(output)) == 15
    assert epochs(output)[:3] == epochs(plain)[:3]
    assert epochs(alone) == epochs(plain)
    page = " ".join(PAGE.read_text().split())
    figures = re.search(r"and (\d+) parameters the model reaches ([\d.]+)% .* ([\d,]+) in all, ([\d.]+)%", page)
    for text, parameters, accuracy in ((plain, *figures.groups()[:2]), (output, *figures.groups()[2:])):
        assert f"\n{parameters.replace(',', '')} parameters" in text
        assert float(accuracy) == pytest.approx(float(re.findall(r"accuracy ([\d.]+)%", text)[-1]), abs=1.0)
    assert "14 by the policy" in output
    assert "GERMINATE column" in output
    assert "parameters grown" in output
    grown, least = (f"{float(re.findall('accuracy ([0-9.]+)%', text)[-1]):.0f}%" for text in (output, alone))
    assert f"growing {grown}" in picture.read_text()
    assert f"never growing {least}" in picture.read_text()


def test_a_failing_script_and_a_script_without_decisions_are_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "own.py"
    script.write_text("import sys; sys.exit(7 if 'fail' in sys.argv else 0)")
    assert main(["grow", str(script), "fail"]) == 7
    assert main(["grow", str(script)]) == 2
    assert "made no decision" in capsys.readouterr().err


def test_a_policy_that_never_answers_is_an_error(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Otherwise a script whose model never grows would seem to succeed."""
    unreachable = (1, "WAIT", "", "", "", "unreachable", 1.0, None, 0, 0.0, 0.0)
    row = Decision(*unreachable, ["DORMANT"], [0.0], [""], ["a"], -1, None, [None], [None])
    (tmp_path / "row").write_text(json.dumps(asdict(row)) + "\n")
    script = tmp_path / "script.py"
    script.write_text(f"import os, shutil\nshutil.copy({str(tmp_path / 'row')!r}, os.environ['{LOG_VARIABLE}'])\n")
    assert main(["grow", str(script), "--policy", "never-grow"]) == 2
    assert "the policy answered none of 1 decisions (unreachable)" in capfd.readouterr().err


def test_a_picture_has_one_of_two_formats(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["grow", "--picture", str(tmp_path / "growth.pdf"), str(EXAMPLE)]) == 2
    assert "give a file name that ends in .png or .svg" in capsys.readouterr().err
