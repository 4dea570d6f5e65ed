"""`Topology`: the seeds that are part of a host, as data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from actors.slots.stage import BLENDED, Ramp, Slot, Stage


class GrownSeed(NamedTuple):
    """One seed that is part of its host's function."""

    slot: int
    blueprint: int
    blend: int
    alpha: float


Topology = tuple[GrownSeed, ...]  # in the order in which they joined


def topology_of(slots: Sequence[Slot]) -> Topology:
    """Return the seeds that are part of the host's function."""
    joined = sorted((slot.joined, s) for s, slot in enumerate(slots) if slot.stage in BLENDED)
    return tuple(GrownSeed(s, slots[s].blueprint, slots[s].blend, slots[s].alpha) for _, s in joined)


def fossilized_slot(grown: GrownSeed, joined: int) -> Slot:
    """Return the slot of a host that starts with this seed, the `joined`-th."""
    return Slot(
        stage=Stage.FOSSILIZED,
        blueprint=grown.blueprint,
        blend=grown.blend,
        alpha_target=grown.alpha,
        ramp=Ramp(grown.alpha, grown.alpha),
        joined=joined,
    )
