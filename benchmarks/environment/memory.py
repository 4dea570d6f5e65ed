"""Memory of a fleet per environment: what its networks hold, and the activations that a training step saves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from actors.env.seed_fleet import SeedTrainingFleet
from benchmarks.environment.growth import waits, without_graph

KINDS = {
    "activations": ("work",),
    "snapshots": ("snapshot",),
    "moments": ("moment", "steps", "correction"),
    "data": ("train", "val_data", "evaluation", "task", "no_class"),
}


def bytes_per_env(fleet: SeedTrainingFleet) -> dict[str, float]:
    """Return KiB by kind; data include the arrays of the tasks."""
    found = dict.fromkeys(("parameters", *KINDS), 0)
    seen: set[int] = set()
    for path, array in _arrays(fleet.networks, (), set()):
        start, size = _memory(array)
        if start not in seen:
            seen.add(start)
            found[_kind(path)] += size
    found["activations"] += _activations(fleet)
    return {f"{name} KiB": size / 1024 / fleet.num_envs for name, size in found.items()}


def _kind(path: tuple[str, ...]) -> str:
    for name in path:
        for kind, words in KINDS.items():
            plain = name.strip("_")
            if any(plain.startswith(word) or plain.endswith(word) for word in words):
                return kind
    return "parameters"


def _memory(array: Any) -> tuple[int, int]:
    if isinstance(array, Tensor):
        storage = array.untyped_storage()
        return storage.data_ptr(), storage.nbytes()
    base = array
    while isinstance(base.base, np.ndarray):
        base = base.base
    return base.ctypes.data, base.nbytes


def _arrays(thing: Any, path: tuple[str, ...], visited: set[int]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield every tensor and array inside `thing`, with the attribute names that lead to it."""
    if isinstance(thing, Tensor | np.ndarray):
        yield path, thing
        return
    if id(thing) in visited:
        return
    visited.add(id(thing))
    if isinstance(thing, dict):
        inner = [(str(k), v) for k, v in thing.items()]
    elif isinstance(thing, list | tuple):
        names = getattr(thing, "_fields", ("",) * len(thing))
        inner = list(zip(names, thing, strict=True))
    elif type(thing).__module__.startswith("actors.env") and hasattr(thing, "__dict__"):
        inner = list(vars(thing).items())
    else:
        return
    for name, value in inner:
        yield from _arrays(value, (*path, name), visited)


def _activations(fleet: SeedTrainingFleet) -> int:
    """Return the most bytes that autograd saves at once as tensors.

    Kernels save arrays, which are not counted; the numba backend has a fixed work space.
    """
    sizes: dict[int, int] = {}
    most = 0

    def keep(t: Tensor) -> Tensor:
        nonlocal most
        start, size = _memory(t)
        sizes[start] = size
        return t

    def give(t: Tensor) -> Tensor:
        nonlocal most
        most = max(most, sum(sizes.values()))
        sizes.clear()
        return t

    with torch.autograd.graph.saved_tensors_hooks(keep, give), without_graph(fleet):
        fleet.step(waits(fleet))
    return most
