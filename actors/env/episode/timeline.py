"""`Timeline`: the record of one episode, epoch by epoch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain

from actors.slots.objective import Standing
from actors.slots.stage import Slot, Stage

LANES = {"STREAM": "slot", "COLUMN": "column"}
"""Names of slots by their kind."""


@dataclass
class Timeline:
    """What happened in the T epochs of an episode with S slots."""

    task: str
    seed: int
    horizon: int
    kinds: list[str]  # [S], STREAM or COLUMN
    accuracy: list[float]  # [T + 1], accuracy of which J is made, points; the untrained host first
    host_width: int  # units, or channels
    points_per_doubling: float
    points_per_compute_doubling: float
    ops: list[str] = field(default_factory=list)  # [T]
    op_slots: list[int] = field(default_factory=list)  # [T], -1 for WAIT
    stages: list[list[str]] = field(default_factory=list)  # [S][T]
    alphas: list[list[float]] = field(default_factory=list)  # [S][T]
    blueprints: list[list[str]] = field(default_factory=list)  # [S][T], "" if the slot is empty
    contributions: list[list[float | None]] = field(default_factory=list)  # [S][T], points; None if unknown
    gradient_health: list[list[float | None]] = field(default_factory=list)  # [S][T], 0 to 1; None if unknown
    doublings: list[float] = field(default_factory=list)  # [T], of the model's parameters
    compute_doublings: list[float] = field(default_factory=list)  # [T], of the training FLOPs
    shares: list[float] = field(default_factory=list)  # [T], terms of J in points, whatever the reward mode
    names: list[str] = field(default_factory=list)  # [S], of slots in a user's model

    def __post_init__(self) -> None:
        for lanes in (self.stages, self.alphas, self.blueprints, self.contributions, self.gradient_health):
            lanes.extend([] for _ in self.kinds)

    def record(
        self, op: str, op_slot: int, slots: Sequence[Slot], names: Sequence[str], standing: Standing, share: float
    ) -> None:
        """Add one epoch; `names` are those of the blueprints, `share` is the epoch's term of J."""
        self.ops.append(op)
        self.op_slots.append(op_slot)
        for s, slot in enumerate(slots):
            self.stages[s].append(slot.stage.name)
            self.alphas[s].append(slot.alpha)
            self.blueprints[s].append(names[slot.blueprint] if slot.blueprint >= 0 else "")
            self.contributions[s].append(slot.contribution)
            self.gradient_health[s].append(slot.gradient_health)
        self.doublings.append(standing.doublings)
        self.compute_doublings.append(standing.compute_doublings)
        self.accuracy.append(standing.accuracy)
        self.shares.append(share)

    @property
    def lanes(self) -> list[str]:
        """Return the name of each slot, `[S]`: in the environment its kind and the index by which actions name it."""
        return self.names or [f"{LANES[kind]} {s}" for s, kind in enumerate(self.kinds)]

    @property
    def host(self) -> str:
        """Return the size of the host and the prices of growing it, in words."""
        compute = f", {self.points_per_compute_doubling:.2g} of compute" if self.points_per_compute_doubling else ""
        return f"host width {self.host_width}, price {self.points_per_doubling:.2g} per doubling{compute}"

    def stage_shares(self) -> dict[str, float]:
        """Return the fraction of slot epochs spent in each stage, as `stage/NAME`."""
        seen = Counter(chain.from_iterable(self.stages))
        return {f"stage/{stage.name}": seen[stage.name] / seen.total() for stage in Stage}

    def as_dict(self) -> dict[str, object]:
        """Return all fields, `return` (J up to now), `lanes` and `host`."""
        return asdict(self) | {"return": sum(self.shares), "lanes": self.lanes, "host": self.host}
