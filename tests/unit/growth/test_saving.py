"""Saved models: what is written, what is read, and by whom: also by a process without Tamiyo."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import tamiyo
from actors.errors import UserError
from actors.growth.columns import grown_model
from actors.growth.columns.column import Column
from tests.support.growth.columns import JOINED, MODELS, Backbone, grow, run
from tests.support.growth.growing import Run, Script, fossilize, mlp

DOCS = Path(__file__).parents[3] / "docs" / "growing.md"
NET = """
from torch import nn

def Net(width):
    return nn.Sequential(nn.Linear(6, width), nn.ReLU(), nn.Linear(width, 3))
"""
FOREIGN = """
import sys
for name in ("actors", "learner", "deploy", "tamiyo", "proto"):
    sys.modules[name] = None
import torch
{code}
x, y = torch.load("example.pt", weights_only=True)
assert torch.equal(model(x), y), (model(x) - y).abs().max()
state = torch.load("state.pt", weights_only=True)
assert state.keys() == model.state_dict().keys()
assert not [n for n, m in sys.modules.items() if m is not None and n.split(".")[0] in ("actors", "tamiyo")]
print(sum(p.numel() for p in model.parameters()))
"""


def net(width: int) -> nn.Module:
    scope: dict[str, Any] = {}
    exec(NET, scope)
    return scope["Net"](width)


def test_the_lines_of_the_page_rebuild_a_grown_model_without_tamiyo(tmp_path: Path) -> None:
    torch.manual_seed(0)
    own = Run(net(16), Script(JOINED), [], columns=Column(lambda s: net(int(16 * s)))).epochs(5)
    tamiyo.save_grown(own.grower, tmp_path / "grown")
    (code,) = [c for c in re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.S) if "class Grown(" in c]
    x, plain = own.x_y[0], own.grower.export().eval()
    torch.save((x, plain(x).detach()), tmp_path / "example.pt")
    torch.save(plain.state_dict(), tmp_path / "state.pt")
    (tmp_path / "net.py").write_text(NET)
    command, environment = [sys.executable, "-c", FOREIGN.format(code=code)], {"PATH": "", "PYTHONPATH": str(tmp_path)}
    ended = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, env=environment)
    assert ended.returncode == 0, ended.stderr
    assert int(ended.stdout) == sum(p.numel() for p in own.model.parameters())


@pytest.mark.parametrize(("name", "output"), [*((name, "") for name in MODELS), ("resnet", "head")])
@pytest.mark.parametrize("end", ["mixed", "replaced"])
def test_a_loaded_model_is_the_saved_one(name: str, output: str, end: str, tmp_path: Path) -> None:
    make, _ = MODELS[name]
    script = [grow(target=2), *JOINED[1:], fossilize(), grow(1, size="half", target=0)]
    script = script if end == "replaced" else [*JOINED, grow(1)]  # a young column, which is left out
    own = run(name, script, output=output).epochs(5)
    own.model.eval()
    tamiyo.save_grown(own.grower, tmp_path / "one")
    loaded = tamiyo.load_grown(tmp_path / "one", make).eval()
    x = own.x_y[0]
    assert torch.equal(loaded(x), own.model(x))
    assert type(loaded) is type(make(1.0)) if end == "replaced" else type(loaded) is grown_model.GrownModel
    tamiyo.save_grown(loaded, tmp_path / "two")
    assert torch.equal(tamiyo.load_grown(tmp_path / "two", make).eval()(x), own.model(x))
    names = load_file(tmp_path / "one" / "grown.safetensors").keys()
    first = {name.split(".")[0] for name in names}
    assert first == {"host", "column_1", "alpha_1"} if end == "mixed" else not any("column" in name for name in names)
    assert json.loads((tmp_path / "one" / "grown.json").read_text()) == {
        "format": 1, "scale": 2.0 if end == "replaced" else 1.0, "output": output if end == "mixed" else "",
        "columns": [2.0] if end == "mixed" else [], "seeds": {},
    }  # fmt: skip


def test_a_part_of_a_model_is_saved(tmp_path: Path) -> None:
    make, shape = MODELS["resnet"]
    own = Run(Backbone(), Script(JOINED), [], shape, columns=Column(make, model="net")).epochs(4)
    tamiyo.save_grown(own.grower.export(), tmp_path / "part")
    loaded = tamiyo.load_grown(tmp_path / "part", make).eval()
    assert torch.equal(loaded(own.x_y[0]), own.model.eval().net(own.x_y[0]))


def test_what_cannot_be_saved_or_read_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not say how it was grown"):
        tamiyo.save_grown(mlp(), tmp_path)
    with pytest.raises(UserError, match="cannot be read as a grown model of this factory"):
        tamiyo.load_grown(tmp_path / "nowhere", lambda scale: mlp())
    own = Run(net(16), Script(JOINED), [], columns=Column(lambda s: net(int(16 * s)))).epochs(4)
    tamiyo.save_grown(own.grower, tmp_path)
    with pytest.raises(UserError, match="cannot be read as a grown model of this factory") as refused:
        tamiyo.load_grown(tmp_path, lambda scale: net(8))
    assert "\n" not in str(refused.value)
    grown = json.loads((tmp_path / "grown.json").read_text())
    (tmp_path / "grown.json").write_text(json.dumps(grown | {"format": 9}))
    with pytest.raises(UserError, match="has format 9: this version reads 1"):
        tamiyo.load_grown(tmp_path, lambda s: net(int(16 * s)))


def test_a_description_calls_only_operations_of_pytorch() -> None:
    seed = grown_model.ExportedSeed([["step 1", "os.system", ["echo"], {}]], {}, torch.zeros(()), rows=True)
    with pytest.raises(ValueError, match=r"calls os\.system, which is no operation of PyTorch's"):
        seed(torch.zeros(1))
