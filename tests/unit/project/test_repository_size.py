"""The repository stays small: files that a command can recreate are not kept in git."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
MB = 1_000_000


def _tracked(*folders: str) -> dict[str, int]:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    listed = subprocess.run(["git", "ls-files", "-z", *folders], cwd=ROOT, capture_output=True, text=True, check=True)
    paths = [ROOT / name for name in listed.stdout.split("\0") if name]
    return {str(p.relative_to(ROOT)): p.stat().st_size for p in paths if p.is_file()}


def test_a_shallow_clone_is_below_ten_megabytes() -> None:
    sizes = _tracked()
    largest = sorted(sizes, key=lambda name: sizes[name], reverse=True)[:5]
    assert sum(sizes.values()) < 10 * MB, f"the largest files are {largest}"


def test_results_hold_records_and_tables_only() -> None:
    sizes = _tracked("results")
    assert sum(sizes.values()) < 3 * MB
    assert not [name for name in sizes if name.endswith((".safetensors", ".csv", ".parquet"))]
