"""`Timeline`: one episode of a host, epoch by epoch, for pictures and for people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain

from actors.env.slots.stage import Slot, Stage


@dataclass
class Timeline:
    """T epochs, S slots. `accuracy` has T + 1 entries (points): the untrained host first."""

    task: str
    seed: int
    horizon: int
    slots: int
    accuracy: list[float]
    ops: list[str] = field(default_factory=list)
    op_slots: list[int] = field(default_factory=list)  # -1 for WAIT
    stages: list[list[str]] = field(default_factory=list)  # [S][T]
    alphas: list[list[float]] = field(default_factory=list)  # [S][T]
    blueprints: list[list[str]] = field(default_factory=list)  # [S][T], "" where empty
    growth_ratio: list[float] = field(default_factory=list)
    shares: list[float] = field(default_factory=list)  # of J, however it was paid

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
        """`stage/NAME`: its share in all epochs of all slots."""
        seen = Counter(chain.from_iterable(self.stages))
        return {f"stage/{stage.name}": seen[stage.name] / seen.total() for stage in Stage}

    def as_dict(self) -> dict[str, object]:
        return asdict(self) | {"return": sum(self.shares)}
