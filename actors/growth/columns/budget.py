"""What a budget of parameters forbids."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from actors.slots.slot_shape import SlotKind, SlotShape

logger = logging.getLogger(__name__)


def report_forbidden_columns(slot_shapes: Sequence[SlotShape], limit: int) -> None:
    """Say which columns are too large for a budget of so many parameters, and can never grow."""
    for shape in [shape for shape in slot_shapes if shape.kind is SlotKind.COLUMN][:1]:  # the others are like it
        costs = {shape.family.name_of(i): cost for i, cost in enumerate(shape.costs) if cost is not None}
        forbidden = [f"{name} ({cost:,} parameters)" for name, cost in costs.items() if cost > limit]
        if forbidden:
            logger.warning(
                "the budget of %s added parameters forbids %s: raise max_added_parameters, and max_isolated_parameters",
                f"{limit:,}",
                ", ".join(forbidden),
            )
