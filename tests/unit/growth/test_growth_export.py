"""Exported models compute the same as the grown model."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from actors.growth.columns.column import Column
from actors.growth.slots import SlotSpec
from actors.slots.stage import Stage
from tests.support.growth.columns import JOINED, grow, run
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
    for rows in (1, 5, 96):
        torch.testing.assert_close(plain(x[:rows]), own.model(x[:rows]), rtol=0, atol=1e-6)
    if len(shape) == 3:  # of another size in space
        other = torch.randn(2, 1, 11, 8)
        torch.testing.assert_close(plain(other), own.model(other), rtol=0, atol=1e-6)
    with torch.no_grad():
        for p in own.model.parameters():
            p.mul_(1.5)
    assert not torch.allclose(plain(x), own.model(x)), "the export is a copy"


def test_inactive_seeds_are_left_out() -> None:
    own = Run(mlp(), Script([*GROWN, germinate(1, 5)]), ["1", "3"]).epochs(5)
    plain = own.grower.export().eval()
    seeds = sum(p.numel() for p in own.grower._seeds.slot_modules[0].seed.parameters())
    assert sum(p.numel() for p in plain.parameters()) == sum(p.numel() for p in mlp().parameters()) + seeds
    assert not any(m._forward_hooks for m in plain.modules())
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
    copied = copy.deepcopy(plain)
    optimizer = torch.optim.SGD(copied.parameters(), 0.3)
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        loss = F.cross_entropy(copied(x), own.x_y[1])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    assert torch.equal(plain(x), own.model(x)), "a copy of the export leaves it alone"


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
