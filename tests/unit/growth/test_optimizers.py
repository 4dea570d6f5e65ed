"""Optimizers, their groups and schedulers; and seeds that grow in place, which leave their hosts alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, AdamW, Muon, Optimizer, lr_scheduler

from actors.growth.columns.column import Column
from actors.growth.slots import SlotSpec
from actors.slots.stage import Stage
from tests.support.growth.columns import (
    COLUMN,
    JOINED,
    YOUNG,
    Recurrent,
    assert_left_alone,
    column_of,
    grown,
    shadow_gradients,
)
from tests.support.growth.growing import GROWN, WAIT, ConvNet, Run, Script, advance, germinate, mlp, no_decay, prune


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
    assert settings(own.optimizer, own.model).keys() == mlp().state_dict().keys()


def test_a_seed_in_the_stream_has_the_settings_of_matrices_and_vectors_beside_it() -> None:
    own = Run(mlp(), Script(GROWN), ["3"], optimizer=no_decay).epochs(2)
    found = {name.split(".")[-1]: got for name, got in settings(own.optimizer, own.model).items() if "seed" in name}
    assert found == {"w1": (1e-2, 0.1), "b1": (1e-2, 0.0), "w2": (1e-2, 0.1), "b2": (1e-2, 0.0)}


class Hand:
    """A schedule that knows only the groups that it was made for, as those of timm."""

    def __init__(self, optimizer: Optimizer) -> None:
        self.optimizer, self.base = optimizer, [g["lr"] for g in optimizer.param_groups]

    def step(self, epoch: int) -> None:
        for group, base in zip(self.optimizer.param_groups, self.base, strict=False):
            group["lr"], group["weight_decay"] = base * 0.8**epoch, 0.1 * epoch


def timm_schedule(optimizer: Optimizer) -> Any:
    timm = pytest.importorskip("timm.scheduler")
    return timm.create_scheduler_v2(optimizer, sched="cosine", num_epochs=12, warmup_epochs=2)[0]


@pytest.mark.parametrize("schedule_of", [Hand, timm_schedule])
def test_any_schedule_moves_the_rates_of_columns(schedule_of: Any) -> None:
    own = Run(mlp(), Script(JOINED), [], columns=Column(COLUMN.factory, lr_scale=0.5))
    schedule = schedule_of(own.optimizer)
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
    host, column = own.optimizer.param_groups
    assert (column["lr"], column["weight_decay"]) == (0.5 * host["lr"], host["weight_decay"])


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


WRAPPERS: dict[str, Callable[[Optimizer], Any]] = {
    "by hand": Wrapper,
    "accelerate": lambda inner: pytest.importorskip("accelerate").Accelerator(cpu=True).prepare(inner),
    "lookahead": lambda inner: pytest.importorskip("timm.optim").Lookahead(inner),
}


def matrices_and_vectors(model: nn.Module) -> list[Optimizer]:
    matrices = [p for p in model.parameters() if p.dim() == 2]
    vectors = [p for p in model.parameters() if p.dim() != 2]
    return [Muon(matrices, lr=0.01), AdamW(vectors, lr=0.01)]


@pytest.mark.parametrize("kind", WRAPPERS)
def test_a_column_grows_through_a_wrapped_optimizer(kind: str) -> None:
    """Young, it leaves the model alone; a scheduler that holds the wrapper survives, as in transformers' Trainer."""

    def wrapped(model: nn.Module) -> Any:
        return WRAPPERS[kind](AdamW(model.parameters(), lr=0.01))

    runs = [Run(mlp(), Script(script), [], optimizer=wrapped, columns=COLUMN) for script in (JOINED, [])]
    for own in runs:
        schedule = torch.optim.lr_scheduler.LambdaLR(own.optimizer, lambda epoch: 0.9**epoch)
        for _ in range(3):
            own.epochs(1)
            schedule.step()
    assert_left_alone(*runs)
    young = grown(runs[0].model)
    runs[0].epochs(2)
    assert any(not torch.equal(young[name], p) for name, p in grown(runs[0].model).items())
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
            seen.append(grown(own.model))
    assert [d.epoch for d in runs[0].grower.log] == [1, 2, 3, 4]  # counted by the steps of the inner optimizer
    assert runs[0].grower.stages["column 1"] is Stage.TRAINING
    assert any(not torch.equal(p, seen[3][name]) for name, p in seen[1].items())
    assert_left_alone(*runs)


def test_several_optimizers_share_a_column() -> None:
    """As Muon for matrices beside AdamW for all else."""
    options: dict[str, Any] = {"optimizer": matrices_and_vectors, "columns": COLUMN}
    own, alone = (Run(mlp(), Script(script), [], **options).epochs(4) for script in (YOUNG, []))
    assert [sum(len(o.param_groups) for o in each.optimizer) for each in (own, alone)] == [4, 2]
    assert_left_alone(own, alone)
    assert own.grower.stages["column 1"] is Stage.TRAINING
    assert own.grower.log[-1].gradient_health[0] == 1.0


def test_a_loop_that_steps_another_optimizer_is_warned(caplog: pytest.LogCaptureFixture) -> None:
    own = Run(mlp(), Script(YOUNG), [], columns=COLUMN).epochs(2)
    own.optimizer = SGD(own.model.parameters(), lr=0.1)
    own.epochs(1)
    assert "the optimizer that the controller was given takes no steps" in caplog.text


HOSTS: dict[str, tuple[Callable[[], nn.Module], str, tuple[int, ...]]] = {
    "linear": (mlp, "3", (6,)),
    "conv1d": (lambda: ConvNet(1), "stem", (1, 9)),
    "conv2d": (lambda: ConvNet(2), "block", (1, 5, 4)),
}
YOUNG_SEED = [germinate(), advance()]  # TRAINING from the second decision on


def run(host: str, script: list[Any], **options: Any) -> Run:
    make, slot, shape = HOSTS[host]
    return Run(make(), Script(script), [slot], shape, **options)


@pytest.mark.parametrize("host", HOSTS)
def test_a_seed_in_training_leaves_its_host_unchanged(host: str) -> None:
    """Equal to the bit: dropout's random numbers and BatchNorm's running statistics too, and the optimizer's moments,
    which the epochs after the seed was pruned would reveal."""
    alone = run(host, []).epochs(7)
    own = run(host, [*YOUNG_SEED, WAIT, WAIT, WAIT, prune()]).epochs(2)
    seed = grown(own.model)
    own.epochs(3)
    assert list(own.grower.stages.values()) == [Stage.TRAINING]
    assert any(not torch.equal(seed[name], moved) for name, moved in grown(own.model).items())
    assert_left_alone(own.epochs(2), alone)
    assert not grown(own.model)


def test_shadow_gradients_are_those_of_the_loss_with_the_seed_on() -> None:
    own = run("linear", YOUNG_SEED).epochs(2)
    own.train()  # away from its start, where half of the gradients are 0
    rows, seed = slice(0, 32), column_of(own)
    given = shadow_gradients(own, rows)
    x, y = (t[rows] for t in own.x_y)
    own.model.eval()  # in which the young seed is off, as here is nothing else that depends on it
    h = own.model[:4](x).detach()
    loss = torch.nn.functional.cross_entropy(own.model[5](own.model[4](seed(h, torch.tensor(1.0)))), y)
    expected = torch.autograd.grad(loss, list(seed.parameters()))
    assert given.keys() == set(seed.parameters())
    for parameter, gradient in zip(seed.parameters(), expected, strict=True):
        torch.testing.assert_close(given[parameter], gradient)


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize(("blueprint", "blend"), [(n, n % 3) for n in range(1, 7)])
def test_germinating_does_not_change_the_model_function(host: str, blueprint: int, blend: int) -> None:
    own = run(host, [germinate(blueprint=blueprint, blend=blend)], max_added_parameters=10_000).epochs(1)
    own.model.eval()
    x = own.x_y[0][:7]
    without = own.model(x)
    with own.grower._seeds.activated({0: 0.7}):
        assert own.grower._seeds.slot_modules[0].on
        torch.testing.assert_close(own.model(x), without, rtol=0, atol=1e-6)


SCHEDULERS: dict[str, Callable[[torch.optim.Optimizer], Any]] = {
    "cosine": lambda o: lr_scheduler.CosineAnnealingLR(o, 10),
    "one cycle": lambda o: lr_scheduler.OneCycleLR(o, 0.1, 10),
    "lambda": lambda o: lr_scheduler.LambdaLR(o, lambda e: 0.9**e),
    "plateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=0),
    "sequential": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o), lr_scheduler.ExponentialLR(o, 0.5)], [3]
    ),
}


@pytest.mark.parametrize("name", SCHEDULERS)
def test_schedulers_continue_for_old_and_new_groups(name: str) -> None:
    own = Run(mlp(), Script([*GROWN, WAIT, prune()]), {"3": SlotSpec(lr_scale=0.5)})
    alone = run("linear", [])
    schedules = [SCHEDULERS[name](o.optimizer) for o in (own, alone)]
    for _ in range(7):
        for each, schedule in zip((own, alone), schedules, strict=True):
            each.epochs(1)
            schedule.step(*([1.0] if name == "plateau" else []))
        host, *of_seed = (g["lr"] for g in own.optimizer.param_groups)
        assert host == alone.optimizer.param_groups[0]["lr"]
        assert of_seed in ([pytest.approx(host / 2)], [])
    assert len(own.optimizer.param_groups) == 1


def test_token_sequences_and_tuple_outputs_can_be_slots() -> None:
    """As those of a GRU, which also returns its state."""
    slots = {"cell": SlotSpec(width=6, family="vector")}
    own = Run(Recurrent(), Script(GROWN), slots).epochs(4)
    assert own.grower.stages == {"cell": Stage.HOLDING}
    assert len(own.model.cell(own.x_y[0][..., None])) == 2
