"""`Spaces`: the observation and action spaces of a policy, and the hash by which actors and learner compare them."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

from actors.types.actions import MAX_CHOICES, ActionSpec, Head

MAX_FEATURES = 2**20  # of an observation: 4 MiB a step


@dataclass(frozen=True)
class Spaces:
    """An observation has `base_size` features, followed by `slot_size` features for each of `slots` slots.

    `num_blueprints` includes NOOP. In an environment without slots, `slot_size`, `slots` and `num_blueprints` are 0
    and blueprint indices have shape `[N, 0]`.
    """

    action: ActionSpec
    base_size: int
    slot_size: int
    slots: int
    num_blueprints: int

    def __post_init__(self) -> None:
        """Raise `ValueError` for sizes that no policy can have."""
        sizes = (self.base_size, self.slot_size, self.slots, self.num_blueprints)
        if any(type(size) is not int or size < 0 for size in sizes) or not 0 < self.obs_size <= MAX_FEATURES:
            raise ValueError(f"sizes {sizes} of an observation: it has 1 to {MAX_FEATURES} features")
        if self.action.flat_size > MAX_CHOICES:
            raise ValueError(f"{self.action.flat_size} choices of actions, more than {MAX_CHOICES}")

    @classmethod
    def flat(cls, action: ActionSpec, obs_size: int) -> Spaces:
        """Build the spaces of an environment without slots."""
        return cls(action, obs_size, 0, 0, 0)

    @property
    def obs_size(self) -> int:
        return self.base_size + self.slots * self.slot_size

    def to_json(self) -> str:
        """Return canonical JSON: equal spaces give equal text."""
        raw = asdict(self)
        for head in raw["action"]["heads"]:
            if head["bounds"] is None:  # categorical heads keep the text, and so the hash, that they always had
                del head["bounds"], head["squash"]
        return json.dumps(raw, sort_keys=True, separators=(",", ":"), allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> Spaces:
        raw = json.loads(text)
        action = raw["action"]
        heads = tuple(map(_head, action["heads"]))
        spec = ActionSpec(heads, tuple(tuple(row) for row in action["relevance"]), action["conditioned"])
        return cls(spec, **{k: raw[k] for k in ("base_size", "slot_size", "slots", "num_blueprints")})

    def with_slots(self, slots: int) -> Spaces:
        """Return the same spaces with another number of slots. Raises `ValueError` for spaces without slots."""
        if not self.slots:
            raise ValueError("spaces without slots cannot be given slots")
        op, slot, *rest = self.action.heads
        pointer = Head(slot.name, tuple(map(str, range(slots))))
        return replace(self, slots=slots, action=replace(self.action, heads=(op, pointer, *rest)))

    @cached_property
    def family(self) -> str:
        """Hash that ignores the number of slots."""
        return self.with_slots(1).hash if self.slots else self.hash

    @cached_property
    def hash(self) -> str:
        return hashlib.sha256(self.to_json().encode()).hexdigest()[:16]


def _head(raw: dict[str, Any]) -> Head:
    if raw.get("bounds") is None:
        return Head(raw["name"], tuple(raw["choices"]))
    low, high = raw["bounds"]
    return Head(raw["name"], tuple(raw["choices"]), (low, high), bool(raw["squash"]))
