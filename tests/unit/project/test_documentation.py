"""The documentation builds without warnings and matches the code."""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import get_type_hints

import pytest
import yaml

from deploy.cli import COMMANDS
from deploy.config.reference import TABLES, filled
from deploy.config.schema import Config

ROOT = Path(__file__).parents[3]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
FOLDERS = "actors|learner|deploy|tests|benchmarks|examples|proto|docs"


@pytest.mark.parametrize("name", TABLES)
def test_generated_tables_are_up_to_date(name: str) -> None:
    page = ROOT / "docs" / "reference" / name
    assert page.read_text() == filled(page), "run python -m deploy.config.reference docs/reference"


def test_the_site_builds_without_warnings(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    quiet = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, env=quiet)
    assert built.returncode == 0, built.stdout + built.stderr
    assert "GrowthController" in (tmp_path / "site" / "reference" / "api" / "index.html").read_text()


def test_the_readme_is_short() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 120
    assert len(text.split()) <= 900


def test_every_command_is_documented() -> None:
    page = (ROOT / "docs" / "reference" / "commands.md").read_text()
    documented = set(re.findall(r"^\| `tamiyo ([a-z-]+)", page, re.MULTILINE))
    assert documented == set(COMMANDS)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_mentioned_on_a_page_exist(page: Path) -> None:
    """Checks code spans and code blocks, which a link checker ignores."""
    ends = "py|js|json|proto|sh|yaml|yml|acl|conf|lua|md"
    named = re.findall(rf"(?<![\w./-])(?:{FOLDERS})/[\w./-]+\.(?:{ends})\b", page.read_text())
    assert not [name for name in named if not (ROOT / name).is_file() and not (page.parent / name).is_file()]


def test_the_citation_file_has_all_required_fields() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()
    assert citation["license"] == "MIT"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_settings_mentioned_on_a_page_exist(page: Path) -> None:
    sections = get_type_hints(Config)
    known = {f"{name}.{field.name}" for name, kind in sections.items() for field in dataclasses.fields(kind)}
    named = re.compile(rf"(?<![\w./-])(?:--)?((?:{'|'.join(sections)})\.[a-z]\w*)(?![\w/(])")
    for span in re.findall(r"`[^`\n]+`|^```.*?^```", page.read_text(), re.MULTILINE | re.DOTALL):
        assert {name for name in named.findall(span) if not name.endswith(".password")} <= known  # secret files
