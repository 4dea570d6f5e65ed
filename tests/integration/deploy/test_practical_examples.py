"""The scripts of `examples/practical`: each trains, decides, and is the bare script as long as nothing has joined."""

from __future__ import annotations

import csv
import io
import random
import re
import runpy
import sys
from contextlib import redirect_stdout
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SCRIPTS = ROOT / "examples" / "practical"
TINY = {
    "resnet_glyphs": ["--width", "8", "--rows", "128"],
    "char_transformer": ["--width", "8", "--steps", "3"],
    "mlp_table": ["--width", "8", "--rows", "400"],
    "mlp_table --task price": ["--width", "8", "--rows", "400"],
    "gru_signals": ["--width", "8", "--rows", "128"],
}
ADDED = re.compile(r"  # \+$", re.MULTILINE)

pytestmark = pytest.mark.integration


def output(script: Path, monkeypatch: pytest.MonkeyPatch, *flags: str) -> list[str]:
    monkeypatch.setattr(sys, "argv", [str(script), *flags])
    printed = io.StringIO()
    with redirect_stdout(printed):
        runpy.run_path(str(script), run_name="__main__")
    return printed.getvalue().splitlines()


def epochs(lines: list[str]) -> list[str]:
    return [line for line in lines if line.startswith("epoch ")]


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
    script, bare = SCRIPTS / f"{name}.py", tmp_path / f"{name}.py"
    text = script.read_text()
    bare.write_text("".join(line for line in text.splitlines(keepends=True) if not ADDED.search(line.rstrip("\n"))))
    assert "tamiyo." not in bare.read_text().partition('"""\n\n')[2]
    flags = [*TINY[call], *task, "--epochs", "2"]
    if name == "mlp_table":
        flags += ["--data", str(diamonds(tmp_path / "diamonds.csv"))]
    alone = output(bare, monkeypatch, *flags)
    off = output(script, monkeypatch, *flags, "--policy", "never")
    assert epochs(off) == epochs(alone)
    assert off[-1] == alone[-1], "a model whose columns are off is the bare one, to the last digit"
    assert len([line for line in off if "WAIT" in line]) == 2
    learning = output(script, monkeypatch, *flags, "--policy", "fixed-column:same@0", "--price", "2")
    assert epochs(learning) == epochs(alone), "what a column learns in its shadow pass leaves the model alone"
    assert any("ADVANCE column 1" in line for line in learning)
