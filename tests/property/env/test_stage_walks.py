"""Random legal walks follow the stage graph, whatever the choices and measurements."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.slots.lifecycle import GATES, Lifecycle, SeedAction
from actors.slots.stage import Slot, Stage
from actors.types.actions import Op
from tests.support.env.walks import legal_actions
from tests.support.examples import examples

SIZES = (6, 3, 7, 3, 3, 4)
NEXT = {
    "DORMANT": "GERMINATED",
    "GERMINATED": "TRAINING PRUNED",
    "TRAINING": "BLENDING PRUNED",
    "BLENDING": "HOLDING PRUNED",
    "HOLDING": "BLENDING FOSSILIZED PRUNED",
    "FOSSILIZED": "PRUNED",  # if a column replaces it
    "PRUNED": "EMBARGOED",
    "EMBARGOED": "RESETTING",
    "RESETTING": "DORMANT",
}


def walk(seed: int, gates: str, epochs: int = 40) -> list[list[tuple[str, float]]]:
    """[S][2 * epochs] (stage, alpha) after each action and after each epoch's automatic transitions; the last two slots
    are for columns."""
    rng = np.random.default_rng(seed)
    machine = Lifecycle([False, True, True], GATES[gates])
    lanes: list[list[tuple[str, float]]] = [[("DORMANT", 0.0)] for _ in range(3)]

    def note() -> None:
        replaced = any(slot.stage is Stage.FOSSILIZED and slot.alpha == 1.0 for slot in machine.slots[1:])
        for lane, slot in zip(lanes, machine.slots, strict=True):
            assert replaced or lane[-1][0] != "FOSSILIZED" or slot.stage is Stage.FOSSILIZED
            lane.append((slot.stage.name, slot.alpha))

    for _ in range(epochs):
        affordable = rng.random((7, 3)) < 0.7
        masks = machine.masks([tuple(own) for own in affordable[1:].T.tolist()])
        actions = legal_actions(masks, SIZES)
        chosen = rng.choice(sorted({int(a[0]) for a in actions}))
        op, *rest = rng.choice([a for a in actions if a[0] == chosen]).tolist()
        assert machine.apply(SeedAction(Op(op), *rest))
        note()
        machine.tick_alpha()
        for slot in machine.slots:
            if slot.active and slot.stage is not Stage.GERMINATED:
                slot.gradient_health = float(rng.random() < 0.9)
                slot.trained_epochs += slot.stage is Stage.TRAINING
                slot.contribution = float(rng.normal())
        machine.automatic_transitions()
        note()
        check_slots(machine)
    return lanes


def check_slots(machine: Lifecycle) -> None:
    for slot in machine.slots:
        assert 0.0 <= slot.alpha <= 1.0
        assert slot.active == (slot.stage in list(Stage)[1:6])
        if not slot.active:
            assert slot == Slot(stage=slot.stage, epochs_in_stage=slot.epochs_in_stage)  # what was measured is cleared
        if slot.stage is Stage.HOLDING:
            assert slot.alpha == slot.alpha_target > 0


def complaints(lane: list[tuple[str, float]]) -> list[str]:
    """Return the violations of the graph in the history of one slot."""
    found = []
    for (a, alpha), (b, then) in pairwise(lane):
        if a != b and b not in NEXT[a].split():
            found.append(f"{a} to {b}")
        if a == b == "FOSSILIZED" and alpha != then:
            found.append("alpha of a fossil moved")
    for rest in " ".join(stage for stage, _ in lane[2::2]).split("PRUNED ")[1:]:
        full = "EMBARGOED EMBARGOED RESETTING DORMANT"
        if not (rest.startswith(full) or full.startswith(rest)):
            found.append(f"after PRUNED came {rest[:60]}")
    return found


@settings(max_examples=examples(60), deadline=None)
@given(st.integers(0, 2**32), st.sampled_from(["permissive", "strict"]))
def test_legal_walks_follow_the_stage_graph(seed: int, gates: str) -> None:
    for lane in walk(seed, gates):
        assert complaints(lane) == []


def test_walks_reach_every_stage() -> None:
    seen = {stage for seed in range(20) for lane in walk(seed, "permissive") for stage, _ in lane}
    assert seen == set(NEXT)
