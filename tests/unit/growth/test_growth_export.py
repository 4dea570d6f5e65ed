"""Exported models compute the same as the grown model and do not need Tamiyo."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.support.growth.growing import GROWN, ConvNet, Run, Script, advance, germinate, mlp

READ = """
import sys
for name in ("actors", "learner", "deploy", "tamiyo"):
    sys.modules[name] = None
import torch
model, x, y = torch.load(sys.argv[1], weights_only=False)
assert torch.equal(model(x), y), (model(x) - y).abs().max()
loss = model(x).square().mean()
loss.backward()
assert all(p.grad is not None for p in model.parameters())
assert not any(m._forward_hooks for m in model.modules())
print(sum(p.numel() for p in model.parameters()))
"""


@pytest.mark.parametrize(
    ("blueprint", "slot", "shape"),
    [(n, "3", (6,)) for n in range(1, 7)]
    + [(n, "stem", (1, 9)) if n % 2 else (n, "block", (1, 5, 4)) for n in range(1, 7)],
)
def test_an_exported_seed_computes_the_same(blueprint: int, slot: str, shape: tuple[int, ...]) -> None:
    model = mlp() if slot == "3" else ConvNet(len(shape) - 1)
    script = Script([germinate(0, blueprint, blueprint % 3, 1), advance(), advance()])
    own = Run(model, script, [slot], shape, max_added_parameters=10_000).epochs(4)
    assert own.grower._seeds.slot_modules[0].on
    plain = own.grower.export()
    own.model.eval()
    plain.eval()
    x = own.x_y[0]
    for rows in (1, 5, 96):
        torch.testing.assert_close(plain(x[:rows]), own.model(x[:rows]), rtol=0, atol=1e-6)
    if len(shape) == 3:  # of another size in space
        other = torch.randn(2, 1, 11, 8)
        torch.testing.assert_close(plain(other), own.model(other), rtol=0, atol=1e-6)
    with torch.no_grad():
        for p in own.model.parameters():
            p.mul_(1.5)
    assert not torch.allclose(plain(x), own.model(x)), "the export is a copy"


def test_an_export_loads_without_tamiyo(tmp_path: Path) -> None:
    own = Run(mlp(), Script([*GROWN, germinate(1, 5)]), ["1", "3"]).epochs(5)
    plain = own.grower.export().eval()
    parameters = sum(p.numel() for p in plain.parameters())
    seeds = sum(p.numel() for p in own.grower._seeds.slot_modules[0].seed.parameters())
    assert parameters == sum(p.numel() for p in mlp().parameters()) + seeds  # the young one is left out
    x = own.x_y[0]
    torch.save((plain, x, plain(x).detach()), tmp_path / "model.pt")
    ended = subprocess.run(
        [sys.executable, "-c", READ, tmp_path / "model.pt"], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.strip() == str(parameters)


def test_the_whole_model_can_be_a_slot() -> None:
    own = Run(nn.Linear(6, 3), Script(GROWN), [""]).epochs(4)
    plain = own.grower.export()
    assert torch.equal(plain(own.x_y[0]), own.model(own.x_y[0]))
