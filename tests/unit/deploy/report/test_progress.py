"""Live progress: a panel in a terminal, otherwise plain lines at intervals."""

from __future__ import annotations

import dataclasses
import io

import pytest
from rich.console import Console

from deploy.report.progress import ProgressDisplay, ProgressSnapshot, clock, panel, plain, sparkline

SNAPSHOT = ProgressSnapshot(
    update=12, updates_total=60, elapsed_s=31.0, max_seconds=140.0, episodes=384, episodes_per_s=12.4, return_mean=3.25,
    return_history=[-2.0, 0.5, 3.25], policy_lag=0.8, queue_depth=14, actors_alive=1, actors_total=2, restarts=1,
    eta_s=109.0,
)  # fmt: skip


def console(terminal: bool) -> tuple[Console, io.StringIO]:
    out = io.StringIO()
    return Console(file=out, force_terminal=terminal, width=90, color_system=None), out


def test_plain_mode_prints_the_first_line_then_at_intervals_and_the_last_one() -> None:
    target, out = console(terminal=False)
    with ProgressDisplay("run", console=target) as progress:
        for update in range(5):
            progress.update(dataclasses.replace(SNAPSHOT, update=update))
        progress.note("actor 1 died and was restarted")
    lines = out.getvalue().splitlines()
    assert [line.split("  ")[1] for line in (lines[0], lines[-1])] == ["update 0/60", "update 4/60"]
    assert len(lines) == 3
    assert plain(SNAPSHOT) in lines[-1].replace("update 4/60", "update 12/60")


def test_the_panel_shows_all_values() -> None:
    target, out = console(terminal=True)
    target.print(panel("quick-1", SNAPSHOT))
    text = out.getvalue()
    for part in ("quick-1", "update 12/60", "+3.2 points", "384", "12.4/s", "lag 0.8", "queue 14", "1/2", "1:49 left"):
        assert part in text
    assert max(map(len, text.splitlines())) <= 90
    waiting = dataclasses.replace(SNAPSHOT, return_mean=None, return_history=[], eta_s=None, updates_total=None)
    target.print(panel("quick-1", waiting))
    assert "waiting for the first batch" in out.getvalue()


def test_small_returns_and_rewards_of_endless_episodes_are_readable() -> None:
    small = dataclasses.replace(SNAPSHOT, return_mean=0.00123, unit="")
    endless = dataclasses.replace(small, per_step=True)
    target, out = console(terminal=True)
    for snapshot, words in ((small, "return  +0.0012"), (endless, "reward/step  +0.0012")):
        target.print(panel("quick-1", snapshot))
        assert words in out.getvalue()
        assert words.replace("  ", " ") in plain(snapshot)


def test_fraction_is_the_larger_of_updates_and_time() -> None:
    assert SNAPSHOT.fraction == pytest.approx(31 / 140)
    assert dataclasses.replace(SNAPSHOT, update=59).fraction == pytest.approx(59 / 60)
    assert dataclasses.replace(SNAPSHOT, updates_total=None, max_seconds=None).fraction == 0.0
    assert dataclasses.replace(SNAPSHOT, elapsed_s=500.0).fraction == 1.0


def test_sparkline_and_clock() -> None:
    assert sparkline([0.0, 1.0, float("nan"), 2.0], 10) == "▁▅█"
    assert sparkline([1.0, 1.0], 10) == "▄▄"
    assert sparkline([], 10) == ""
    assert len(sparkline(list(range(1000)), 40)) == 40
    assert [clock(s) for s in (5.0, 65.9, 3725.0)] == ["0:05", "1:05", "1:02:05"]
