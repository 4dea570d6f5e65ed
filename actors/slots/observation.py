"""The observation of the policy: two tables (`BASE` and `SLOT`) with name, size, range and meaning of every feature.

Features do not depend on the scale of the task, and they are bounded. A value that may be unknown has a `known` flag
and reads 0 while it is unknown. The flat observation `[base_size + S * slot_size]` holds the base features, then the
features of each slot. Blueprints are observed separately, as `blueprint_indices [S]`.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from actors.slots.base_features import BASE
from actors.slots.model_view import ModelView
from actors.slots.slot_features import OF_SEED, OF_SLOT, SLOT

NO_SEED = [0.0] * sum(f.size for f in OF_SEED)


def observe(view: ModelView) -> NDArray[np.float32]:
    """Return the flat observation `[base_size + S * slot_size]`."""
    values = [x for feature in BASE for x in feature.value(view)]
    for s in range(len(view.slots)):
        values += [x for feature in OF_SLOT for x in feature.value(view, s)]
        values += [x for feature in OF_SEED for x in feature.value(view, s)] if view.slots[s].active else NO_SEED
    return np.array(values, dtype=np.float32)


def bounds(slots: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return the bounds (low, high) of the flat observation."""
    entries = [f for f in BASE for _ in range(f.size)] + [f for f in SLOT for _ in range(f.size)] * slots
    return np.array([f.low for f in entries], dtype=np.float32), np.array([f.high for f in entries], dtype=np.float32)
