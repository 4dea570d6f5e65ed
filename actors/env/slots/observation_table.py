"""The observation as a table in Markdown, for the documentation.

`python -m actors.env.slots.observation_table README.md` updates the table in a document.
"""

from __future__ import annotations

import sys
from pathlib import Path

from actors.env.slots.observation import BASE, SLOT

TABLE_BEGIN, TABLE_END = "<!-- observation table: begin -->", "<!-- observation table: end -->"


def with_table(document: str) -> str:
    """Return `document` with the current table between the markers."""
    before, _, rest = document.partition(TABLE_BEGIN)
    _, _, after = rest.partition(TABLE_END)
    return f"{before}{TABLE_BEGIN}\n{markdown_table()}\n{TABLE_END}{after}"


def markdown_table() -> str:
    """Return the table as Markdown: index, name, size, range, meaning."""
    lines = ["| index | feature | size | range | meaning |", "| --- | --- | --- | --- | --- |"]
    for title, table in (("base", BASE), ("slot", SLOT)):
        index = 0
        for feature in table:
            indices = f"{title} {index}" + (f"-{index + feature.size - 1}" if feature.size > 1 else "")
            lines.append(
                f"| {indices} | `{feature.name}` | {feature.size} | {feature.low:g} to {feature.high:g} "
                f"| {feature.meaning} |"
            )
            index += feature.size
    return "\n".join(lines)


if __name__ == "__main__":
    for path in map(Path, sys.argv[1:]):
        path.write_text(with_table(path.read_text()))
