"""What a user's checkpoint says of each slot, as plain types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, get_args, get_type_hints

from actors.config import require
from actors.env.slots.growth_state import SlotShape
from actors.env.slots.stage import Ramp, Slot, Stage
from actors.types.actions import BLENDS, Op

FORMAT = 1
LARGEST = 2**31
NUMBER = (int, float)


@dataclass(frozen=True)
class SavedGrowth:
    """A controller's state, read and found to fit; `order` holds filled slots in the order of their groups."""

    slots: list[Slot]
    order: list[int]
    germinations: int
    last_op: Op
    last_success: bool
    epoch: int
    losses: list[float]
    accuracies: list[float | None]
    chance_loss: float | None
    session: bytes


def pack_slots(names: Sequence[str], slots: Sequence[Slot]) -> dict[str, dict[str, Any]]:
    return {name: asdict(slot) | {"stage": slot.stage.name} for name, slot in zip(names, slots, strict=True)}


def read_growth(state: object, names: Sequence[str], places: Sequence[SlotShape]) -> SavedGrowth:
    """What `GrowthController.state_dict` gave. Raises `UserError` for anything else, and where the slots are others."""
    require(isinstance(state, Mapping), "this is no state of a GrowthController")
    assert isinstance(state, Mapping)
    require(
        state.get("format") == FORMAT, f"this state has format {state.get('format')!r}: this version reads {FORMAT}"
    )
    hints = {name: kind for name, kind in get_type_hints(SavedGrowth).items() if name not in ("slots", "order")}
    for name in ("slots", "order", *hints):
        require(name in state, f"this state lacks {name}: it is damaged")
    _check("last_op", state["last_op"], int)
    require(state["last_op"] in list(Op), f"this state's last_op is {state['last_op']}: it is damaged")
    known = {name: state[name] for name in hints} | {"last_op": Op(state["last_op"])}
    for name in ("last_success", "epoch", "germinations", "chance_loss", "session"):
        _check(name, known[name], hints[name])
    for name, kind in (("losses", float), ("accuracies", float | None)):
        require(isinstance(known[name], list), f"this state's {name} are no list: it is damaged")
        for value in known[name]:
            _check(name, value, kind)
    require(
        len(known["losses"]) == len(known["accuracies"])
        and 0 <= known["epoch"] < LARGEST
        and 0 <= known["germinations"] < LARGEST,
        "this state's epochs do not agree with each other: it is damaged",
    )
    slots = _slots(state["slots"], names, places)
    return SavedGrowth(slots=slots, order=_order(state["order"], names, slots), **known)


def _order(order: object, names: Sequence[str], slots: Sequence[Slot]) -> list[int]:
    filled = [name for name, slot in zip(names, slots, strict=True) if slot.active]
    fits = isinstance(order, list) and all(isinstance(n, str) for n in order) and sorted(order) == sorted(filled)
    require(fits, f"this state's order is {order!r:.100}, and its filled slots are {filled}: it is damaged")
    assert isinstance(order, list)
    return [names.index(name) for name in order]


def _slots(packed: object, names: Sequence[str], places: Sequence[SlotShape]) -> list[Slot]:
    """In the order of `names`."""
    require(isinstance(packed, Mapping), "this state's slots are no mapping: it is damaged")
    assert isinstance(packed, Mapping)
    require(
        list(packed) == list(names),
        f"this state is of a model with slots {', '.join(map(str, packed))}, and this one has {', '.join(names)}: "
        "name the same",
    )
    return [_slot(name, packed[name], place) for name, place in zip(names, places, strict=True)]


def _slot(name: str, told: object, place: SlotShape) -> Slot:
    stages = {stage.name: stage for stage in Stage}
    wanted = {f.name for f in fields(Slot)}
    require(isinstance(told, Mapping) and set(told) == wanted, f"slot {name!r} of this state is damaged")
    assert isinstance(told, Mapping)
    stage, ramp = told["stage"], told["ramp"]
    require(isinstance(stage, str) and stage in stages, f"slot {name!r} of this state has stage {stage!r}: damaged")
    if ramp is not None:
        right = isinstance(ramp, Mapping) and set(ramp) == {f.name for f in fields(Ramp)}
        require(right, f"slot {name!r} of this state has a damaged ramp")
        for key, kind in get_type_hints(Ramp).items():
            _check(f"{name}.ramp.{key}", ramp[key], kind)
        ramp = Ramp(**ramp)
    for key, kind in get_type_hints(Slot).items():
        if key not in ("stage", "ramp"):
            _check(f"{name}.{key}", told[key], kind)
    slot = Slot(**{**told, "stage": stages[stage], "ramp": ramp})
    offered = [i for i, given in enumerate(place.family.offered()) if given] if slot.active else [-1]
    require(
        slot.blueprint in offered and 0 <= slot.blend < len(BLENDS),
        f"slot {name!r} of this state holds blueprint {slot.blueprint}, blend {slot.blend}, which are not there",
    )
    return slot


def _check(name: str, value: object, kind: Any) -> None:
    """A bool is no number; a whole number may stand for a float."""
    kinds = get_args(kind) or (kind,)
    allowed = tuple(t for k in kinds for t in (NUMBER if k is float else (k,)))
    right = isinstance(value, allowed) and (bool in allowed or not isinstance(value, bool))
    require(right, f"this state's {name} is {value!r:.100}: it is damaged")
