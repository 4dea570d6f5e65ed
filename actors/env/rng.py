"""Counter-based randomness: what an environment draws depends on its seed and on nothing around it.

Philox is a keyed counter: the key is (run seed, environment seed), the counter's upper words are (purpose, counter).
Two draws with the same four numbers are equal wherever and whenever they are made.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np


class Purpose(IntEnum):
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


_WORD = 2**64


def stream(run: int, env_seed: int, purpose: Purpose, counter: int = 0) -> np.random.Generator:
    """The generator for one purpose of one environment; its low counter words are free for 2**128 draws."""
    key = (run % _WORD, env_seed % _WORD)
    return np.random.Generator(np.random.Philox(counter=[0, 0, int(purpose), counter % _WORD], key=key))
