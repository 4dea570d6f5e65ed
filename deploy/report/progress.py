"""Live progress of a run: an updating panel in a terminal, otherwise one plain line every ten seconds."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import TracebackType
from typing import Self

from rich.box import ROUNDED
from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from deploy.report.numbers import number

_BARS = "▁▂▃▄▅▆▇█"


@dataclass(frozen=True)
class ProgressSnapshot:
    """The progress of a run at one moment."""

    update: int
    updates_total: int | None
    elapsed_s: float
    max_seconds: float | None
    episodes: int
    episodes_per_s: float
    return_mean: float | None  # the newest; None before the first update
    return_history: Sequence[float]  # oldest first
    policy_lag: float  # versions
    queue_depth: int
    actors_alive: int
    actors_total: int
    restarts: int
    eta_s: float | None
    unit: str = "points"  # unit of returns
    per_step: bool = False  # whether returns are mean rewards of a step, because no episode has ended yet

    @property
    def label(self) -> str:
        """What `return_mean` is."""
        return "reward/step" if self.per_step and self.return_mean is not None else "return"

    @property
    def fraction(self) -> float:
        """Completed fraction of the run, by updates or by time, whichever is larger."""
        by_update = self.update / self.updates_total if self.updates_total else 0.0
        by_time = self.elapsed_s / self.max_seconds if self.max_seconds else 0.0
        return min(1.0, max(by_update, by_time))


class ProgressDisplay:
    """A context manager that displays progress: `update` shows a snapshot, `note` prints a permanent line."""

    def __init__(self, title: str, console: Console | None = None, plain_every_s: float = 10.0) -> None:
        self._title = title
        self._console = console or Console(highlight=False)
        self._plain_every_s = plain_every_s
        self._last_plain_s = -math.inf
        self._unprinted: ProgressSnapshot | None = None
        self._live = Live(console=self._console, auto_refresh=False) if self._console.is_terminal else None

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._live is not None:
            self._live.stop()
        elif self._unprinted is not None:
            self._console.print(plain(self._unprinted), markup=False, soft_wrap=True)

    def note(self, message: str) -> None:
        """Print a line above the progress panel."""
        self._console.print(message, markup=False, soft_wrap=True)

    def update(self, snapshot: ProgressSnapshot) -> None:
        """Show a snapshot, or in plain mode print it if the last line is old enough."""
        if self._live is not None:
            self._live.update(panel(self._title, snapshot), refresh=True)
            return
        now = time.monotonic()
        self._unprinted = snapshot
        if now - self._last_plain_s >= self._plain_every_s:
            self._last_plain_s, self._unprinted = now, None
            self._console.print(plain(snapshot), markup=False, soft_wrap=True)


def panel(title: str, s: ProgressSnapshot) -> Panel:
    """Format a snapshot as a panel with three lines."""
    head = Table.grid(padding=(0, 2), expand=True)
    head.add_column(no_wrap=True)
    head.add_column(ratio=1)
    head.add_column(no_wrap=True, justify="right")
    total = f"[dim]/{s.updates_total}[/]" if s.updates_total else ""
    left = f"  [dim]{clock(s.eta_s)} left[/]" if s.eta_s is not None else ""
    head.add_row(
        f"update [bold]{s.update}[/]{total}",
        ProgressBar(total=1.0, completed=s.fraction, complete_style="cyan", finished_style="green"),
        f"{s.fraction:4.0%}  {clock(s.elapsed_s)}{left}",
    )
    reward = Text.assemble((f"{s.label}  ", "dim"))
    if s.return_mean is None:
        reward.append("waiting for the first batch", style="dim italic")
    else:
        reward.append(f"{number(s.return_mean)}{' ' + s.unit if s.unit else ''}  ", style="bold")
        reward.append(sparkline(s.return_history, 40), style="cyan")
    facts = Table.grid(padding=(0, 3))
    missing = s.actors_alive < s.actors_total
    restarts = f", {s.restarts} restarted" if s.restarts else ""
    facts.add_row(
        Text.assemble(("episodes ", "dim"), f"{s.episodes:,}", (f"  {s.episodes_per_s:.1f}/s", "cyan")),
        Text.assemble(("lag ", "dim"), f"{s.policy_lag:.1f}"),
        Text.assemble(("queue ", "dim"), f"{s.queue_depth}"),
        Text.assemble(
            ("actors ", "dim"), (f"{s.actors_alive}/{s.actors_total}{restarts}", "bold yellow" if missing else "")
        ),
    )
    return Panel(
        Group(head, reward, facts), title=f"[bold]{title}[/]", title_align="left", box=ROUNDED, border_style="dim"
    )


def plain(s: ProgressSnapshot) -> str:
    """Format a snapshot as one line."""
    total = f"/{s.updates_total}" if s.updates_total else ""
    reward = f"{s.label} {'-' if s.return_mean is None else number(s.return_mean):>6}"
    eta = f"  eta {clock(s.eta_s)}" if s.eta_s is not None else ""
    restarts = f" ({s.restarts} restarted)" if s.restarts else ""
    return (
        f"{clock(s.elapsed_s)}  update {s.update}{total}  {reward}  episodes {s.episodes} ({s.episodes_per_s:.1f}/s)  "
        f"lag {s.policy_lag:.1f}  queue {s.queue_depth}  actors {s.actors_alive}/{s.actors_total}{restarts}{eta}"
    )


def sparkline(values: Sequence[float], width: int) -> str:
    """Draw the finite values as at most `width` bars, each the mean of a bin."""
    finite = [v for v in values if math.isfinite(v)]
    if not finite:
        return ""
    bins = min(width, len(finite))
    edges = [len(finite) * i // bins for i in range(bins + 1)]
    means = [sum(finite[a:b]) / (b - a) for a, b in pairwise(edges)]
    low, span = min(means), max(means) - min(means)
    return "".join(_BARS[round((m - low) / span * (len(_BARS) - 1)) if span > 0 else 3] for m in means)


def clock(seconds: float) -> str:
    """Format seconds as `1:05` or `2:03:04`."""
    minutes, s = divmod(int(max(0.0, seconds)), 60)
    hours, m = divmod(minutes, 60)
    return f"{hours}:{m:02d}:{s:02d}" if hours else f"{m}:{s:02d}"
