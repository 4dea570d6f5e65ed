"""The documentation is built without a complaint, and what it says of the code is what the code says."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

from deploy.config.reference import field_docs, pages
from deploy.config.schema import PRESETS, Config

ROOT = Path(__file__).parents[3]


def test_pages_made_from_the_code_are_those_in_the_repository() -> None:
    for name, text in pages().items():
        written = (ROOT / "docs" / "reference" / name).read_text()
        assert written == text, f"run python -m deploy.config.reference ({name})"


def test_every_setting_is_explained_and_none_is_forgotten() -> None:
    page = pages()["configuration.md"].partition("## Presets")[0]
    for section in dataclasses.fields(Config):
        part = getattr(PRESETS["tamiyo"], section.name)
        told = field_docs(type(part))
        for field in dataclasses.fields(part):
            assert len(told[field.name]) > 5
            assert page.count(f"| `{section.name}.{field.name}` | ") == 1


def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, env=quiet)
    assert built.returncode == 0, built.stdout + built.stderr
    assert "GrowthController" in (tmp_path / "site" / "reference" / "api" / "index.html").read_text()
