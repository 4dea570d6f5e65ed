"""Kernels with one mistake in their source fail the comparison with the network; those for other processors pass it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import actors
from actors.kernels.cache import has_feature

ACTING = "from tests.property.policy.test_acting_kernels import check_default_policy as check"
GRADIENT = "from tests.property.policy.test_gradient_kernels import check_all_kinds as check"
MISTAKES = {
    "the masks of another op are in force": (ACTING, "policy/choice.py", "first += (op * z", "first += (0 * z"),
    "a row of a tile is another one": (ACTING, "matmul.py", "x, x0, xr, r) for", "x, x0, xr, r % 5) for"),
    "the cell forgets no gradient": (GRADIENT, "policy/core.py", "dc[j] = total * f[j]", "dc[j] = total"),
    "floors do not weaken the gradient": (GRADIENT, "policy/scores.py", "pull *= kept * probs", "pull *= probs"),
}
CHECK = """
try:
    check()
    print("right")
except AssertionError:
    print("noticed")
"""


pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_a_kernel_is_noticed(mistake: str, tmp_path: Path) -> None:
    root = Path(actors.__file__).parents[1]
    for package in ("actors", "learner", "tests"):
        shutil.copytree(root / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    check, name, right, wrong = MISTAKES[mistake]
    source = tmp_path / "actors/kernels" / name
    text = source.read_text()
    assert text.count(right) == 1
    source.write_text(text.replace(right, wrong))
    environ = {**os.environ, "PYTHONPATH": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    assert _checked(check, tmp_path, environ) == "noticed"


@pytest.mark.skipif(not has_feature("avx2"), reason="this processor cannot run the code of the others")
@pytest.mark.parametrize("check", [ACTING, GRADIENT])
@pytest.mark.parametrize(("processor", "features"), [("haswell", "+avx2,+fma"), ("nehalem", "+sse4.2")])
def test_kernels_for_processors_with_shorter_vectors_are_right(
    processor: str, features: str, check: str, tmp_path: Path
) -> None:
    """One of them has fused products, the other has not."""
    chosen = {"NUMBA_CPU_NAME": processor, "NUMBA_CPU_FEATURES": features}
    environ = {**os.environ, **chosen, "XDG_CACHE_HOME": str(tmp_path)}
    assert _checked(check, Path(actors.__file__).parents[1], environ) == "right"


def _checked(check: str, folder: Path, environ: dict[str, str]) -> str:
    command = [sys.executable, "-c", check + CHECK]
    return subprocess.run(command, cwd=folder, env=environ, stdout=subprocess.PIPE, text=True).stdout.strip()
