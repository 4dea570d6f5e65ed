"""Counter-based random numbers: what an episode draws depends on its seeds and not on other environments.

Philox generates from a key, here (run seed, episode seed), and a counter, whose upper words are (purpose, counter).
Generators with the same four numbers draw the same values on every machine and in any order of use.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np


class Purpose(IntEnum):
    """What random numbers are drawn for. Each purpose has streams of its own; do not renumber."""

    TASK_CHOICE = 0
    TASK_DATA = 1
    HOST_INIT = 2
    SEED_INIT = 3
    BATCH_ORDER = 4
    POLICY = 5
    EPISODE_SEEDS = 6
    HORIZON = 7
    BOOTSTRAP = 8
    UNKNOWN_FEATURES = 9
    DEMONSTRATIONS = 10
    HOST_WIDTH = 11
    INNER_STEPS = 12
    RENT_WEIGHT = 13


_WORD = 2**64


def stream(run: int, env_seed: int, purpose: Purpose, counter: int = 0) -> np.random.Generator:
    """Return the generator for one purpose of one episode; it can draw 2**128 times before it meets another."""
    key = (run % _WORD, env_seed % _WORD)
    return np.random.Generator(np.random.Philox(counter=[0, 0, int(purpose), counter % _WORD], key=key))
