"""User models, their data, and a scripted policy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from actors.growth.controller import GrowthController
from actors.growth.slots import SlotSpec
from actors.policy.network import FactoredRecurrentActorCritic, PolicyConfig
from actors.sessions.local import LocalPolicy
from actors.sessions.refusal import Code
from actors.sessions.session import Answer, PolicyError
from actors.slots.spaces import seed_spaces
from actors.types.actions import ActionMasks
from actors.types.spaces import Spaces

WAIT = (0, 0, 0, 0, 0, 0)


def germinate(slot: int = 0, blueprint: int = 3, blend: int = 0, target: int = 2, speed: int = 0) -> tuple[int, ...]:
    return (1, slot, blueprint, blend, target, speed)


def advance(slot: int = 0) -> tuple[int, ...]:
    return (5, slot, 0, 0, 0, 0)


def prune(slot: int = 0, speed: int = 0) -> tuple[int, ...]:
    return (3, slot, 0, 0, 0, speed)


def fossilize(slot: int = 0) -> tuple[int, ...]:
    return (4, slot, 0, 0, 0, 0)


GROWN = [germinate(), advance(), advance()]
"""Actions that blend a seed in by the third decision."""


class Script:
    """A policy that takes actions from a list, then WAITs. An entry that is an error is raised."""

    def __init__(self, actions: Sequence[tuple[int, ...] | Exception]) -> None:
        self.actions, self.policy_version = list(actions), 7
        self.seen = list[tuple[NDArray[np.float32], NDArray[np.int64], ActionMasks]]()

    def open(self, spaces: Spaces, seed: int = 0, latest: bool = False, state: bytes = b"") -> Script:
        if state:
            self.actions = self.actions[int(state) :]
        return self

    @property
    def exported(self) -> bytes:
        return str(len(self.seen)).encode()

    def step(self, obs: Any, blueprint_indices: Any, masks: ActionMasks, deterministic: bool = True) -> Answer:
        index = len(self.seen)
        self.seen.append((obs, blueprint_indices, masks))
        action = self.actions[index] if index < len(self.actions) else WAIT
        if isinstance(action, Exception):
            raise action
        return Answer(np.array(action), np.zeros(6, np.float32), 0.0, self.policy_version, index)

    def reset(self, seed: int = 0) -> None:
        self.seen.clear()

    def close(self) -> None:
        pass


def untrained(slots: int = 2, seed: int = 0) -> LocalPolicy:
    """Return a policy whose actions are about as frequent as each other where they are sampled."""
    torch.manual_seed(seed)
    return LocalPolicy(FactoredRecurrentActorCritic(seed_spaces(slots), PolicyConfig(hidden_size=12)))


UNREACHABLE = PolicyError(Code.UNAVAILABLE, "no server there [UNAVAILABLE]")


def mlp(seed: int = 0, width: int = 12) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Linear(6, width), nn.LayerNorm(width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 3)
    )


class ConvNet(nn.Module):
    """Two 1-D or 2-D convolution blocks with BatchNorm and dropout."""

    def __init__(self, dims: int = 2, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        conv: Any = nn.Conv1d if dims == 1 else nn.Conv2d
        norm: Any = nn.BatchNorm1d if dims == 1 else nn.BatchNorm2d
        self.stem = nn.Sequential(conv(1, 8, 3, padding=1), norm(8))
        self.block = nn.Sequential(nn.ReLU(), nn.Dropout(0.2), conv(8, 8, 3, padding=1), norm(8))
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.block(self.stem(x)))
        return self.head(h.flatten(2).mean(-1))


def data(*shape: int, rows: int = 96) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(5)
    x = torch.randn(rows, *shape, generator=rng)
    return x, (x.flatten(1)[:, :3] + 0.3 * x.flatten(1)[:, 3:6]).argmax(-1)


def no_decay(model: nn.Module) -> torch.optim.Optimizer:
    """AdamW for an `mlp`: no decay of biases and norms, and a lower rate for the first layer."""
    first, *matrices = (p for p in model.parameters() if p.dim() > 1)
    groups = [
        {"params": [first], "lr": 1e-4, "weight_decay": 0.1},
        {"params": matrices, "weight_decay": 0.1},
        {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, lr=1e-2)


class Run:
    """A user's training loop: minibatches of 32, validation on the training rows.

    `call(model, x)` returns the logits; `loss_of(model, x, y)` the loss where that is another than theirs. Without
    logits, accuracy is said to be 0.5. `optimizer(model)` may return several, as a list.
    """

    def __init__(
        self,
        model: nn.Module,
        script: Any,
        slots: Mapping[str, SlotSpec] | Sequence[str] = ("1",),
        shape: tuple[int, ...] = (6,),
        shadow: bool = True,
        wrap: Callable[[nn.Module], nn.Module] = lambda m: m,
        optimizer: Callable[[nn.Module], Any] = lambda m: torch.optim.AdamW(m.parameters(), lr=0.01),
        call: Callable[[nn.Module, Tensor], Tensor] = lambda m, x: m(x),
        loss_of: Callable[[nn.Module, Tensor, Tensor], Tensor] | None = None,
        **options: Any,
    ) -> None:
        self.model, self.x_y, self._shadow = wrap(model), data(*shape), shadow
        self.optimizer, self.call, self.loss_of = optimizer(model), call, loss_of
        settings: dict[str, Any] = {"horizon_epochs": 20, "num_classes": 3, "policy": script} | options
        self.grower = GrowthController(self.model, slots, self.optimizer, **settings)
        self.losses: list[float] = []

    def loss(self, rows: slice) -> Tensor:
        x, y = self.x_y[0][rows], self.x_y[1][rows]
        return self.loss_of(self.model, x, y) if self.loss_of else F.cross_entropy(self.call(self.model, x), y)

    def train(self) -> None:
        self.model.train()
        optimizers = self.optimizer if isinstance(self.optimizer, list) else [self.optimizer]
        for start in range(0, len(self.x_y[0]), 32):
            rows = slice(start, start + 32)
            for optimizer in optimizers:
                optimizer.zero_grad()
            loss = self.loss(rows)
            loss.backward()
            if self._shadow:
                self.grower.shadow(lambda rows=rows: self.loss(rows))
            for optimizer in optimizers:
                optimizer.step()
            self.losses.append(loss.item())

    @torch.no_grad()
    def validate(self) -> tuple[float, float]:
        self.model.eval()
        if self.loss_of:
            return float(self.loss(slice(None))), 0.5
        x, y = self.x_y
        logits = self.call(self.model, x)
        return float(F.cross_entropy(logits, y)), float((logits.argmax(-1) == y).float().mean())

    def epochs(self, count: int) -> Run:
        for _ in range(count):
            self.train()
            self.grower.step(*self.validate())
        return self
