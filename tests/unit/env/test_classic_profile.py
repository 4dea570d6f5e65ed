"""The `classic` profile: four heads, four ops, and seeds that advance automatically."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from actors.config import EnvConfig
from actors.env.env import SeedTrainingEnv
from actors.slots.stage import Stage
from actors.types.actions import Op
from tests.support.env.walks import TINY, Action, act

CLASSIC = EnvConfig(**TINY | {"tasks": ("spirals", "wine"), "profile": "classic"})
GERMINATE, FOSSILIZE, PRUNE = 1, 2, 3


def classic(op: int, slot: int = 0, blueprint: int = 0, blend: int = 0) -> Action:
    return np.array([op, slot, blueprint, blend], dtype=np.int64)


@pytest.mark.parametrize("gates", ["permissive", "strict"])
def test_automatic_advance_equals_advance_as_soon_as_it_is_legal(gates: str) -> None:
    """Bit for bit, compared with the full profile, where ADVANCE is an action."""
    config = replace(CLASSIC, gates=gates, tasks=("spirals",), horizon_epochs=16)
    own, full = SeedTrainingEnv(config), SeedTrainingEnv(replace(config, profile="tamiyo"))
    own.reset(seed=2)
    full.reset(seed=2)
    stages: list[str] = []
    for t in range(16):
        choice, wanted = classic(0), act(Op.WAIT)
        if t == 2:
            choice, wanted = classic(GERMINATE, 1, 3, 1), act(Op.GERMINATE, 1, 3, 1, target=2, speed=2)
        elif own.masks().op[FOSSILIZE]:
            choice, wanted = classic(FOSSILIZE, 1), act(Op.FOSSILIZE, 1)
        if full.masks().op[Op.ADVANCE]:
            wanted = act(Op.ADVANCE, 1)
        stages.append(own.episode.lifecycle.slots[1].stage.name)
        (_, a, *_), (_, b, *_) = own.step(choice), full.step(wanted)
        assert a == b
        assert own.episode.timeline.accuracy == full.episode.timeline.accuracy
    assert own.episode.timeline.stages[1][-1] == full.episode.timeline.stages[1][-1]
    assert {"TRAINING", "BLENDING", "HOLDING"} <= set(stages)
    assert ("FOSSILIZED" in stages) == (gates == "permissive")  # strict gates want a contribution above 0


def test_prune_is_immediate_and_masks_follow_stages() -> None:
    env = SeedTrainingEnv(CLASSIC, strict=True)
    env.reset(seed=0)
    env.step(classic(GERMINATE, 2, 1))
    for _ in range(3):
        env.step(classic(0))
    assert env.episode.lifecycle.slots[2].stage is Stage.BLENDING
    masks, legal = env.masks(), np.zeros((4, 5), dtype=np.bool_)
    legal[GERMINATE, [0, 1, 3, 4]] = legal[PRUNE, 2] = True
    np.testing.assert_array_equal(masks.slot, legal)
    assert masks.rest.shape == (4, 5, env.spaces.action.rest_size)
    assert masks.rest[GERMINATE, 0, 1:7].all()
    assert not masks.rest[GERMINATE, 0, 7:11].any()  # columns
    assert not masks.rest[[0, FOSSILIZE, PRUNE]].any()
    env.step(classic(PRUNE, 2))
    assert env.episode.growth.last_op is Op.PRUNE
    assert env.episode.growth.last_success
    assert env.episode.lifecycle.slots[2].stage in (Stage.PRUNED, Stage.EMBARGOED)
