"""Live progress of a run: a line that is redrawn in a terminal, and otherwise printed every ten seconds."""

from __future__ import annotations

import math
import time

from rich.console import Console
from rich.live import Live
from rich.text import Text

PLAIN_EVERY_S = 10.0  # outside a terminal


class ProgressDisplay:
    """Displays progress: `update` shows the newest line, `note` prints a permanent one, `close` ends the display."""

    def __init__(self, title: str, console: Console) -> None:
        self._title, self._console = title, console
        self._printed_s, self._unprinted = -math.inf, ""
        self._live = Live(console=console, auto_refresh=False) if console.is_terminal else None
        if self._live is not None:
            self._live.start()

    def close(self) -> None:
        """End the display; the newest line stays."""
        if self._live is not None:
            self._live.stop()
        elif self._unprinted:
            self.note(self._unprinted)

    def note(self, message: str) -> None:
        """Print a line above the progress."""
        self._console.print(message, markup=False, soft_wrap=True)

    def update(self, line: str) -> None:
        """Show a line, or outside a terminal print it if the last one is old enough."""
        if self._live is not None:
            self._live.update(Text.assemble((f"{self._title}  ", "bold"), line), refresh=True)
            return
        self._unprinted = line
        if time.monotonic() - self._printed_s >= PLAIN_EVERY_S:
            self._printed_s, self._unprinted = time.monotonic(), ""
            self.note(line)


def clock(seconds: float) -> str:
    """Format seconds as `1:05` or `2:03:04`."""
    minutes, s = divmod(int(max(0.0, seconds)), 60)
    hours, m = divmod(minutes, 60)
    return f"{hours}:{m:02d}:{s:02d}" if hours else f"{m}:{s:02d}"
