"""What a user's checkpoint says of each slot, as plain types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from actors.config import require
from actors.env.stage import Ramp, Slot, Stage


def pack_slots(names: Sequence[str], slots: Sequence[Slot]) -> dict[str, dict[str, Any]]:
    return {name: asdict(slot) | {"stage": slot.stage.name} for name, slot in zip(names, slots, strict=True)}


def unpack_slots(names: Sequence[str], packed: Mapping[str, Mapping[str, Any]]) -> list[Slot]:
    """In the order of `names`. Raises `UserError` where the slots are others."""
    require(
        list(packed) == list(names),
        f"this state is of a model with slots {', '.join(packed)}, and this one has {', '.join(names)}: name the same",
    )
    slots = []
    for fields in packed.values():
        ramp = None if fields["ramp"] is None else Ramp(**fields["ramp"])
        slots.append(Slot(**{**fields, "stage": Stage[fields["stage"]], "ramp": ramp}))
    return slots
