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
assert torch.equal(model(*given), expected), (model(*given) - expected).abs().max()
"""


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_model_grows_a_column_and_is_read_elsewhere(name: str, tmp_path: Path) -> None:
    make, draw, loss_of = ARCHITECTURES[name]
    torch.manual_seed(0)
    model, given = make(1.0), draw()
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)

    def loss() -> torch.Tensor:
        found: torch.Tensor = loss_of(model(*given), *given)
        return found

    def measure() -> float:
        model.eval()
        with torch.no_grad():
            return float(loss())

    grower = tamiyo.GrowthController(
        model,
        optimizer=optimizer,
        columns=tamiyo.Column(make),
        policy="trial:double@0-2",
        points_per_doubling=0.0,
        horizon_epochs=EPOCHS,
        higher_is_better=False,
        best_metric=0.0,
        evaluate=measure,
    )
    grower.step(measure())
    for _ in range(EPOCHS):
        model.train()
        for _ in range(4):
            optimizer.zero_grad()
            loss().backward()
            grower.shadow(loss)
            optimizer.step()
        grower.step(measure())
    assert grower.stages["column 1"] in (Stage.HOLDING, Stage.FOSSILIZED)
    model.eval()
    expected = model(*given).detach()
    exported = grower.export().eval()
    assert torch.equal(exported(*given), expected)
    tamiyo.save_grown(grower, tmp_path / "grown")
    torch.save((given, expected), tmp_path / "example.pt")
    for module in (architectures, grown_model):
        assert module.__file__ is not None
        shutil.copy(module.__file__, tmp_path)
    ended = subprocess.run(
        [sys.executable, "-c", FOREIGN, name], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert ended.returncode == 0, ended.stderr
