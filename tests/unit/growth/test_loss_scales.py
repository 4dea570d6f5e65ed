"""Gradient scaling, clipping and checkpointing: columns learn as they would without, and models as if alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.utils.checkpoint import checkpoint

from actors.growth.columns.column import Column
from actors.growth.training.gradients import ShadowGradients
from actors.slots.stage import Stage
from tests.support.growth.columns import JOINED, YOUNG, assert_equal_tensors, grown, host_state, run
from tests.support.growth.growing import Run, Script

OPTIMIZERS: dict[str, Callable[[nn.Module], torch.optim.Optimizer]] = {
    "sgd": lambda m: torch.optim.SGD(m.parameters(), 0.1, momentum=0.9),
    "adamw": lambda m: torch.optim.AdamW(m.parameters(), 0.01),
    "fused": lambda m: torch.optim.AdamW(m.parameters(), 0.01, fused=True),
}
CARRIES: dict[str, Callable[[GradScaler, Tensor], Tensor]] = {
    "plain": lambda scaler, loss: loss,
    "scaled": lambda scaler, loss: scaler.scale(loss),
    "scaled, halved": lambda scaler, loss: scaler.scale(loss) / 2 * 2,
}


def train(
    optimizer: str,
    actions: Any = YOUNG,
    scale: float = 65536.0,
    unscale: bool = False,
    carries: str = "plain",
    clip: float = 0.0,
    shadow_last: bool = True,
    name: str = "mlp",
    dtype: torch.dtype | None = None,
) -> Run:
    """Train a model for five epochs of three minibatches as PyTorch's recipe for AMP says; a `scale` of 0 is no AMP."""
    own = run(name, actions, optimizer=OPTIMIZERS[optimizer])
    scaler = GradScaler("cpu", init_scale=scale or 1.0, enabled=scale > 0)

    def loss_of(rows: slice) -> Tensor:
        with torch.autocast("cpu", dtype, enabled=dtype is not None):
            return own.loss(rows)

    for _ in range(5):
        own.model.train()
        for start in range(0, 96, 32):
            rows = slice(start, start + 32)

            def loss(rows: slice = rows) -> Tensor:
                return CARRIES[carries](scaler, loss_of(rows))

            own.optimizer.zero_grad()
            main = loss_of(rows)
            own.losses.append(main.item())
            scaler.scale(main).backward()
            if not shadow_last:
                own.grower.shadow(loss)
            if unscale:
                scaler.unscale_(own.optimizer)
            if clip:
                nn.utils.clip_grad_norm_(own.model.parameters(), clip)
            if shadow_last:
                own.grower.shadow(loss)
            scaler.step(own.optimizer)
            scaler.update()
        own.grower.step(*own.validate())
    return own


@pytest.mark.parametrize(
    ("optimizer", "unscale", "carries"),
    [("sgd", True, "plain"), ("sgd", False, "scaled"), ("fused", False, "plain"), ("fused", True, "scaled, halved")],
)
def test_a_column_learns_as_without_a_scaler(optimizer: str, unscale: bool, carries: str) -> None:
    """In full precision a scale that is a power of two changes nothing at all, so that the two runs agree."""
    scaled, plain = train(optimizer, unscale=unscale, carries=carries), train(optimizer, scale=0.0)
    assert grown(scaled.model)
    torch.testing.assert_close(scaled.model.state_dict(), plain.model.state_dict(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("shadow_last", [True, False])
@pytest.mark.parametrize("scale", [0.0, 65536.0])
def test_clipping_does_not_see_a_column(scale: float, shadow_last: bool) -> None:
    options: dict[str, Any] = {"scale": scale, "unscale": scale > 0, "clip": 0.01, "shadow_last": shadow_last}
    assert_equal_tensors(*(host_state(train("sgd", actions, **options).model) for actions in (YOUNG, [])))


@pytest.mark.parametrize(("name", "dtype"), [("resnet", torch.bfloat16), ("tied transformer", torch.float16)])
def test_half_precision_leaves_a_model_alone_and_scales_nothing_that_is_observed(name: str, dtype: torch.dtype) -> None:
    options: dict[str, Any] = {"scale": 1024.0, "carries": "scaled", "name": name, "dtype": dtype}
    own, alone = (train("adamw", actions, **options) for actions in (JOINED, []))
    growth = own.grower._growth
    assert own.grower.stages["column 1"] is Stage.HOLDING
    assert own.losses[:9] == alone.losses[:9]
    assert growth.slot_shapes == run(name, JOINED).epochs(4).grower._growth.slot_shapes  # FLOPs
    assert 0 < growth.slots[0].gradient_norm < 10  # of gradients that the scaler has divided again
    assert 0 < growth.slots[1].score < 10, "a loss scale cancels"


def test_a_gradient_of_a_column_that_overflows_counts_as_zero() -> None:
    parameter = nn.Parameter(torch.ones(3))
    scaler = GradScaler("cpu", init_scale=2.0**16)
    scaler.scale(torch.zeros(()))  # a scale exists from its first use on
    gradients = ShadowGradients(nn.Linear(1, 1))
    (fits,) = gradients((1e30 * parameter).sum(), [parameter], scaler)
    torch.testing.assert_close(fits, torch.full((3,), 1e30))
    (over,) = gradients((1e36 * parameter).sum(), [parameter], scaler)
    assert not over.any()


def test_the_minibatch_of_a_step_that_was_skipped_is_dropped() -> None:
    """As a scaler skips it: the next step has the gradients of its own minibatch alone, or of several accumulated."""

    def after(batches: list[int], zero: bool) -> dict[str, Tensor]:
        own = run("mlp", YOUNG, optimizer=OPTIMIZERS["sgd"]).epochs(2)
        own.optimizer.zero_grad()
        for start in batches:
            rows = slice(start, start + 32)
            if zero:
                own.optimizer.zero_grad()
            own.loss(rows).backward()
            own.grower.shadow(lambda rows=rows: own.loss(rows))
        own.optimizer.step()
        return grown(own.model)

    one, skipped, accumulated = after([32], True), after([0, 32], True), after([0, 32], False)
    assert_equal_tensors(one, skipped)
    assert not all(torch.equal(one[name], accumulated[name]) for name in one)


class Checkpointed(nn.Module):
    def __init__(self, width: int = 12, reentrant: bool | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last, self.reentrant = nn.Linear(6, width), nn.Linear(width, 3), reentrant
        self.middle = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Dropout(0.1))

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        h = self.middle(h) if self.reentrant is None else checkpoint(self.middle, h, use_reentrant=self.reentrant)
        return self.last(h)


@pytest.mark.parametrize("reentrant", [True, False])
def test_activation_checkpoints_change_nothing(reentrant: bool) -> None:
    weight = nn.Parameter(torch.ones(()))  # of the loss, which only the user's own backward pass may touch

    def model_after(actions: Any, kind: bool | None) -> nn.Module:
        column = Column(lambda width: Checkpointed(int(12 * width), kind))
        own = Run(Checkpointed(12, kind), Script(actions), [], columns=column)
        plain = own.loss
        own.loss = lambda rows: weight * plain(rows)
        torch.manual_seed(1)
        weight.grad = None
        return own.epochs(4).model

    plain, own = model_after(YOUNG, None), model_after(YOUNG, reentrant)
    touched = weight.grad
    assert_equal_tensors(host_state(own), host_state(model_after([], reentrant)))
    torch.testing.assert_close(touched, weight.grad, rtol=0, atol=0)
    assert grown(own)
    torch.testing.assert_close(own.state_dict(), plain.state_dict())
