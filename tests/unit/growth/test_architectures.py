"""Models of many kinds are trained with a column, exported, and read by a process without Tamiyo."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import tamiyo
from actors.growth.columns import grown_model
from actors.slots.stage import Stage
from tests.support.growth import architectures
from tests.support.growth.architectures import ARCHITECTURES
from tests.support.growth.columns import JOINED
from tests.support.growth.growing import Script

EPOCHS = 6
FOREIGN = """
import json, sys
for name in ("actors", "learner", "deploy", "tamiyo", "tests"):
    sys.modules[name] = None
import torch
from architectures import ARCHITECTURES
from grown_model import build_grown
from safetensors.torch import load_model
model = build_grown(json.load(open("grown/grown.json")), ARCHITECTURES[sys.argv[1]][0]).eval()
load_model(model, "grown/grown.safetensors")
given, expected = torch.load("example.pt", weights_only=True)
with torch.no_grad():
    found = model(*given)
assert torch.equal(getattr(found, "logits", found), expected)
"""


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_model_grows_a_column_and_is_read_elsewhere(name: str, tmp_path: Path) -> None:
    make, draw, loss_of = ARCHITECTURES[name]
    if ":" in name:
        pytest.importorskip(name.split(":")[0])
    torch.manual_seed(0)
    model, given = make(1.0), draw()
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)

    def loss() -> torch.Tensor:
        found: torch.Tensor = loss_of(model(*given), *given)
        return found

    grower = tamiyo.GrowthController(
        model, optimizer=optimizer, columns=tamiyo.Column(make), policy=Script(JOINED), horizon_epochs=EPOCHS
    )
    model.train()
    for _ in range(EPOCHS):
        for _ in range(2):
            optimizer.zero_grad()
            loss().backward()
            grower.shadow(loss)
            optimizer.step()
        grower.step(loss())
    assert grower.stages["column 1"] is Stage.HOLDING

    def output(network: torch.nn.Module) -> torch.Tensor:
        with torch.no_grad():
            found = network.eval()(*given)
        logits: torch.Tensor = getattr(found, "logits", found)
        return logits

    expected = output(model)
    assert torch.equal(output(grower.export()), expected)
    tamiyo.save_grown(grower, tmp_path / "grown")
    torch.save((given, expected), tmp_path / "example.pt")
    for module in (architectures, grown_model):
        assert module.__file__ is not None
        shutil.copy(module.__file__, tmp_path)
    ended = subprocess.run(
        [sys.executable, "-c", FOREIGN, name], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert ended.returncode == 0, ended.stderr
