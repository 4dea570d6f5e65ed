"""The lifecycle follows a table: which op is legal in which stage, what it does, and how alpha changes.

The tables here are written down from the specification, not read from the code.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from actors.slots.lifecycle import GATES, Gates, IllegalAction, Lifecycle, SeedAction
from actors.slots.stage import Ramp, Slot, Stage
from actors.types.actions import ALPHA_SPEEDS_EPOCHS, ALPHA_TARGETS, Op

EFFECT = {  # (op, stage) -> stage after it; anything else is illegal
    (Op.GERMINATE, "DORMANT"): "GERMINATED",
    (Op.ADVANCE, "GERMINATED"): "TRAINING",
    (Op.ADVANCE, "TRAINING"): "BLENDING",
    (Op.SET_ALPHA_TARGET, "BLENDING"): "BLENDING",
    (Op.SET_ALPHA_TARGET, "HOLDING"): "BLENDING",
    (Op.PRUNE, "GERMINATED"): "PRUNED",
    (Op.PRUNE, "TRAINING"): "PRUNED",
    (Op.PRUNE, "BLENDING"): "BLENDING",  # unless the speed is instant
    (Op.PRUNE, "HOLDING"): "BLENDING",
    (Op.FOSSILIZE, "HOLDING"): "FOSSILIZED",
}
SLOW, INSTANT = 1, 0
EVERYTHING = [(True,) * 6]


def at(stage: Stage, gates: Gates = GATES["strict"], **changes: object) -> Lifecycle:
    """Return one slot in `stage`, with all the evidence that any gate needs."""
    blended = stage in (Stage.BLENDING, Stage.HOLDING, Stage.FOSSILIZED)
    machine = Lifecycle([False], gates)
    ready = Slot(stage, epochs_in_stage=9, trained_epochs=9, gradient_health=1.0, contribution=5.0, alpha_target=0.5)
    machine.slots = [replace(ready, **({"ramp": Ramp(0.0, 0.5, 3, 3) if blended else None} | changes))]
    return machine


def tick(machine: Lifecycle, epochs: int = 1) -> list[float]:
    """Return alpha after each of some epochs without an action."""
    alphas = []
    for _ in range(epochs):
        machine.tick_alpha()
        alphas.append(machine.slots[0].alpha)
        machine.automatic_transitions()
    return alphas


@pytest.mark.parametrize("stage", Stage)
@pytest.mark.parametrize("op", [op for op in Op if op is not Op.WAIT])
def test_every_op_in_every_stage(op: Op, stage: Stage) -> None:
    machine = at(stage)
    masks = machine.masks(EVERYTHING)
    effect = EFFECT.get((op, stage.name))
    assert masks.op[Op.WAIT]
    assert masks.op[op] == masks.slot[op, 0] == (effect is not None)
    assert masks.rest[op].any() == (effect is not None and op not in (Op.ADVANCE, Op.FOSSILIZE))
    action = SeedAction(op, blueprint=1, alpha_target=1, alpha_speed=SLOW)
    if effect is None:
        with pytest.raises(IllegalAction):
            machine.apply(action)
        assert machine.slots[0].stage is stage
    else:
        assert machine.apply(action) is True
        assert machine.slots[0].stage.name == effect


@pytest.mark.parametrize("stage", [Stage.BLENDING, Stage.HOLDING])
def test_an_instant_prune_takes_effect_immediately(stage: Stage) -> None:
    machine = at(stage)
    assert machine.apply(SeedAction(Op.PRUNE, alpha_speed=INSTANT))
    assert machine.slots[0] == Slot(stage=Stage.PRUNED)  # everything measured is cleared


@pytest.mark.parametrize(("target", "speed"), [(0, 0), (1, 1), (2, 2), (2, 3)])
def test_alpha_rises_linearly_and_then_holds(target: int, speed: int) -> None:
    machine = at(Stage.TRAINING, alpha_target=ALPHA_TARGETS[target], alpha_speed_epochs=ALPHA_SPEEDS_EPOCHS[speed])
    machine.apply(SeedAction(Op.ADVANCE))
    epochs = max(1, ALPHA_SPEEDS_EPOCHS[speed])
    expected = np.linspace(0, ALPHA_TARGETS[target], epochs + 1)[1:]
    np.testing.assert_allclose(tick(machine, epochs), expected, rtol=1e-12)
    assert machine.slots[0].stage is Stage.HOLDING
    assert tick(machine, 2) == [ALPHA_TARGETS[target]] * 2


def test_a_new_target_starts_from_the_current_alpha() -> None:
    machine = at(Stage.TRAINING, alpha_target=1.0, alpha_speed_epochs=5)
    machine.apply(SeedAction(Op.ADVANCE))
    np.testing.assert_allclose(tick(machine, 2), [0.2, 0.4])
    masks = machine.masks(EVERYTHING)
    assert masks.rest[Op.SET_ALPHA_TARGET, 0, 10:13].tolist() == [True, True, False]  # not the current target
    machine.apply(SeedAction(Op.SET_ALPHA_TARGET, alpha_target=1, alpha_speed=1))
    np.testing.assert_allclose(tick(machine, 3), [0.5, 0.6, 0.7])
    assert machine.slots[0].stage is Stage.HOLDING
    machine.apply(SeedAction(Op.SET_ALPHA_TARGET, alpha_target=0, alpha_speed=INSTANT))
    assert machine.slots[0].stage is Stage.BLENDING
    assert machine.slots[0].alpha == 0.5
    tick(machine)
    assert machine.slots[0].stage is Stage.HOLDING


def test_a_slow_prune_lowers_alpha_while_no_op_is_legal() -> None:
    machine = at(Stage.HOLDING, ramp=Ramp(0.0, 0.6, 3, 3))
    machine.apply(SeedAction(Op.PRUNE, alpha_speed=SLOW))
    for left in (0.4, 0.2, 0.0):
        slot = machine.slots[0]
        assert (slot.stage, slot.alpha_target) == (Stage.BLENDING, 0.0)
        assert machine.masks(EVERYTHING).op.tolist() == [True, False, False, False, False, False]
        for op in Op:
            if op is not Op.WAIT:
                with pytest.raises(IllegalAction):
                    machine.apply(SeedAction(op))
        np.testing.assert_allclose(tick(machine), [left], atol=1e-15)
    assert machine.slots[0].stage is Stage.PRUNED


PERMISSIVE, STRICT = GATES["permissive"], GATES["strict"]


@pytest.mark.parametrize(
    ("gates", "stage", "op", "changes", "legal"),
    [
        (PERMISSIVE, Stage.GERMINATED, Op.ADVANCE, {"epochs_in_stage": 0}, True),
        (STRICT, Stage.GERMINATED, Op.ADVANCE, {"epochs_in_stage": 0}, False),
        (STRICT, Stage.GERMINATED, Op.ADVANCE, {"epochs_in_stage": 1}, True),
        (PERMISSIVE, Stage.TRAINING, Op.ADVANCE, {"trained_epochs": 0}, False),
        (PERMISSIVE, Stage.TRAINING, Op.ADVANCE, {"trained_epochs": 1}, True),
        (PERMISSIVE, Stage.TRAINING, Op.ADVANCE, {"gradient_health": None}, False),  # unknown is not healthy
        (PERMISSIVE, Stage.TRAINING, Op.ADVANCE, {"gradient_health": 0.49}, False),
        (PERMISSIVE, Stage.TRAINING, Op.ADVANCE, {"gradient_health": 0.5}, True),
        (STRICT, Stage.TRAINING, Op.ADVANCE, {"trained_epochs": 2}, False),
        (STRICT, Stage.TRAINING, Op.ADVANCE, {"trained_epochs": 3}, True),
        (STRICT, Stage.TRAINING, Op.ADVANCE, {"gradient_health": 0.8}, False),
        (PERMISSIVE, Stage.HOLDING, Op.FOSSILIZE, {"contribution": -3.0, "epochs_in_stage": 0}, True),
        (PERMISSIVE, Stage.HOLDING, Op.FOSSILIZE, {"contribution": None}, False),
        (PERMISSIVE, Stage.HOLDING, Op.FOSSILIZE, {"ramp": Ramp(0.0, 0.5, 3, 2)}, False),
        (STRICT, Stage.HOLDING, Op.FOSSILIZE, {"epochs_in_stage": 1}, False),
        (STRICT, Stage.HOLDING, Op.FOSSILIZE, {"contribution": 0.0}, False),
        (STRICT, Stage.HOLDING, Op.FOSSILIZE, {"epochs_since_contribution": 1}, False),
        (STRICT, Stage.HOLDING, Op.FOSSILIZE, {}, True),
        *((replace(PERMISSIVE, prune=False), stage, Op.PRUNE, {}, False) for stage in (Stage.TRAINING, Stage.HOLDING)),
        *((PERMISSIVE, stage, Op.PRUNE, {}, True) for stage in (Stage.TRAINING, Stage.HOLDING)),
    ],
)
def test_gates(gates: Gates, stage: Stage, op: Op, changes: dict[str, object], legal: bool) -> None:
    assert at(stage, gates, **changes).masks(EVERYTHING).op[op] == legal
