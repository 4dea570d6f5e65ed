"""Kernels with one mistake in their source fail the comparison with the network; those for other processors pass it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import actors
from actors.jit.cache import has_feature

MISTAKES = {
    "the forget gate is the input gate": ("cores.py", "g[j] = f[j] * c[j]", "g[j] = i[j] * c[j]"),
    "heads read the pointer's context": ("heads.py", "net.rest) + 1) * net.head", "net.rest)) * net.head"),
    "floors are added twice": ("choice.py", "kept * probs[j] + share", "kept * probs[j] + share + share"),
    "the last row of a tile is the first": ("tiles.py", "mul(stride, _INDEX(r))", "mul(stride, _INDEX(r % 5))"),
    "the last slot is not pooled": ("encoder.py", "range(1, net.slots)", "range(1, net.slots - 1)"),
}
CHECK = """
from tests.property.policy.test_acting_kernels import (
    test_the_default_policy_acts_as_its_network_up_to_the_rounding_of_float32 as check,
)

try:
    check(5)
    print("right")
except AssertionError:
    print("noticed")
"""


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_a_kernel_is_noticed(mistake: str, tmp_path: Path) -> None:
    root = Path(actors.__file__).parents[1]
    for package in ("actors", "learner", "tests"):
        shutil.copytree(root / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    name, right, wrong = MISTAKES[mistake]
    source = tmp_path / "actors" / "policy" / "kernels" / name
    text = source.read_text()
    assert text.count(right) == 1
    source.write_text(text.replace(right, wrong))
    environ = {**os.environ, "PYTHONPATH": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    assert _checked(tmp_path, environ) == "noticed"


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.skipif(not has_feature("avx2"), reason="this processor cannot run the code of the others")
@pytest.mark.parametrize(("processor", "features"), [("haswell", "+avx2,+fma"), ("nehalem", "+sse4.2")])
def test_kernels_for_processors_with_shorter_vectors_are_right(processor: str, features: str, tmp_path: Path) -> None:
    """One of them has fused products, the other has not."""
    chosen = {"NUMBA_CPU_NAME": processor, "NUMBA_CPU_FEATURES": features}
    environ = {**os.environ, **chosen, "XDG_CACHE_HOME": str(tmp_path)}
    assert _checked(Path(actors.__file__).parents[1], environ) == "right"


def _checked(folder: Path, environ: dict[str, str]) -> str:
    command = [sys.executable, "-c", CHECK]
    return subprocess.run(command, cwd=folder, env=environ, stdout=subprocess.PIPE, text=True).stdout.strip()
