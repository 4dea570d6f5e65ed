"""The grown topology in a user's checkpoint, as plain types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, get_args, get_type_hints

from actors.config import require
from actors.slots.slot_shape import SlotShape
from actors.slots.stage import Ramp, Slot, Stage
from actors.types.actions import BLENDS, Op

FORMAT = 2
LARGEST = 2**31
NUMBER = (int, float)


@dataclass(frozen=True)
class SavedGrowth:
    """A validated state of a `GrowthController`; `order` lists filled slots in the order of their parameter groups."""

    slots: list[Slot]
    order: list[int]
    germinations: int
    last_op: Op
    last_success: bool
    epoch: int
    losses: list[float]
    accuracies: list[float | None]
    train_losses: list[float | None]
    columns_gated: bool | None
    steps_per_epoch: int
    chance_loss: float | None
    session: bytes
    report: dict[str, Any]  # of a run that is reported, checked by the report


def pack_slots(names: Sequence[str], slots: Sequence[Slot]) -> dict[str, dict[str, Any]]:
    """Return each slot's state as plain types, by the slot's name."""
    return {name: asdict(slot) | {"stage": slot.stage.name} for name, slot in zip(names, slots, strict=True)}


def read_growth(state: object, names: Sequence[str], slot_shapes: Sequence[SlotShape]) -> SavedGrowth:
    """Validate the result of `GrowthController.state_dict`. Raises `UserError` for anything else, and for other
    slots."""
    require(isinstance(state, Mapping), "this is not a state of a GrowthController")
    assert isinstance(state, Mapping)
    require(
        state.get("format") == FORMAT, f"this state has format {state.get('format')!r}: this version reads {FORMAT}"
    )
    hints = {
        name: kind for name, kind in get_type_hints(SavedGrowth).items() if name not in ("slots", "order", "report")
    }
    for name in ("slots", "order", *hints):
        require(name in state, f"this state lacks {name}: it is damaged")
    _check("last_op", state["last_op"], int)
    require(state["last_op"] in list(Op), f"this state's last_op is {state['last_op']}: it is damaged")
    known = {name: state[name] for name in hints} | {"last_op": Op(state["last_op"])}
    for name in ("last_success", "epoch", "germinations", "columns_gated", "steps_per_epoch", "chance_loss", "session"):
        _check(name, known[name], hints[name])
    for name, kind in (("losses", float), ("accuracies", float | None), ("train_losses", float | None)):
        require(isinstance(known[name], list), f"this state's {name} are not a list: it is damaged")
        for value in known[name]:
            _check(name, value, kind)
    require(
        len(known["losses"]) == len(known["accuracies"]) == len(known["train_losses"])
        and 0 <= known["epoch"] < LARGEST
        and 0 <= known["germinations"] < LARGEST,
        "this state's epochs do not broadcast with each other: it is damaged",
    )
    report = state.get("report", {})  # older states have none
    require(isinstance(report, dict), f"this state's report is {report!r:.100}: it is damaged")
    slots = _slots(state["slots"], names, slot_shapes)
    return SavedGrowth(slots=slots, order=_order(state["order"], names, slots), report=report, **known)


def _order(order: object, names: Sequence[str], slots: Sequence[Slot]) -> list[int]:
    filled = [name for name, slot in zip(names, slots, strict=True) if slot.active]
    fits = isinstance(order, list) and all(isinstance(n, str) for n in order) and sorted(order) == sorted(filled)
    require(fits, f"this state's order is {order!r:.100}, and its filled slots are {filled}: it is damaged")
    assert isinstance(order, list)
    return [names.index(name) for name in order]


def _slots(packed: object, names: Sequence[str], slot_shapes: Sequence[SlotShape]) -> list[Slot]:
    """Return the slots in the order of `names`."""
    require(isinstance(packed, Mapping), "this state's slots are not a mapping: it is damaged")
    assert isinstance(packed, Mapping)
    require(
        list(packed) == list(names),
        f"this state has slots {', '.join(map(str, packed))}, but this model has {', '.join(names)}: "
        "give the same slots",
    )
    return [_slot(name, packed[name], slot_shape) for name, slot_shape in zip(names, slot_shapes, strict=True)]


def _slot(name: str, saved: object, slot_shape: SlotShape) -> Slot:
    stages = {stage.name: stage for stage in Stage}
    wanted = {f.name for f in fields(Slot)}
    require(isinstance(saved, Mapping) and set(saved) == wanted, f"slot {name!r} of this state is damaged")
    assert isinstance(saved, Mapping)
    stage, ramp = saved["stage"], saved["ramp"]
    require(isinstance(stage, str) and stage in stages, f"slot {name!r} of this state has stage {stage!r}: damaged")
    if ramp is not None:
        right = isinstance(ramp, Mapping) and set(ramp) == {f.name for f in fields(Ramp)}
        require(right, f"slot {name!r} of this state has a damaged ramp")
        for key, kind in get_type_hints(Ramp).items():
            _check(f"{name}.ramp.{key}", ramp[key], kind)
        ramp = Ramp(**ramp)
    for key, kind in get_type_hints(Slot).items():
        if key not in ("stage", "ramp"):
            _check(f"{name}.{key}", saved[key], kind)
    slot = Slot(**{**saved, "stage": stages[stage], "ramp": ramp})
    offered = [i for i, cost in enumerate(slot_shape.costs) if cost is not None] if slot.active else [-1]
    require(
        slot.blueprint in offered and 0 <= slot.blend < len(BLENDS),
        f"slot {name!r} of this state holds blueprint {slot.blueprint}, blend {slot.blend}, which do not exist",
    )
    return slot


def _check(name: str, value: object, kind: Any) -> None:
    """Raise `UserError` unless `value` is of type `kind`. An int may stand for a float, a bool for neither."""
    kinds = get_args(kind) or (kind,)
    allowed = tuple(t for k in kinds for t in (NUMBER if k is float else (k,)))
    right = isinstance(value, allowed) and (bool in allowed or not isinstance(value, bool))
    require(right, f"this state's {name} is {value!r:.100}: it is damaged")
