"""Models of many kinds are trained with a column and seeds, exported, and read by a process without Tamiyo."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import torch
from torch import nn

import tamiyo
from actors.growth.columns import grown_model
from actors.slots.stage import Stage
from tests.support.growth import architectures
from tests.support.growth.architectures import ARCHITECTURES
from tests.support.growth.columns import JOINED, grow
from tests.support.growth.growing import Script, advance, germinate

EPOCHS = 10
SEEDS = {"graph network": ["first", ""]}
"""Modules after which seeds grow as well: within the model, and at its end."""
FOREIGN = """
import json, sys
for name in ("actors", "learner", "deploy", "tamiyo", "tests"):
    sys.modules[name] = None
import torch
from architectures import ARCHITECTURES
from grown_model import build_grown
from safetensors.torch import load_model
for name in sys.argv[1:]:
    model = build_grown(json.load(open(f"{name}/grown.json")), ARCHITECTURES[name][0]).eval()
    load_model(model, f"{name}/grown.safetensors")
    given, expected = torch.load(f"{name}.pt", weights_only=True)
    with torch.no_grad():
        found = model(*given)
    assert torch.equal(getattr(found, "logits", found), expected), name
"""


def output(network: nn.Module, given: tuple[torch.Tensor, ...]) -> torch.Tensor:
    with torch.no_grad():
        found = network.eval()(*given)
    return getattr(found, "logits", found)


def save_grown(name: str, folder: Path) -> None:
    """Grow a column beside a model, and seeds in it; save them, and what they return for an input."""
    make, draw, loss_of = ARCHITECTURES[name]
    torch.manual_seed(0)
    model, given = make(1.0), draw()
    optimizer, slots, script = torch.optim.AdamW(model.parameters(), 0.01), SEEDS.get(name, []), JOINED
    if slots:
        script = [germinate(0, 1, 2), germinate(1, 2, 0), grow(2, target=0), *map(advance, (0, 1, 2, 0, 1, 2))]

    def loss() -> torch.Tensor:
        return loss_of(model(*given), *given)

    grower = tamiyo.GrowthController(
        model, slots, optimizer, columns=tamiyo.Column(make), policy=Script(script), horizon_epochs=EPOCHS
    )
    model.train()
    for _ in range(EPOCHS):
        for _ in range(2):
            optimizer.zero_grad()
            loss().backward()
            grower.shadow(loss)
            optimizer.step()
        grower.step(loss())
    assert list(grower.stages.values()) == [*[Stage.HOLDING] * (len(slots) + 1), Stage.DORMANT], name
    expected = output(model, given)
    assert torch.equal(output(grower.export(), given), expected), name
    tamiyo.save_grown(grower, folder / name)
    torch.save((given, expected), folder / f"{name}.pt")


def test_models_grow_a_column_and_are_read_elsewhere(tmp_path: Path) -> None:
    """Those of timm and transformers where these are installed."""
    names = [n for n in ARCHITECTURES if ":" not in n or importlib.util.find_spec(n.split(":")[0])]
    for name in names:
        save_grown(name, tmp_path)
    for module in (architectures, grown_model):
        shutil.copy(module.__file__, tmp_path)
    command = [sys.executable, "-c", FOREIGN, *names]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
