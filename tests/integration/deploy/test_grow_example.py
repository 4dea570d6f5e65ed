"""The growth examples, without and with Tamiyo, the notebook, and scripts of `tamiyo grow` that grow no model."""

from __future__ import annotations

import csv
import io
import json
import os
import random
import re
import runpy
import sys
from contextlib import redirect_stdout
from dataclasses import asdict
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from actors.growth.controller import LOG_VARIABLE
from actors.growth.decision import Decision
from deploy.cli import main

pytestmark = pytest.mark.integration
ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "examples" / "grow_your_model.py"
PAGE = ROOT / "docs" / "growing.md"
ADDED = re.compile(r"  # \+$", re.MULTILINE)


def epochs(output: str) -> list[str]:
    return re.findall(r"^epoch +\d.*", output, re.MULTILINE)


def without_growth(script: Path, folder: Path) -> Path:
    """A copy without the lines that Tamiyo needs."""
    kept = [line for line in script.read_text().splitlines(keepends=True) if not ADDED.search(line.rstrip("\n"))]
    assert "tamiyo." not in "".join(kept).partition('"""\n\n')[2]
    (folder / script.name).write_text("".join(kept))
    return folder / script.name


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
    runpy.run_path(str(without_growth(EXAMPLE, tmp_path)))
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


# The scripts of examples/practical


SCRIPTS = ROOT / "examples" / "practical"
TINY = {
    "resnet_glyphs": ["--width", "8", "--rows", "128"],
    "char_transformer": ["--width", "8", "--steps", "3"],
    "mlp_table": ["--width", "8", "--rows", "400"],
    "mlp_table --task price": ["--width", "8", "--rows", "400"],
    "gru_signals": ["--width", "8", "--rows", "128"],
}


def output(script: Path, monkeypatch: pytest.MonkeyPatch, *flags: str) -> str:
    monkeypatch.setattr(sys, "argv", [str(script), *flags])
    printed = io.StringIO()
    with redirect_stdout(printed):
        runpy.run_path(str(script), run_name="__main__")
    return printed.getvalue()


def diamonds(path: Path) -> Path:
    """Write 700 rows like those of the table of diamonds."""
    rng = random.Random(0)
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["carat", "cut", "color", "clarity", "depth", "table", "price", "x", "y", "z"])
        for _ in range(700):
            carat = rng.uniform(0.2, 2.0)
            sizes = [rng.uniform(55, 65), rng.uniform(53, 60), int(4000 * carat**1.7), *[6 * carat ** (1 / 3)] * 3]
            rows.writerow([carat, rng.choice(["Good", "Ideal"]), rng.choice("DEF"), rng.choice(["SI1", "VS2"]), *sizes])
    return path


def test_every_script_is_tried() -> None:
    assert {path.stem for path in SCRIPTS.glob("*.py")} == {call.split()[0] for call in TINY}


@pytest.mark.parametrize("call", TINY)
def test_the_added_lines_change_nothing_until_a_column_joins(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, *task = call.split()
    script = SCRIPTS / f"{name}.py"
    flags = [*TINY[call], *task, "--epochs", "2"]
    if name == "mlp_table":
        flags += ["--data", str(diamonds(tmp_path / "diamonds.csv"))]
    alone = output(without_growth(script, tmp_path), monkeypatch, *flags)
    off = output(script, monkeypatch, *flags, "--policy", "never")
    assert epochs(off) == epochs(alone)
    assert off.splitlines()[-1] == alone.splitlines()[-1]  # to the last digit
    assert off.count("WAIT") == 2
    learning = output(script, monkeypatch, *flags, "--policy", "fixed-column:same@0", "--price", "2")
    assert epochs(learning) == epochs(alone)  # what a column learns in its shadow pass leaves the model alone
    assert "ADVANCE column 1" in learning


@pytest.mark.long
def test_the_notebook_grows_a_model_and_shows_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    for proxy in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(proxy, "http://127.0.0.1:9")  # nothing is fetched
    notebook = nbformat.read(ROOT / "examples/grow_a_model.ipynb", as_version=4)
    assert not any(cell.get("outputs") for cell in notebook.cells)  # kept without what a run prints
    NotebookClient(notebook, timeout=120, kernel_name="python3", resources={"metadata": {"path": tmp_path}}).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    printed = "".join(output["text"] for output in outputs if output.output_type == "stream")
    assert "GERMINATE column 1" in printed
    (bare, without), (grown, accuracy) = re.findall(r"(\d+) parameters: ([\d.]+)%", printed)
    assert int(grown) > int(bare)
    assert float(accuracy) > float(without) + 3
    assert any("image/png" in output.get("data", ()) for output in outputs)
