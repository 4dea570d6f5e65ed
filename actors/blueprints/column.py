"""Column blueprints: a column is a second, independent network of the host's architecture at `scale` times its width.

It reads the host's input, and its logits are mixed with the host's: `(1 - alpha) * logits + alpha * column(x)`. In
TRAINING it learns either what the average of both still lacks, with the host constant, or the task itself.
`actors.env.hosts.host` makes the network.
"""

from __future__ import annotations

from dataclasses import dataclass

from actors.config import require


@dataclass(frozen=True)
class ColumnBlueprint:
    """The size of a column."""

    name: str
    scale: float
    """Width of the column in multiples of the host's width."""

    def __post_init__(self) -> None:
        require(self.scale > 0, f"column blueprint {self.name!r} has scale {self.scale}: it must be positive")


COLUMNS = (
    ColumnBlueprint("column_half", 0.5),
    ColumnBlueprint("column_same", 1.0),
    ColumnBlueprint("column_double", 2.0),
    ColumnBlueprint("column_quad", 4.0),
)
