"""The observation as a table in Markdown, for the documentation (see `deploy.config.reference`)."""

from __future__ import annotations

from actors.slots.base_features import BASE
from actors.slots.slot_features import SLOT


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
