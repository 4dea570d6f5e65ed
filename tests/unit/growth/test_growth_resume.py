"""Resuming is bit-equal: topology, optimizer, schedule and policy state."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR

from actors.errors import UserError
from actors.slots.stage import Stage
from tests.support.growth.columns import REPLACE, REPLACED, assert_equal_tensors, grow, grown, run
from tests.support.growth.growing import (
    GROWN,
    ConvNet,
    Run,
    Script,
    advance,
    germinate,
    mlp,
    no_decay,
    prune,
    untrained,
)

BUSY = [germinate(0, 3, 2, 1, 2), germinate(1, 2), advance(1), advance(0), advance(0), prune(1), advance(1)]


def restore(own: Run, states: list[Any], schedule: Any = None) -> None:
    for part, state in zip((own.grower, own.model, own.optimizer, schedule), states, strict=False):
        part.load_state_dict(state)


def states_of(own: Run, schedule: Any = None) -> list[Any]:
    """Return the states of the controller, the model, the optimizer and its schedule, from a file."""
    file = io.BytesIO()
    torch.save([s.state_dict() for s in (own.grower, own.model, own.optimizer, schedule) if s is not None], file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def seeds(actions: Any) -> Run:
    return Run(ConvNet(), Script(actions), ["stem", "block"], (1, 5, 4))


def columns(name: str, output: str = "") -> Callable[[Any], Run]:
    return lambda actions: run(name, actions, train_rows=96, output=output)


def measured(actions: Any) -> Run:
    own = run("gru", actions, evaluate=lambda: own.validate()[1])
    return own


COLUMNS = [grow(0, speed=2), advance(), grow(1, size="half"), advance(), advance(1), prune(1)]
ADDED = [*REPLACE, grow(1, size="half", target=0), advance(1), advance(1)]


@pytest.mark.parametrize(
    ("make", "actions", "cut"),
    [
        (seeds, BUSY, 2),
        (seeds, BUSY, 6),
        (columns("resnet"), COLUMNS, 2),
        (lambda actions: run("mlp", actions, optimizer=no_decay), COLUMNS, 5),
        (columns("tied transformer"), COLUMNS, 5),
        (measured, COLUMNS, 4),
        (columns("resnet"), ADDED, 4),
        (columns("resnet", "head"), ADDED, 6),
        *(pytest.param(seeds, BUSY, cut, marks=pytest.mark.long) for cut in (1, 4, 8)),
        pytest.param(columns("resnet"), COLUMNS, 5, marks=pytest.mark.long),
        pytest.param(columns("tied transformer"), COLUMNS, 2, marks=pytest.mark.long),
    ],
)
def test_resume_is_bit_equal(make: Callable[[Any], Run], actions: Any, cut: int) -> None:
    """Also where the model runs for the first time after its columns were rebuilt."""

    def start() -> tuple[Run, CosineAnnealingLR]:
        own = make(actions)
        return own, CosineAnnealingLR(own.optimizer, 12)

    def play(own: Run, schedule: CosineAnnealingLR, epochs: int) -> None:
        for _ in range(epochs):
            own.epochs(1)
            schedule.step()

    whole, schedule = start()
    play(whole, schedule, 12)
    first, schedule = start()
    play(first, schedule, cut)
    states, rng = states_of(first, schedule), torch.get_rng_state()
    second, schedule = start()
    restore(second, states, schedule)
    torch.set_rng_state(rng)
    play(second, schedule, 12 - cut)
    assert first.losses + second.losses == whole.losses
    assert_equal_tensors(second.model.state_dict(), whole.model.state_dict())
    expected, found = ([(d.stages, d.compute_doublings) for d in each.grower.log] for each in (whole, second))
    assert found == expected[cut:]
    assert expected[-1][1] > 0
    seen = [each.grower.config.policy.seen for each in (whole, second)]
    assert all((a[0] == b[0]).all() for a, b in zip(seen[0][cut:], seen[1], strict=True))


@pytest.mark.parametrize("deterministic", [True, False])
def test_the_policy_state_is_resumed(deterministic: bool) -> None:
    def play(own: Run, epochs: int) -> list[tuple[str, float | None]]:
        own.epochs(epochs)
        return [(d.asked, d.value) for d in own.grower.log]

    def make() -> Run:
        return Run(mlp(), untrained(), ["1", "3"], deterministic=deterministic, seed=3)

    whole = play(make(), 8)
    first = make()
    done = play(first, 4)
    second = make()
    grower, *others = states_of(first)
    restore(second, [grower, *others])
    assert done + play(second, 4) == whole
    forgetful = make()
    restore(forgetful, [grower | {"session": b""}, *others])
    assert done + play(forgetful, 4) != whole


def test_a_damaged_policy_state_is_replaced_by_an_empty_one() -> None:
    own = Run(mlp(), untrained(), ["1"]).epochs(2)
    state = own.grower.state_dict() | {"session": b"damaged"}
    own.grower.load_state_dict(state)
    own.epochs(2)
    assert ["new session" in d.reason for d in own.grower.log[-2:]] == [True, False]


@pytest.mark.parametrize("make", [mlp, ConvNet])
def test_loading_a_state_removes_what_grew_since(make: Callable[[], nn.Module]) -> None:
    slot, shape = ("3", (6,)) if make is mlp else ("stem", (1, 5, 4))
    own = Run(make(), Script(GROWN), [slot], shape)
    empty = own.grower.state_dict()
    own.epochs(4)
    own.grower.load_state_dict(empty)
    assert own.grower.stages == {slot: Stage.DORMANT}
    assert len(own.optimizer.param_groups) == 1
    assert not grown(own.model)


def test_states_of_other_models_are_refused() -> None:
    replaced = run("gru", REPLACED).epochs(4)
    with pytest.raises(UserError, match="column 1 has replaced the model: load states into a new one"):
        replaced.grower.load_state_dict(replaced.grower.state_dict())
    state = Run(mlp(), Script([]), ["1"]).grower.state_dict()
    with pytest.raises(UserError, match=r"slots 1, but this model has 3"):
        Run(mlp(), Script([]), ["3"]).grower.load_state_dict(state)
