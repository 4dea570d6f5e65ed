"""Seeds in a user's module: isolation, gradients, optimizer groups, and schedulers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

from actors.growth.slots import SlotSpec
from actors.slots.stage import Stage
from tests.support.growth.columns import Recurrent, assert_left_alone, column_of, grown, shadow_gradients
from tests.support.growth.growing import GROWN, WAIT, ConvNet, Run, Script, advance, germinate, mlp, prune

HOSTS: dict[str, tuple[Callable[[], nn.Module], str, tuple[int, ...]]] = {
    "linear": (mlp, "3", (6,)),
    "conv1d": (lambda: ConvNet(1), "stem", (1, 9)),
    "conv2d": (lambda: ConvNet(2), "block", (1, 5, 4)),
}
YOUNG = [germinate(), advance()]  # TRAINING from the second decision on


def run(host: str, script: list[Any], **options: Any) -> Run:
    make, slot, shape = HOSTS[host]
    return Run(make(), Script(script), [slot], shape, **options)


@pytest.mark.parametrize("host", HOSTS)
def test_a_seed_in_training_leaves_its_host_unchanged(host: str) -> None:
    """Bit for bit, including dropout's random numbers and BatchNorm's running statistics."""
    alone = run(host, []).epochs(5)
    own = run(host, YOUNG).epochs(2)
    seed = grown(own.model)
    own.epochs(3)
    assert_left_alone(own, alone)
    assert any(not torch.equal(seed[name], moved) for name, moved in grown(own.model).items())
    assert list(own.grower.stages.values()) == [Stage.TRAINING]


def test_shadow_gradients_are_those_of_the_loss_with_the_seed_on() -> None:
    own = run("linear", YOUNG).epochs(2)
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


def test_other_optimizer_moments_survive_added_and_removed_groups() -> None:
    own = run("linear", [WAIT, *GROWN, prune()])
    own.epochs(1)
    for _ in range(5):
        own.train()
        before = {p: {k: v.clone() for k, v in s.items()} for p, s in own.optimizer.state.items() if p.shape != ()}
        incumbents = own.optimizer.param_groups[0]["params"]
        own.grower.step(*own.validate())
        for p in incumbents:
            assert all(torch.equal(before[p][k], v) for k, v in own.optimizer.state[p].items())


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
