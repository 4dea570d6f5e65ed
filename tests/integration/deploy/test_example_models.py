"""The scripts of `examples/models`: each trains, decides, and is the bare script as long as nothing has joined in."""

from __future__ import annotations

import io
import re
import runpy
import sys
from contextlib import redirect_stdout
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SCRIPTS = sorted((ROOT / "examples" / "models").glob("*.py"))
LONG = ("char_transformer", "mlp_digits")
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


@pytest.mark.parametrize(
    "script", [pytest.param(path, marks=[pytest.mark.long] * (path.stem in LONG), id=path.stem) for path in SCRIPTS]
)
def test_the_added_lines_change_nothing_until_a_column_joins(
    script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = script.read_text()
    bare = tmp_path / script.name
    bare.write_text("".join(line for line in text.splitlines(keepends=True) if not ADDED.search(line.rstrip("\n"))))
    assert "tamiyo." not in bare.read_text().partition('"""\n\n')[2]
    alone = output(bare, monkeypatch, "--epochs", "2")
    off = output(script, monkeypatch, "--epochs", "2", "--policy", "never")
    assert epochs(off) == epochs(alone)
    assert off[-1] == alone[-1], "a model whose columns are off is the bare one, to the last digit"
    assert len([line for line in off if "WAIT" in line]) == 2
    learning = output(script, monkeypatch, "--epochs", "2", "--policy", "fixed-column:same@0", "--price", "2")
    assert epochs(learning) == epochs(alone), "what a column learns in its shadow pass leaves the model alone"
    assert any("ADVANCE column 1" in line for line in learning)
