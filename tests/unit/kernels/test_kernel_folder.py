"""The folders of compiled kernels: one for each processor, readable by its user, and filled once with the same code."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from actors.errors import UserError
from actors.kernels import cache
from actors.kernels.cache import kernel_folder

SOURCES = Path(cache.__file__).parent


def test_other_processors_have_kernels_of_their_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    ours = kernel_folder("hosts", SOURCES)
    monkeypatch.setenv("NUMBA_CPU_NAME", "nehalem")
    assert kernel_folder("hosts", SOURCES) != ours


@pytest.fixture
def image_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Compiled by another user, and read-only from now on; the temporary folder is `tmp_path / "temporary"`."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "image"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    folder = kernel_folder("policy", SOURCES)
    (folder / "float32").mkdir()
    (folder / "float32" / "step.nbi").write_text("code")
    monkeypatch.setattr(os, "access", lambda path, mode: not str(path).startswith(str(tmp_path / "image")))
    return folder


def test_kernels_that_another_user_compiled_are_copied(image_cache: Path, tmp_path: Path) -> None:
    folder = kernel_folder("policy", SOURCES)
    assert folder.parent == tmp_path / "temporary" / f"tamiyo-{os.getuid()}"
    assert folder.parent.stat().st_mode & 0o777 == 0o700
    assert (folder / "float32" / "step.nbi").read_text() == "code"
    (folder / "float32" / "mine").touch()
    assert kernel_folder("policy", SOURCES) == folder
    assert (folder / "float32" / "mine").exists()
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_a_folder_that_another_user_made_is_refused(image_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    with pytest.raises(UserError, match="tamiyo-12345 belongs to another user: set XDG_CACHE_HOME"):
        kernel_folder("policy", SOURCES)


def test_no_folder_at_all_is_one_line(image_cache: Path, tmp_path: Path) -> None:
    (tmp_path / "temporary").rmdir()
    with pytest.raises(UserError, match="no folder for compiled kernels"):
        kernel_folder("policy", SOURCES)


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
