"""`Spaces`: what a policy must fit, and the hash by which both ends of the queue know that they mean the same."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, replace
from functools import cached_property

from actors.types.actions import ActionSpec, Head


@dataclass(frozen=True)
class Spaces:
    """Observation: `base_size` features, then `slots` times `slot_size`; `num_blueprints` counts NOOP.

    An environment without slots has 0 of `slot_size`, `slots` and `num_blueprints`, and blueprint indices `[N, 0]`.
    """

    action: ActionSpec
    base_size: int
    slot_size: int
    slots: int
    num_blueprints: int

    @classmethod
    def flat(cls, action: ActionSpec, obs_size: int) -> Spaces:
        """Of an environment without slots."""
        return cls(action, obs_size, 0, 0, 0)

    @property
    def obs_size(self) -> int:
        return self.base_size + self.slots * self.slot_size

    def to_json(self) -> str:
        """Canonical JSON; equal spaces give equal text."""
        return json.dumps(asdict(self), sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Spaces:
        raw = json.loads(text)
        action = raw["action"]
        heads = tuple(Head(h["name"], tuple(h["choices"])) for h in action["heads"])
        spec = ActionSpec(heads, tuple(tuple(row) for row in action["relevance"]), action["conditioned"])
        return cls(spec, **{k: raw[k] for k in ("base_size", "slot_size", "slots", "num_blueprints")})

    def with_slots(self, slots: int) -> Spaces:
        """The same family with another number of slots. Raises `ValueError` where there are none to begin with."""
        if not self.slots:
            raise ValueError("an environment without slots has no others in its family")
        op, slot, *rest = self.action.heads
        pointer = Head(slot.name, tuple(map(str, range(slots))))
        return replace(self, slots=slots, action=replace(self.action, heads=(op, pointer, *rest)))

    @cached_property
    def family(self) -> str:
        """Equal for spaces that differ in the number of slots alone."""
        return self.with_slots(1).hash if self.slots else self.hash

    @cached_property
    def hash(self) -> str:
        return hashlib.sha256(self.to_json().encode()).hexdigest()[:16]
