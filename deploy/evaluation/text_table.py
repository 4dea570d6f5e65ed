"""A table of an evaluation, for the terminal and in Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rich.table import Table

from deploy.report.statistics import Interval


class TextTable(NamedTuple):
    """Rows of text under a head. The first column is text, the others are numbers."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]

    def rich(self) -> Table:
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
        for i, name in enumerate(self.head):
            table.add_column(name, justify="right" if i else "left", no_wrap=True)
        for row in self.rows:
            table.add_row(*row)
        return table

    def markdown(self) -> str:
        lines = (self.head, ["---", *["---:"] * (len(self.head) - 1)], *self.rows)
        return f"## {self.title}\n\n" + "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def span(i: Interval | None) -> str:
    """Return a mean and its interval as text."""
    return "" if i is None else f"{signed(i.mean)} [{i.low:.2f}, {i.high:.2f}]"


def signed(x: float) -> str:
    """Return points with their sign, that of 0 positive."""
    return f"{round(x, 2) + 0.0:+.2f}"
