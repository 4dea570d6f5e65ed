"""`Timeline`: the record of one episode, epoch by epoch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain

from actors.env.slots.stage import Slot, Stage


@dataclass
class Timeline:
    """What happened in the T epochs of an episode with S slots."""

    task: str
    seed: int
    horizon: int
    slots: int
    accuracy: list[float]  # [T + 1], validation accuracy in points; the untrained host first
    ops: list[str] = field(default_factory=list)  # [T]
    op_slots: list[int] = field(default_factory=list)  # [T], -1 for WAIT
    stages: list[list[str]] = field(default_factory=list)  # [S][T]
    alphas: list[list[float]] = field(default_factory=list)  # [S][T]
    blueprints: list[list[str]] = field(default_factory=list)  # [S][T], "" if the slot is empty
    growth_ratio: list[float] = field(default_factory=list)  # [T], parameters of all seeds / of the host
    shares: list[float] = field(default_factory=list)  # [T], terms of J in points, whatever the reward mode

    def __post_init__(self) -> None:
        for lanes in (self.stages, self.alphas, self.blueprints):
            lanes.extend([] for _ in range(self.slots))

    def record(
        self,
        op: str,
        op_slot: int,
        slots: Sequence[Slot],
        names: Sequence[str],
        growth: float,
        accuracy: float,
        share: float,
    ) -> None:
        """Add one epoch; `names` are those of the blueprints, `share` is the epoch's term of J."""
        self.ops.append(op)
        self.op_slots.append(op_slot)
        for s, slot in enumerate(slots):
            self.stages[s].append(slot.stage.name)
            self.alphas[s].append(slot.alpha)
            self.blueprints[s].append(names[slot.blueprint] if slot.blueprint >= 0 else "")
        self.growth_ratio.append(growth)
        self.accuracy.append(accuracy)
        self.shares.append(share)

    def stage_shares(self) -> dict[str, float]:
        """Return the fraction of slot epochs spent in each stage, as `stage/NAME`."""
        seen = Counter(chain.from_iterable(self.stages))
        return {f"stage/{stage.name}": seen[stage.name] / seen.total() for stage in Stage}

    def as_dict(self) -> dict[str, object]:
        """Return all fields, and `return`: J up to now."""
        return asdict(self) | {"return": sum(self.shares)}
