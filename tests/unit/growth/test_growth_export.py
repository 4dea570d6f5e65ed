"""Exported and saved models compute the same as the grown one, also in a process without Tamiyo."""

from __future__ import annotations

import copy
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn

import tamiyo
from actors.errors import UserError
from actors.growth.columns import grown_model
from actors.growth.columns.column import Column
from actors.growth.slots import SlotSpec
from actors.slots.stage import Stage
from tests.support.growth.columns import COLUMN, JOINED, MODELS, REPLACE, Backbone, column_of, count, grow, run
from tests.support.growth.growing import GROWN, WAIT, ConvNet, Run, Script, advance, fossilize, germinate, mlp


class Tokens(nn.Module):
    """A transformer over [rows, 5, 4] whose layers are called with keywords."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.TransformerEncoderLayer(4, 2, 8, 0.0, batch_first=True), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(5)
        return self.head(self.layer(x, src_mask=mask, is_causal=True).mean(1))


@pytest.mark.parametrize(
    ("blueprint", "slot", "shape"),
    [(n, slot, shape) for n in range(1, 7) for slot, shape in (("3", (6,)), ("layer", (5, 4)))]
    + [(n, "stem", (1, 9)) if n % 2 else (n, "block", (1, 5, 4)) for n in range(1, 7)],
)
def test_an_exported_seed_computes_the_same(blueprint: int, slot: str, shape: tuple[int, ...]) -> None:
    model = {"3": mlp, "layer": Tokens}.get(slot, lambda: ConvNet(len(shape) - 1))()
    slots = {slot: SlotSpec(width=4, family="vector") if slot == "layer" else SlotSpec()}
    script = Script([germinate(0, blueprint, blueprint % 3, 1), advance(), advance()])
    own = Run(model, script, slots, shape, max_added_parameters=10_000).epochs(4)
    assert own.grower.stages[slot] is Stage.HOLDING
    plain = own.grower.export()
    own.model.eval()
    plain.eval()
    x = own.x_y[0]
    for given in (x[:1], x[:5], x, *([torch.randn(2, 1, 11, 8)] if len(shape) == 3 else [])):
        torch.testing.assert_close(plain(given), own.model(given), rtol=0, atol=1e-6)
    before = plain(x)
    own.epochs(1)
    assert torch.equal(plain(x), before)  # it is a copy


def test_inactive_seeds_are_left_out() -> None:
    own = Run(mlp(), Script([*GROWN, germinate(1, 5)]), ["1", "3"]).epochs(5)
    plain = own.grower.export().eval()
    assert count(plain) == count(mlp()) + count(column_of(own))
    plain(own.x_y[0]).square().mean().backward()
    assert all(p.grad is not None for p in plain.parameters())


@pytest.mark.parametrize("output", ["", "head"])
def test_an_export_compiles_whole_and_continues_to_train(output: str) -> None:
    own = run("resnet", [*JOINED, grow(1, size="half", target=0), advance(1), advance(1)], output=output).epochs(7)
    plain, x = own.grower.export().eval(), own.x_y[0]
    torch.compiler.reset()
    compiled = torch.compile(plain, backend="eager", fullgraph=True)
    expected = own.model.eval()(x)
    assert torch.equal(compiled(x), expected)
    assert torch.equal(torch.export.export(plain, (x,)).module()(x), expected)
    torch.compiler.reset()
    copied, y = copy.deepcopy(plain), own.x_y[1]
    optimizer = torch.optim.SGD(copied.parameters(), 0.3)
    for _ in range(20):
        optimizer.zero_grad()
        F.cross_entropy(copied(x), y).backward()
        optimizer.step()
    assert F.cross_entropy(copied(x), y) < F.cross_entropy(plain(x), y)
    assert torch.equal(plain(x), own.model(x))


class Configured(nn.Module):
    """Knows its configuration and can do more than be called, as models of transformers do."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.config, self.net = {"width": width}, mlp(width=width)

    def forward(self, x: Tensor, past_key_values: object = None) -> Tensor:
        return self.net(x)

    def generate(self) -> Tensor:
        return self(torch.zeros(1, 6))


def test_what_an_export_knows_of_its_host_and_what_it_refuses() -> None:
    torch.manual_seed(0)
    columns = Column(lambda s: Configured(int(12 * s)))
    script = [*JOINED, (2, 0, 0, 0, 2, 0), WAIT, fossilize()]
    own = Run(Configured(12), Script(script), [], columns=columns).epochs(4)
    plain = own.grower.export()
    assert plain.config == {"width": 12}
    with pytest.raises(AttributeError, match="generate is the host's own and would leave its columns out"):
        plain.generate()
    assert not hasattr(plain, "nothing")
    for model in (plain, own.model):
        with pytest.raises(ValueError, match=r"past_key_values holds the state of one network.*use_cache=False"):
            model(own.x_y[0], past_key_values=())
    own.epochs(3)
    assert own.grower.stages["column 1"] is Stage.FOSSILIZED
    plain = own.grower.export()
    assert plain.config == own.model.config == {"width": 24}
    assert torch.equal(plain.generate(), own.model.generate())
    plain(own.x_y[0], past_key_values=())


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
    assert int(ended.stdout) == count(own.model)


@pytest.mark.parametrize(("name", "output"), [*((name, "") for name in MODELS), ("resnet", "head")])
@pytest.mark.parametrize("end", ["mixed", "replaced"])
def test_a_loaded_model_is_the_saved_one(name: str, output: str, end: str, tmp_path: Path) -> None:
    make, _ = MODELS[name]
    young = grow(1, size="half", target=0)  # which is left out
    script = [*(REPLACE if end == "replaced" else JOINED), young]
    own = run(name, script, output=output).epochs(5)
    own.model.eval()
    tamiyo.save_grown(own.grower, tmp_path / "one")
    loaded = tamiyo.load_grown(tmp_path / "one", make).eval()
    x = own.x_y[0]
    assert torch.equal(loaded(x), own.model(x))
    assert type(loaded) is (type(make(1.0)) if end == "replaced" else grown_model.GrownModel)
    tamiyo.save_grown(loaded, tmp_path / "two")
    assert torch.equal(tamiyo.load_grown(tmp_path / "two", make).eval()(x), own.model(x))
    names = {name.split(".")[0] for name in load_file(tmp_path / "one" / "grown.safetensors")}
    assert names == {"host", "column_1", "alpha_1"} if end == "mixed" else "column_1" not in names
    assert json.loads((tmp_path / "one" / "grown.json").read_text()) == {
        "format": 1, "scale": 2.0 if end == "replaced" else 1.0, "output": output if end == "mixed" else "",
        "columns": [2.0] if end == "mixed" else [], "seeds": {},
    }  # fmt: skip


def test_a_part_of_a_model_is_saved(tmp_path: Path) -> None:
    make, shape = MODELS["resnet"]
    own = Run(Backbone(), Script(JOINED), [], shape, columns=Column(make, model="net")).epochs(4)
    tamiyo.save_grown(own.grower.export(), tmp_path)
    loaded = tamiyo.load_grown(tmp_path, make).eval()
    assert torch.equal(loaded(own.x_y[0]), own.model.eval().net(own.x_y[0]))


def test_what_cannot_be_saved_or_read_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not say how it was grown"):
        tamiyo.save_grown(mlp(), tmp_path)
    tamiyo.save_grown(run("mlp", JOINED).epochs(4).grower, tmp_path)
    for folder, width in ((tmp_path / "nowhere", 12), (tmp_path, 8)):
        with pytest.raises(UserError, match="cannot be read as a grown model of this factory") as refused:
            tamiyo.load_grown(folder, lambda scale, width=width: mlp(width=width))
        assert "\n" not in str(refused.value)
    description = json.loads((tmp_path / "grown.json").read_text())
    (tmp_path / "grown.json").write_text(json.dumps(description | {"format": 9}))
    with pytest.raises(UserError, match="has format 9: this version reads 1"):
        tamiyo.load_grown(tmp_path, COLUMN.factory)


def test_a_description_calls_only_operations_of_pytorch() -> None:
    seed = grown_model.ExportedSeed([["step 1", "os.system", ["echo"], {}]], {}, torch.zeros(()), rows=True)
    with pytest.raises(ValueError, match=r"calls os\.system, which is no operation of PyTorch's"):
        seed(torch.zeros(1))
