"""The loop in docs/research.md, as it stands there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

pytestmark = pytest.mark.integration
PAGE = Path(__file__).parents[3] / "docs" / "research.md"


def run(loop: str) -> dict[str, float]:
    torch.set_num_threads(1)
    variables: dict[str, dict[str, float]] = {}
    exec(compile(loop, PAGE, "exec"), variables)
    return variables["metrics"]


def test_the_loop_of_the_page_trains_in_thirty_lines(capsys: pytest.CaptureFixture[str]) -> None:
    """What it records is what it did, which a loop that stores the state after the step does not."""
    (loop,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len([line for line in loop.splitlines() if line.strip()]) <= 30
    metrics = run(loop)
    printed = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in printed] == ["update 1", "update 2", "update 3"]
    assert metrics["ratio_error"] < 1e-3
    assert metrics["kl"] > 0
    wrong = loop.replace("chosen, state, version", "chosen, after, version")
    assert wrong != loop
    assert run(wrong)["ratio_error"] > 1e-3
