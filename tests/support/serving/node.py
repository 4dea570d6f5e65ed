"""Node packages for tests of foreign clients."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


def install(folder: Path, *packages: str) -> Path:
    """Install packages into a folder `node` in `folder`, and return it. Skips the test if npm is missing or cannot
    reach a registry."""
    if shutil.which("npm") is None or shutil.which("node") is None:
        pytest.skip("node and npm are not installed")
    node = folder / "node"
    node.mkdir()
    (node / "package.json").write_text("{}")
    command = ["npm", "install", "--no-audit", "--no-fund", "--prefer-offline", "--fetch-retries=1", *packages]
    try:
        result = subprocess.run(command, cwd=node, capture_output=True, text=True, timeout=100, check=False)
    except subprocess.TimeoutExpired:
        pytest.skip("npm's registry did not respond in time")
    if result.returncode != 0:
        pytest.skip(f"npm could not install the packages: {result.stderr.strip()[-200:]}")
    return node
