"""The grown topology in a user's checkpoint, as plain types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, is_dataclass
from enum import Enum
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from actors.config import require
from actors.errors import UserError
from actors.growth.flop_count import CountedFlops
from actors.slots.slot_shape import SlotShape
from actors.slots.stage import Slot
from actors.types.actions import BLENDS, Op

FORMAT = 5
LARGEST = 2**31


@dataclass(frozen=True)
class SavedGrowth:
    """The state of a `GrowthController`. Slots are named."""

    format: int
    slots: dict[str, Slot]
    order: list[str]  # filled slots, in the order of their parameter groups
    germinations: int
    last_op: Op
    last_success: bool
    epoch: int
    losses: list[float]
    accuracies: list[float | None]
    train_losses: list[float | None]
    adopted: str  # the slot of the column that has become the model, "" without one
    partial: list[str]  # slots of columns with parameters that the loss does not depend on
    steps_per_epoch: int
    compute_spent: float  # as `Compute.spent`
    flops: CountedFlops
    chance_loss: float | None
    session: bytes
    first_metric: float | None  # the first value of a metric other than accuracy

    def packed(self) -> dict[str, Any]:
        """Return the state as plain types."""
        return asdict(self, dict_factory=_plain)


def _plain(fields: list[tuple[str, Any]]) -> dict[str, Any]:
    return {name: value.name if isinstance(value, Enum) else value for name, value in fields}


def read_growth(state: object, names: Sequence[str], slot_shapes: Sequence[SlotShape]) -> SavedGrowth:
    """Validate the result of `SavedGrowth.packed`. Raises `UserError` for anything else, and for other slots."""
    if not isinstance(state, Mapping):
        raise UserError("this is not a state of a GrowthController")
    require(
        state.get("format") == FORMAT, f"this state has format {state.get('format')!r}: this version reads {FORMAT}"
    )
    saved: SavedGrowth = _typed(SavedGrowth, state, "content")
    require(
        list(saved.slots) == list(names),
        f"this state has slots {', '.join(map(str, saved.slots))}, but this model has {', '.join(names)}: "
        "give the same slots",
    )
    for (name, slot), shape in zip(saved.slots.items(), slot_shapes, strict=True):
        offered = [i for i, cost in enumerate(shape.costs) if cost is not None] if slot.active else [-1]
        require(
            slot.blueprint in offered and 0 <= slot.blend < len(BLENDS),
            f"slot {name!r} of this state holds blueprint {slot.blueprint}, blend {slot.blend}, which do not exist",
        )
    filled = [name for name, slot in saved.slots.items() if slot.active]
    require(
        sorted(saved.order) == sorted(filled),
        f"this state's order is {saved.order!r:.100}, and its filled slots are {filled}: it is damaged",
    )
    require(
        {saved.adopted, *saved.partial} - {""} <= set(filled),
        f"this state speaks of columns {saved.adopted!r} and {saved.partial!r:.100}, which do not exist: it is damaged",
    )
    sizes = [len(shape.flops) for shape in slot_shapes]
    require([len(known) for known in saved.flops.seeds] == sizes, "this state's flops are of other slots")
    require(
        len(saved.losses) == len(saved.accuracies) == len(saved.train_losses)
        and 0 <= saved.epoch < LARGEST
        and 0 <= saved.germinations < LARGEST,
        "this state's epochs do not broadcast with each other: it is damaged",
    )
    return saved


def _typed(kind: Any, value: Any, name: str) -> Any:
    """Return `value` as a `kind`: a union, list, dict by name, plain type, dataclass (from its fields), or enum (from a
    name or number). An int may stand for a float, a bool for neither. Raises `UserError`."""
    if get_origin(kind) is list and isinstance(value, list):
        return [_typed(get_args(kind)[0], element, name) for element in value]
    if get_origin(kind) is dict and isinstance(value, dict):
        return {key: _typed(get_args(kind)[1], element, f"{name}.{key}") for key, element in value.items()}
    for option in get_args(kind) if get_origin(kind) is UnionType else (get_origin(kind) or kind,):
        if is_dataclass(option) and isinstance(option, type):
            hints = get_type_hints(option)
            if isinstance(value, Mapping) and set(value) == set(hints):
                return option(**{key: _typed(of, value[key], f"{name}.{key}") for key, of in hints.items()})
        elif issubclass(option, Enum):
            found = [member for member in option if value in (member.name, member.value) and type(value) in (str, int)]
            if found:
                return found[0]
        elif isinstance(value, (int, float) if option is float else option) and (
            option is bool or not isinstance(value, bool)
        ):
            return value
    raise UserError(f"this state's {name} is {value!r:.100}: it is damaged")
