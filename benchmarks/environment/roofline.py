"""How close an epoch is to the limits of the device (a roofline model).

FLOPs of matrix products and convolutions are counted as they run. Bytes are a lower bound: saved activations are
written and read once, parameters, gradients and moments once per minibatch. The peaks of the device are measured, by
one large matrix product and one large copy.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from actors.env.seed_fleet import SeedTrainingFleet
from benchmarks.environment.growth import waits, without_graph


def peaks(device: str) -> tuple[float, float]:
    """Return the measured peaks: FLOP/s in float32 without TF32, and bytes/s."""
    n = 8192 if device == "cuda" else 1024
    a, b = torch.rand(n, n, device=device), torch.empty(n, n, device=device)
    return 2 * n**3 / _best_s(lambda: torch.mm(a, a, out=b), device), 8 * n**2 / _best_s(lambda: b.copy_(a), device)


def _best_s(work: Callable[[], object], device: str) -> float:
    best = float("inf")
    for _ in range(6):
        start = time.perf_counter()
        work()
        if device == "cuda":
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - start)
    return best


def roofline(fleet: SeedTrainingFleet, epoch_s: float, memory: dict[str, float], device: str) -> dict[str, Any]:
    """Return figures per inner step of one environment, including evaluation; `epoch_s` is per environment."""
    with FlopCounterMode(display=False) as counter, without_graph(fleet):
        fleet.step(waits(fleet))
    steps = fleet.config.max_inner_steps
    flops = counter.get_total_flops() / fleet.num_envs / steps
    if not flops or (device == "cpu" and fleet.episodes[0].host.family.dims):
        return {"MFLOP": "-", "MB": "-", "bound": "numba kernels are not counted", "of the bound %": "-"}
    moved = 1024 * (2 * memory["activations KiB"] + 3 * memory["parameters KiB"] + 2 * memory["moments KiB"])
    arithmetic, traffic = (amount / peak for amount, peak in zip((flops, moved), peaks(device), strict=True))
    bound = max(arithmetic, traffic)
    return {
        "MFLOP": flops / 1e6,
        "MB": moved / 1e6,
        "bound": "arithmetic" if bound == arithmetic else "memory",
        "of the bound %": 100.0 * bound * steps / epoch_s,
    }
