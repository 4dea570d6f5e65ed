"""Actions: masks are exact, an illegal action becomes a reported WAIT, and feedback reports the actual effect."""

from __future__ import annotations

import copy
from itertools import product

import numpy as np
import pytest

from actors.slots.lifecycle import IllegalAction
from actors.types.actions import ActionMasks, Op
from tests.support.env.reference_env import ReferenceEnv
from tests.support.env.walks import WAIT, Action, act, legal_actions, random_legal, tiny_env, tiny_reference

RELEVANT = {0: "", 1: "12345", 2: "145", 3: "15", 4: "1", 5: "1"}  # op -> heads besides op
TARGETS = (0.5, 0.7, 1.0)


def allowed(env: ReferenceEnv, action: Action) -> bool:
    """Legality by a table for permissive gates, and by counting actual tensors against the budgets: that of what has
    joined, and half as much again for the rest. A column that is kept at alpha 1 has taken the place of the host."""
    op, slot, blueprint, blend, target, _ = (int(c) for c in action)
    it = env.episode.lifecycle.slots[slot]
    held = {s: sum(t.numel() for t in seed.group.tensors) for s, seed in env.network.seeds.items()}
    stages = [slot.stage.name for slot in env.episode.lifecycle.slots]
    stage, live = stages[slot], ("GERMINATED", "TRAINING", "BLENDING", "HOLDING")
    joined = sum(n for s, n in held.items() if stages[s] in ("BLENDING", "HOLDING", "FOSSILIZED"))
    apart = sum(held.values()) - joined
    w = env.network.host.width
    hidden = {2: max(2, w // 4), 3: w, 5: max(3, w // 2), 6: 4 * w}
    cost = {0: 0, 1: 3 * w, 4: 3 * (w * w + w)} | {b: 2 * w * k + k + w for b, k in hidden.items()}
    # Two features and three classes; three blocks of LayerNorm and matrix, and a last LayerNorm.
    columns = {7: max(2, (w + 1) // 2), 8: w, 9: 2 * w, 10: 4 * w}
    cost |= {b: 3 * k + 3 * (k * k + 3 * k) + 2 * k + 3 * k + 3 for b, k in columns.items()}
    host = sum(t.numel() for t in env.network.group.tensors)
    gone = any(s >= 3 and stages[s] == "FOSSILIZED" and env.episode.lifecycle.slots[s].alpha == 1.0 for s in held)
    room = env.config.budget_ratio * host - joined + (host if gone else 0)
    dearest = cost[blueprint] + (w + 1 if slot < 3 else 0)  # with a gate
    fits = dearest <= room and apart + dearest <= 1.5 * env.config.budget_ratio * host
    fits = fits and (blueprint in columns) == (slot >= 3) and (slot < 3 or blend == 0) and not (gone and slot < 3)
    learnt = stage == "TRAINING" and it.trained_epochs > 0 and (it.gradient_health or 0) >= 0.5
    return {
        Op.WAIT: True,
        Op.GERMINATE: stage == "DORMANT" and blueprint > 0 and fits,
        Op.SET_ALPHA_TARGET: stage in live[2:] and not it.pruning and TARGETS[target] != it.alpha_target,
        Op.PRUNE: stage in live and not it.pruning,
        Op.FOSSILIZE: stage == "HOLDING" and it.contribution is not None,
        Op.ADVANCE: stage == "GERMINATED" or (learnt and held[slot] <= room),
    }[Op(op)]


def canonical(action: Action) -> tuple[int, ...]:
    keep = {0} | {int(h) for h in RELEVANT[int(action[0])]}
    return tuple(int(c) if h in keep else 0 for h, c in enumerate(action))


EVERY = [np.array(a) for a in sorted({canonical(np.array(a)) for a in product(*map(range, (6, 5, 11, 3, 3, 4)))})]


def differences(env: ReferenceEnv) -> set[tuple[int, ...]]:
    """Return the joint actions on which masks and table differ."""
    by_mask = {tuple(map(int, a)) for a in legal_actions(env.masks(), env.spaces.action.sizes)}
    return by_mask ^ {tuple(map(int, a)) for a in EVERY if allowed(env, a)}


@pytest.mark.parametrize(("seed", "budget"), [(0, 15.0), pytest.param(1, 0.8, marks=pytest.mark.long), (2, 0.3)])
def test_masks_equal_the_table_for_every_joint_action(seed: int, budget: float) -> None:
    env, rng = tiny_reference(budget_ratio=budget, horizon_epochs=18), np.random.default_rng(seed)
    env.reset(seed=seed)
    sizes = np.array(env.spaces.action.sizes)
    for _ in range(18):
        assert differences(env) == set()
        legal = legal_actions(env.masks(), env.spaces.action.sizes)
        for action in (legal[int(rng.integers(len(legal)))], rng.integers(0, sizes)):
            trial = copy.deepcopy(env)
            *_, info = trial.step(action)
            assert ("illegal_action" in info) == (not allowed(env, action))
        action = random_legal(rng, env, wait=0.1)
        env.step(action)
        assert (env.episode.growth.last_op, env.episode.growth.last_success) == (action[0], True)
    assert env.episode.illegal_actions == 0


def test_masks_in_info_are_exact() -> None:
    env, rng = tiny_reference(), np.random.default_rng(3)
    _, info = env.reset(seed=3)
    for _ in range(12):
        joint = np.stack(legal_actions(env.masks(), env.spaces.action.sizes))
        masks: ActionMasks = info["masks"]
        flat = [np.isin(range(n), np.unique(joint[:, h])) for h, n in enumerate(env.spaces.action.sizes)]
        relevant = [joint[np.isin(joint[:, 0], [o for o, r in RELEVANT.items() if str(h) in r])] for h in range(6)]
        flat[1:] = [np.isin(range(n), relevant[h + 1][:, h + 1]) for h, n in enumerate(env.spaces.action.sizes[1:])]
        assert info["action_mask"].tolist() == np.concatenate(flat).tolist()
        pairs = {(int(a[0]), int(a[1])) for a in joint if a[0] > 0}
        assert {tuple(map(int, p)) for p in np.argwhere(info["slot_mask_by_op"])} == pairs
        assert masks.slot is info["slot_mask_by_op"]
        *_, info = env.step(random_legal(rng, env))


ILLEGAL = [act(Op.ADVANCE, 1), act(Op.GERMINATE, 0, 0), act(Op.FOSSILIZE), np.array([9, 0, 0, 0, 0, 0]), np.array([1])]


@pytest.mark.parametrize("action", ILLEGAL)
def test_an_illegal_action_becomes_a_reported_wait(action: Action) -> None:
    env, waited, strict = tiny_env(), tiny_env(), tiny_env(strict=True)
    for made in (env, waited, strict):
        made.reset(seed=5)
    seen, reward, terminated, truncated, info = env.step(action)
    same, same_reward, *_ = waited.step(WAIT)
    assert info["illegal_action"]
    assert env.episode.illegal_actions == 1
    assert (env.episode.growth.last_op, env.episode.growth.last_success) == (Op.WAIT, False)
    assert (reward, terminated, truncated) == (same_reward, False, False)
    different = np.flatnonzero(seen["obs"] != same["obs"])
    assert len(different) == 1  # only last_success
    assert seen["obs"][different] == 0
    with pytest.raises(IllegalAction):
        strict.step(action)


def test_gradient_health_follows_its_definition() -> None:
    env = tiny_reference(horizon_epochs=25)
    env.reset(seed=2)
    slot = env.episode.lifecycle.slots[0]
    plan = {0: act(Op.GERMINATE, 0, 3, 0, 2, 1), 1: act(Op.ADVANCE, 0), 5: act(Op.ADVANCE, 0), 11: act(Op.PRUNE)}
    healths: list[float | None] = []
    for epoch in range(13):
        env.step(plan.get(epoch, WAIT))
        assert slot.gradient_health_prev == (healths[-1] if healths and slot.active else None)
        healths.append(slot.gradient_health)
    assert healths[0] is None
    assert healths[1:11] == [1.0] * 10
    assert healths[11] is None  # cleared with the seed
    env.episode.growth.record_gradients({0: [0.0, 1.0, 1.0, 1.0, np.inf]}, {})
    assert slot.gradient_health == 0.6


def test_a_failed_measurement_logs_a_warning_and_keeps_the_last_value(caplog: pytest.LogCaptureFixture) -> None:
    env = tiny_reference()
    env.reset(seed=2)
    env.step(act(Op.GERMINATE, 0, 3))
    env.step(act(Op.ADVANCE, 0))
    for tensor in env.network.seeds[0].group.tensors:
        tensor.data.fill_(float("nan"))
    value = env.episode.lifecycle.slots[0].contribution
    env.step(WAIT)
    env.step(WAIT)
    slot = env.episode.lifecycle.slots[0]
    assert (slot.contribution, slot.epochs_since_contribution) == (value, 2)
    assert "could not be measured" in caplog.text
    assert slot.gradient_health == 0.0
    assert not env.masks().op[Op.ADVANCE]
