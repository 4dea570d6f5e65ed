"""Models that can be built at any width, as people write them, and scripts that grow columns beside them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from actors.blueprints.family import blueprint_index
from actors.growth.columns.column import Column
from tests.support.growth.growing import Run, Script, advance, fossilize, germinate, mlp


class ResNet(nn.Module):
    def __init__(self, width: int = 4) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(1, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        self.conv, self.norm2 = nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)
        self.drop, self.head = nn.Dropout(0.1), nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.norm(self.stem(x)))
        h = torch.relu(h + self.norm2(self.conv(h)))
        return self.head(self.drop(h.mean((2, 3))))


class Backbone(nn.Module):
    """A model whose columns are registered in its middle, so that parameters are no longer paired by position."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.temperature = ResNet(), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.temperature(self.net(x))


class Transformer(nn.Module):
    """Over tokens; its loss is on the first three of nine. The head shares the embedding's weights if `tied`."""

    def __init__(self, width: int = 8, tied: bool = False) -> None:
        super().__init__()
        self.embed = nn.Embedding(9, width)
        self.layer = nn.TransformerEncoderLayer(width, 2, 2 * width, dropout=0.1, batch_first=True)
        self.head = nn.Linear(width, 9, bias=False)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, x: Tensor) -> Tensor:
        tokens = (2 * x + 4).long().clamp(0, 8)
        logits: Tensor = self.head(self.layer(self.embed(tokens)).mean(1))
        return logits[:, :3]


class Recurrent(nn.Module):
    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.cell, self.head = nn.GRU(1, width, batch_first=True), nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.cell(x[..., None])[0][:, -1])


@dataclass
class Found:
    logits: Tensor
    hidden: Tensor
    loss: Tensor | None = None


class Wrapped(nn.Module):
    """An MLP that returns its logits in something. The losses of `Run` read the logits by `logits_of`."""

    def __init__(self, kind: str, width: int = 8) -> None:
        super().__init__()
        self.kind = kind
        self.body, self.head = nn.Sequential(nn.Linear(6, width), nn.ReLU()), nn.Linear(width, 3)

    def forward(self, x: Tensor, scale: float = 1.0) -> Any:
        hidden = self.body(x)
        logits = scale * self.head(hidden)
        kinds = {
            "tuple": (logits, "more", hidden),
            "dict": {"hidden": hidden, "logits": logits},
            "dict of one": {"name": "x", "prediction": logits},
            "dataclass": Found(logits, hidden),
            "two": {"hidden": hidden, "prediction": logits},
        }
        return kinds.get(self.kind, logits)


def logits_of(output: Any) -> Tensor:
    """Return the logits in what a `Wrapped` returns."""
    if isinstance(output, dict):
        output = output["logits"] if "logits" in output else output["prediction"]
    elif isinstance(output, tuple):
        output = output[0]
    return getattr(output, "logits", output)


class OwnLoss(nn.Module):
    """Returns its loss with its logits if it is given labels. If `scaled`, what follows the net has a parameter."""

    def __init__(self, width: int, scaled: bool = False) -> None:
        super().__init__()
        self.net, self.drop = mlp(width=width), nn.Dropout(0.1)
        self.scale = nn.Parameter(torch.full((), 1.5)) if scaled else None

    def forward(self, x: Tensor, labels: Tensor | None = None) -> Any:
        logits = self.net(self.drop(x))
        logits = logits if self.scale is None else self.scale * logits
        return logits if labels is None else {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


MODELS: dict[str, tuple[Callable[[float], nn.Module], tuple[int, ...]]] = {
    "resnet": (lambda scale: ResNet(int(4 * scale)), (1, 5, 5)),
    "transformer": (lambda scale: Transformer(int(8 * scale)), (6,)),
    "tied transformer": (lambda scale: Transformer(int(8 * scale), tied=True), (6,)),
    "gru": (lambda scale: Recurrent(int(6 * scale)), (6,)),
}


COLUMN = Column(lambda scale: mlp(width=int(12 * scale)))
"""Columns beside an `mlp`."""


def grow(slot: int = 0, speed: int = 0, size: str = "double", target: int = 2) -> tuple[int, ...]:
    """The action that germinates a column. Its `target` is an index: 0 is the average with the model, 2 replaces it."""
    return germinate(slot, blueprint_index(f"column_{size}"), 0, target, speed)


JOINED = [grow(target=0), advance(), advance()]
YOUNG = JOINED[:2]
REPLACE = [grow(), advance(), advance(), fossilize()]
REPLACED = [*REPLACE, grow(1, target=0), advance(1), advance(1)]
"""One column becomes the model, and a second one joins it."""


def run(name: str, actions: list[Any], **options: Any) -> Run:
    """Train an `mlp`, or one of `MODELS`, with a scripted policy that grows columns."""
    make, shape = (COLUMN.factory, (6,)) if name == "mlp" else MODELS[name]
    torch.manual_seed(0)
    column = Column(make, **{key: options.pop(key) for key in ("count", "output", "model", "loss") if key in options})
    slots = options.pop("slots", [])
    return Run(make(1.0), Script(actions), slots, shape, columns=column, **options)


def column_of(own: Run, index: int = 0) -> nn.Module:
    """Return the network that grows in a slot."""
    return own.grower._seeds.slot_modules[index].seed


def assert_left_alone(own: Run, alone: Run) -> None:
    """Assert that a model trained, bit for bit, as one beside which nothing grows."""
    assert own.losses == alone.losses
    assert_equal_tensors(host_state(own.model), host_state(alone.model))


def assert_equal_tensors(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    """Assert that two states, by name, are equal to the last bit."""
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def host_state(model: nn.Module) -> dict[str, Tensor]:
    return {name: t.clone() for name, t in model.state_dict().items() if "tamiyo" not in name}


def grown(model: nn.Module) -> dict[str, Tensor]:
    """Return the parameters that grew in a model, as they are now."""
    return {name: p.detach().clone() for name, p in model.named_parameters() if "tamiyo" in name}


def count(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def shadow_gradients(own: Run, rows: slice) -> dict[nn.Parameter, Tensor]:
    """Return the gradients that an optimizer is given after a shadow pass alone. Nothing that clips sees them before,
    and nothing moves."""
    own.optimizer.zero_grad()
    own.grower.shadow(lambda: own.loss(rows))
    assert all(p.grad is None for p in own.model.parameters())
    rates = [group["lr"] for group in own.optimizer.param_groups]
    for group in own.optimizer.param_groups:
        group["lr"] = 0.0
    found: dict[nn.Parameter, Tensor] = {}

    def look(*_: Any) -> None:
        found.update({p: p.grad.clone() for p in own.model.parameters() if p.grad is not None})

    handle = own.optimizer.register_step_pre_hook(look)
    own.optimizer.step()
    handle.remove()
    for group, rate in zip(own.optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
    return found
