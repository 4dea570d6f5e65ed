"""The process whose call compiles the kernels computes the same bits as those that find them compiled."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EPISODE = """
import hashlib
import numpy as np
from actors.config import EnvConfig
from actors.kernels.hosts.epoch import train_epoch
from actors.kernels.hosts.evaluate import evaluate
from actors.env.seed_fleet import SeedTrainingFleet

config = EnvConfig(tasks=("rings",), host_width=4, device="cpu", backend="numba", horizon_epochs=6)
fleet = SeedTrainingFleet(config, 1, 0)
fleet.reset([1])
for _ in range(6):
    fleet.step(np.zeros((1, len(fleet.spaces.action.heads)), np.int64))
compiled = [kernel.in_precision(np.dtype("float32")) for kernel in (train_epoch, evaluate)]
compiled_here = sum(sum(kernel.stats.cache_misses.values()) for kernel in compiled)
print(compiled_here, hashlib.sha256(fleet.networks.networks[0].params.tobytes()).hexdigest())
"""


@pytest.mark.long  # it compiles kernels
@pytest.mark.timeout(300)
def test_a_process_that_finds_no_compiled_kernels_computes_the_same_bits(tmp_path: Path) -> None:
    """It prints how many kernels it compiled itself, and a hash of the parameters."""
    environ, command = os.environ | {"XDG_CACHE_HOME": str(tmp_path)}, [sys.executable, "-c", EPISODE]
    first, second = (
        subprocess.check_output(command, env=environ | {"PYTHONHASHSEED": seed}, text=True) for seed in ("7", "8")
    )
    assert first.startswith("0 ")
    assert first == second
    # Numba's index has no lock, so a process that compiles the other precision must not write to the same one.
    indices = {index.relative_to(tmp_path).parts[2] for index in tmp_path.rglob("*.nbi")}
    assert indices == {"float32"}
