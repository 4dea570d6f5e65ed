"""`tamiyo` is the whole public interface: it exports what it lists, and examples and documentation import only it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import tamiyo

ROOT = Path(__file__).parents[3]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")), *sorted((ROOT / "examples").glob("*.py"))]
INTERNAL = re.compile(
    r"""\b(?:from|import)\s+(?:[\w.]+,\s*)*(?:actors|learner|deploy)\b  # also as one of several modules
    |`(?:deploy|actors)\.[\w.]+\(                                       # a call in the text; `learner.lr` is a setting
    |^:::\ (?:actors|learner|deploy)\.\S+""",
    re.MULTILINE | re.VERBOSE,
)
NEEDS_AN_EXTRA = {"GrowthCallback"}  # lightning


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_page_or_an_example_shows_only_the_public_module(document: Path) -> None:
    assert INTERNAL.findall(document.read_text()) == []


def test_internal_names_are_detected() -> None:
    assert INTERNAL.findall("import tamiyo\nfrom actors.env import make_env\n") == ["from actors"]
    assert INTERNAL.findall("```python\nimport numpy, learner.train\n```\n") == ["import numpy, learner"]
    assert INTERNAL.findall("Call `deploy.rllib.register()` first.") == ["`deploy.rllib.register("]
    assert INTERNAL.findall("::: actors.growth.slots.SlotSpec\n") == ["::: actors.growth.slots.SlotSpec"]
    assert INTERNAL.findall("Set `learner.lr`; see `actors/env/env.py`. Ray imports actors' code.") == []


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
