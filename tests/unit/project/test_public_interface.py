"""`tamiyo` is the whole public interface: it exports what it lists, and examples and documentation import only it."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import tamiyo

ROOT = Path(__file__).parents[3]
INTERNAL = ("actors", "learner", "deploy")
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
CODE_BLOCK = re.compile(r"^( *)```(\w*)[^\n]*\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
IMPORT = re.compile(rf"\b(?:from|import)\s+({'|'.join(INTERNAL)})\b")
NEEDS_AN_EXTRA = {"GrowthCallback"}  # lightning


def internal_imports(source: str) -> list[str]:
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        else:
            continue
        found += [ast.unparse(node) for name in names if name.split(".")[0] in INTERNAL]
    return found


def complaints(page: str) -> list[str]:
    """Return the imports of internal packages in the code blocks and the text of a page."""
    found = [match.group() for match in IMPORT.finditer(page)]
    for indent, language, body in CODE_BLOCK.findall(page):
        if language == "python":
            code = "\n".join(line.removeprefix(indent) for line in body.splitlines())
            found += internal_imports(code)
    found += re.findall(r"`(?:deploy|actors)\.[\w.]+\(", page)  # a call in the text; `learner.lr` is a setting
    return found + re.findall(rf"^::: (?:{'|'.join(INTERNAL)})\.\S+", page, re.MULTILINE)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_an_example_imports_only_the_public_module(example: Path) -> None:
    assert internal_imports(example.read_text()) == []
    assert complaints(ast.get_docstring(ast.parse(example.read_text())) or "") == []


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_page_shows_only_the_public_module(page: Path) -> None:
    assert complaints(page.read_text()) == []


def test_internal_imports_are_detected() -> None:
    assert internal_imports("import tamiyo\nfrom actors.env import make_env\n") == ["from actors.env import make_env"]
    assert complaints("```python\nimport numpy, learner.train\n```\n") == ["import numpy, learner.train"]
    assert complaints("Call `deploy.rllib.register()` first.") == ["`deploy.rllib.register("]
    assert complaints("::: actors.growth.slots.SlotSpec\n") == ["::: actors.growth.slots.SlotSpec"]
    assert complaints("Set `learner.lr`; see `actors/env/env.py`. Ray imports actors' code.") == []


def test_every_public_name_can_be_imported_and_is_documented() -> None:
    reference = (ROOT / "docs" / "reference" / "api.md").read_text()
    for name in tamiyo.__all__:
        assert f"::: tamiyo.{name}\n" in reference, f"docs/reference/api.md does not document {name}"
        if name not in NEEDS_AN_EXTRA:
            assert getattr(tamiyo, name) is not None
    with pytest.raises(AttributeError, match="it exports PRESETS, ActionMasks, Answer"):
        _ = tamiyo.nothing


GROWS = """
import tamiyo, torch
net = lambda scale: torch.nn.Sequential(torch.nn.Linear(4, int(8 * scale)), torch.nn.Linear(int(8 * scale), 3))
for policy in ("trained", "fixed-column:double@3"):
    model = net(1)
    options = {"columns": tamiyo.Column(net), "horizon_epochs": 10, "num_classes": 3, "policy": policy}
    grower = tamiyo.GrowthController(model, [], torch.optim.Adam(model.parameters()), **options)
    assert not grower.step(loss=1.1, accuracy=0.3).reason
"""
LIGHT = {
    "tamiyo": ("import tamiyo; assert tamiyo.Config is type(tamiyo.PRESETS['quick'])", "torch ray grpc"),
    "clients": ("import tamiyo; tamiyo.PolicyClient; tamiyo.AsyncPolicyClient", "torch ray"),
    "a model that grows": (GROWS, "grpc numba actors.env ray redis"),
    "command": (
        "from deploy.cli import main; [main(a.split()) for a in ('-h', 'train -h', 'actors -h', 'train -x')]",
        "torch ray matplotlib sklearn grpc redis pandas",
    ),
}


@pytest.mark.parametrize("which", LIGHT)
def test_what_should_start_at_once_loads_no_heavy_packages(which: str) -> None:
    code, heavy = LIGHT[which]
    check = "found = set(sys.argv[1].split()) & set(sys.modules); sys.exit(f'loaded {found}' if found else 0)"
    command = [sys.executable, "-c", f"import sys\n{code}\n{check}", heavy]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, cwd=ROOT)
    assert ended.returncode == 0, ended.stderr
