"""The repository stays small: files that a command can recreate are not kept in git."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
MB = 1_000_000


@pytest.mark.parametrize(("folder", "limit"), [(".", 10 * MB), ("results", 3 * MB)])
def test_the_repository_and_its_results_stay_small(folder: str, limit: int) -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    listed = subprocess.run(["git", "ls-files", "-z", folder], cwd=ROOT, capture_output=True, text=True, check=True)
    sizes = {name: (ROOT / name).stat().st_size for name in listed.stdout.split("\0") if (ROOT / name).is_file()}
    assert sum(sizes.values()) < limit, sorted(sizes, key=sizes.__getitem__)[-5:]
    assert folder == "." or not [name for name in sizes if name.endswith((".safetensors", ".csv", ".parquet"))]
