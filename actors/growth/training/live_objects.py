"""`live_objects`: what nobody hands to the controller and is found among all live objects."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any


def live_objects(wanted: Callable[[type], bool]) -> list[Any]:
    """Return all live objects of the types that are wanted. Each type is asked about once: objects are many."""
    objects = gc.get_objects()
    kinds = {kind for kind in set(map(type, objects)) if wanted(kind)}
    return [o for o in objects if type(o) in kinds] if kinds else []
