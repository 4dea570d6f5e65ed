"""Small seed-training environments, and random legal actions."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actors.config import EnvConfig
from actors.env.env import SeedTrainingEnv
from actors.types.actions import ActionMasks, Op
from tests.support.env.reference_env import ReferenceEnv

Action = NDArray[np.int64]
WAIT: Action = np.zeros(6, dtype=np.int64)


TINY: dict[str, Any] = {
    "tasks": ("spirals",),
    "host_width": 6,
    "horizon_epochs": 12,
    "inner_steps": 2,
    "batch_size": 32,
    "points_per_doubling": 2.0,
    "points_per_compute_doubling": 0.5,
}
"""Settings of a small environment whose sizes and prices are fixed."""


def tiny_env(run_seed: int = 0, strict: bool = False, **settings: Any) -> SeedTrainingEnv:
    """Make an environment whose epochs take milliseconds; `settings` are fields of `EnvConfig`."""
    return SeedTrainingEnv(EnvConfig(**TINY | settings), run_seed, strict)


def tiny_reference(run_seed: int = 0, **settings: Any) -> ReferenceEnv:
    """Make the reference of such an environment."""
    return ReferenceEnv(EnvConfig(**TINY | settings), run_seed)


def act(op: Op, slot: int = 0, blueprint: int = 0, blend: int = 0, target: int = 0, speed: int = 0) -> Action:
    """Return an action; target and speed are indices of 0.5, 0.7, 1.0 and of 0 (instant), 3, 5, 8 epochs."""
    return np.array([op, slot, blueprint, blend, target, speed], dtype=np.int64)


def grow(slot: int, blueprint: int, target: int = 2, blend: int = 0) -> list[Action]:
    """Return the actions with which a seed germinates, learns and joins the host at once."""
    return [act(Op.GERMINATE, slot, blueprint, blend, target), *[act(Op.ADVANCE, slot)] * 2]


def legal_actions(masks: ActionMasks, sizes: tuple[int, ...]) -> list[Action]:
    """Return every joint action that the masks allow, with irrelevant heads at 0."""
    ends = np.cumsum(sizes[2:])
    found = [WAIT]
    for op, slot in product(range(1, sizes[0]), range(sizes[1])):
        if not (masks.op[op] and masks.slot[op, slot]):
            continue
        parts = np.split(masks.rest[op, slot], ends[:-1])
        choices = [list(np.flatnonzero(part)) or [0] for part in parts]
        found += [np.array([op, slot, *rest], dtype=np.int64) for rest in product(*choices)]
    return found


def random_legal(rng: np.random.Generator, env: SeedTrainingEnv | ReferenceEnv, wait: float = 0.2) -> Action:
    """Draw a random legal action, first its op, so that ops with few choices are as frequent as GERMINATE."""
    actions = legal_actions(env.masks(), env.spaces.action.sizes)
    ops = sorted({int(a[0]) for a in actions})
    op = 0 if len(ops) == 1 or rng.random() < wait else int(rng.choice(ops[1:]))
    choices = [a for a in actions if a[0] == op]
    return choices[int(rng.integers(len(choices)))]
