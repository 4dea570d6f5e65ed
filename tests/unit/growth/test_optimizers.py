"""Parameter groups, schedulers that are not PyTorch's, wrapped and several optimizers; what is refused."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, AdamW, Muon, Optimizer

from actors.growth.columns.column import Column
from actors.slots.stage import Stage
from tests.support.growth.columns import COLUMN, JOINED, YOUNG, assert_left_alone
from tests.support.growth.growing import GROWN, WAIT, Run, Script, mlp, no_decay, prune


def settings(optimizer: Optimizer, model: nn.Module) -> dict[str, tuple[float, float]]:
    """Return (learning rate, weight decay) of each parameter."""
    names = {p: name for name, p in model.named_parameters()}
    return {names[p]: (g["lr"], g["weight_decay"]) for g in optimizer.param_groups for p in g["params"]}


def test_a_columns_parameters_have_the_settings_of_their_namesakes() -> None:
    own = Run(mlp(), Script([*YOUNG, prune()]), [], optimizer=no_decay, columns=COLUMN).epochs(2)
    found = settings(own.optimizer, own.model)
    namesakes = {name.split("seed.")[1]: got for name, got in found.items() if "seed." in name}
    assert namesakes == {name: found[name] for name, _ in mlp().named_parameters()}
    assert len(set(found.values())) == 3
    assert all(decay == 0.0 for name, (_, decay) in found.items() if name.endswith(("gate", "bias")))
    own.optimizer.load_state_dict(own.optimizer.state_dict())  # which makes new groups
    own.epochs(2)
    assert len(own.optimizer.param_groups) == 3
    assert set(settings(own.optimizer, own.model)) == {name for name, _ in mlp().named_parameters()}


def test_a_seed_in_the_stream_has_the_settings_of_matrices_and_vectors_beside_it() -> None:
    own = Run(mlp(), Script(GROWN), ["3"], optimizer=no_decay).epochs(2)
    found = {name: got for name, got in settings(own.optimizer, own.model).items() if "seed" in name}
    assert {name.split(".")[-1]: got[1] for name, got in found.items()} == {"w1": 0.1, "b1": 0.0, "w2": 0.1, "b2": 0.0}
    assert {rate for rate, _ in found.values()} == {1e-2}


class Hand:
    """A schedule that knows only the groups that it was made for, as those of timm."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer, self.base = optimizer, [g["lr"] for g in optimizer.param_groups]

    def step(self, epoch: int) -> None:
        for group, base in zip(self.optimizer.param_groups, self.base, strict=False):
            group["lr"], group["weight_decay"] = base * 0.8**epoch, 0.1 * epoch


def schedule_of(kind: str, optimizer: Optimizer) -> Any:
    if kind == "hand":
        return Hand(optimizer)
    timm = pytest.importorskip("timm.scheduler")
    match kind:
        case "timm factory":
            return timm.create_scheduler_v2(optimizer, sched="cosine", num_epochs=12, warmup_epochs=2)[0]
        case "timm step":
            return timm.StepLRScheduler(optimizer, decay_t=2, decay_rate=0.5)
    return timm.CosineLRScheduler(optimizer, t_initial=12, warmup_t=2, warmup_lr_init=1e-4)


@pytest.mark.parametrize("kind", ["hand", "timm cosine", "timm step", "timm factory"])
def test_any_schedule_moves_the_rates_of_columns(kind: str) -> None:
    own = Run(mlp(), Script(JOINED), [], columns=Column(COLUMN.factory, lr_scale=0.5))
    schedule = schedule_of(kind, own.optimizer)
    in_steps: list[list[float]] = []
    own.optimizer.register_step_pre_hook(lambda o, *_: in_steps.append([g["lr"] for g in o.param_groups]))
    for epoch in range(6):
        own.train()
        schedule.step(epoch + 1)
        own.grower.step(*own.validate())
    with_column = [rates for rates in in_steps if len(rates) == 2]
    assert len(with_column) == 15
    assert all(column == 0.5 * host for host, column in with_column)
    assert len({host for host, _ in with_column}) > 1
    assert own.optimizer.param_groups[1]["lr"] == 0.5 * own.optimizer.param_groups[0]["lr"]
    assert own.optimizer.param_groups[1]["weight_decay"] == own.optimizer.param_groups[0]["weight_decay"]


class Wrapper(Optimizer):
    """An optimizer around another, as accelerate's: it shares the groups and has no hooks."""

    def __init__(self, inner: Optimizer) -> None:
        self.optimizer = inner

    param_groups = property(lambda self: self.optimizer.param_groups)
    state = property(lambda self: self.optimizer.state)
    defaults = property(lambda self: self.optimizer.defaults)

    def step(self, closure: Any = None) -> Any:
        return self.optimizer.step(closure)

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.optimizer.zero_grad(set_to_none)


def wrapped(kind: str, model: nn.Module) -> Any:
    inner = AdamW(model.parameters(), lr=0.01)
    match kind:
        case "accelerate":
            return pytest.importorskip("accelerate").Accelerator(cpu=True).prepare(inner)
        case "lookahead":
            return pytest.importorskip("timm.optim").Lookahead(inner)
    return Wrapper(inner)


def matrices_and_vectors(model: nn.Module) -> list[Optimizer]:
    matrices = [p for p in model.parameters() if p.dim() == 2]
    vectors = [p for p in model.parameters() if p.dim() != 2]
    return [Muon(matrices, lr=0.01), AdamW(vectors, lr=0.01)]


@pytest.mark.parametrize("kind", ["a wrapper", "accelerate", "lookahead"])
def test_a_column_grows_through_a_wrapped_optimizer(kind: str) -> None:
    """Young, it leaves the model alone; a scheduler that holds the wrapper survives, as in transformers' Trainer."""
    runs = [Run(mlp(), Script(script), [], optimizer=partial(wrapped, kind), columns=COLUMN) for script in (JOINED, [])]
    for own in runs:
        schedule = torch.optim.lr_scheduler.LambdaLR(own.optimizer, lambda epoch: 0.9**epoch)
        for _ in range(3):
            own.epochs(1)
            schedule.step()
    assert_left_alone(*runs)
    young = [p.detach().clone() for name, p in runs[0].model.named_parameters() if "seed" in name]
    runs[0].epochs(2)
    old = [p for name, p in runs[0].model.named_parameters() if "seed" in name]
    assert any(not torch.equal(a, b) for a, b in zip(young, old, strict=True))
    assert runs[0].grower.log[-1].stages[0] in ("BLENDING", "HOLDING")


class Sam(Optimizer):
    """Sharpness-aware minimization as it is usually written: two steps, of which the second is another optimizer's."""

    def __init__(self, params: Any, rho: float = 0.05) -> None:
        super().__init__(params, {"rho": rho, "lr": 0.1})
        self.base = SGD(self.param_groups, lr=0.1)
        self.param_groups = self.base.param_groups

    @torch.no_grad()
    def first_step(self) -> None:
        pairs = [(p, p.grad) for g in self.param_groups for p in g["params"] if p.grad is not None]
        norm = torch.stack([grad.norm() for _, grad in pairs]).norm()
        for p, grad in pairs:
            self.state[p]["before"] = p.clone()
            p.add_(grad * 0.05 / norm)
        self.zero_grad()

    @torch.no_grad()
    def second_step(self) -> None:
        for p in (p for g in self.param_groups for p in g["params"] if "before" in self.state[p]):
            p.copy_(self.state[p]["before"])
        self.base.step()
        self.zero_grad()


def test_sam_trains_a_column_and_leaves_the_model_alone() -> None:
    runs = [Run(mlp(), Script(s), [], optimizer=lambda m: Sam(m.parameters()), columns=COLUMN) for s in (YOUNG, [])]
    seen: list[Any] = []
    for own in runs:
        for _ in range(4):
            for start in range(0, 96, 32):
                rows = slice(start, start + 32)
                own.loss(rows).backward()
                own.grower.shadow(lambda own=own, rows=rows: own.loss(rows))
                own.optimizer.first_step()
                own.loss(rows).backward()
                own.grower.shadow(lambda own=own, rows=rows: own.loss(rows))
                own.optimizer.second_step()
            own.grower.step(*own.validate())
            seen.append([p.detach().clone() for n, p in own.model.named_parameters() if "seed" in n])
    assert [d.epoch for d in runs[0].grower.log] == [1, 2, 3, 4], "epochs are counted by the steps of the inner one"
    assert runs[0].grower.stages["column 1"] is Stage.TRAINING
    assert any(not torch.equal(a, b) for a, b in zip(seen[1], seen[3], strict=True))
    assert_left_alone(*runs)


def test_several_optimizers_share_a_column() -> None:
    """As Muon for matrices beside AdamW for all else."""
    grown, alone = (
        Run(mlp(), Script(script), [], optimizer=matrices_and_vectors, columns=COLUMN).epochs(4)
        for script in ([*YOUNG, WAIT], [])
    )
    assert [sum(len(o.param_groups) for o in own.optimizer) for own in (grown, alone)] == [4, 2]
    assert_left_alone(grown, alone)
    assert grown.grower.stages["column 1"] is Stage.TRAINING
    assert 0 < grown.grower._growth.slots[0].gradient_norm < 100


def test_a_loop_that_steps_another_optimizer_is_warned(caplog: pytest.LogCaptureFixture) -> None:
    own = Run(mlp(), Script(YOUNG), [], columns=COLUMN).epochs(2)
    own.optimizer = SGD(own.model.parameters(), lr=0.1)
    own.epochs(1)
    assert "the optimizer that the controller was given takes no steps" in caplog.text
