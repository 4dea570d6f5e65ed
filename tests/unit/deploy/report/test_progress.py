"""Live progress: a line that is redrawn in a terminal, otherwise lines at intervals."""

from __future__ import annotations

import io
from contextlib import closing

import pytest
from rich.console import Console

from deploy.report.numbers import number
from deploy.report.progress import ProgressDisplay, clock


@pytest.mark.parametrize("terminal", [False, True])
def test_the_first_line_is_shown_then_some_and_the_last_one(terminal: bool) -> None:
    out = io.StringIO()
    target = Console(file=out, force_terminal=terminal, width=90, color_system=None)
    with closing(ProgressDisplay("run", target)) as progress:
        for update in range(5):
            progress.update(f"update {update}")
        progress.note("actor 1 died and was restarted")
    assert "actor 1 died and was restarted\n" in out.getvalue()
    if terminal:
        assert all(f"run  update {update}" in out.getvalue() for update in range(5))
    else:
        assert out.getvalue().splitlines() == ["update 0", "actor 1 died and was restarted", "update 4"]


def test_times_and_numbers_are_readable_at_any_scale() -> None:
    assert [clock(s) for s in (5.0, 65.9, 3725.0)] == ["0:05", "1:05", "1:02:05"]
    shown = {
        (12345.67, None): "+12345.7", (-1.0, None): "-1.0", (0.0, None): "+0.0", (0.5, None): "+0.50",
        (0.00123, None): "+0.0012", (-0.05, None): "-0.050", (2e-7, None): "+2.0e-07", (0.012, 30.0): "+0.0",
        (0.1, 0.02): "+0.100", (-0.0001, 0.02): "+0.000",
    }  # fmt: skip
    assert {given: number(*given) for given in shown} == shown
