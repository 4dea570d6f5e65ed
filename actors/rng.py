"""Counter-based random numbers: what an episode draws depends on its seeds and not on other environments.

Philox generates from a key, here (run seed, episode seed), and a counter, whose upper words are (purpose, counter).
Generators with the same four numbers draw the same values on every machine and in any order of use.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import numpy as np
from numpy.random.bit_generator import ISeedSequence
from numpy.typing import NDArray


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
    PRICE = 13
    COMPARISON = 14
    COMPUTE_PRICE = 15
    VALIDATION_ROWS = 16
    EVALUATION = 17
    LEARNING_RATE = 18


_WORD = 2**64


class _NoEntropy(ISeedSequence):
    """Seeds a bit generator whose state is set afterwards, without asking the system for entropy."""

    def generate_state(self, n_words: int, dtype: Any = np.uint32) -> NDArray[Any]:
        return np.zeros(n_words, dtype)


_NO_ENTROPY = _NoEntropy()


class Streams:
    """The generators for one purpose of one episode, by counter. They are one generator: to ask for the next one ends
    the one before. Each can draw 2**128 times before it meets another."""

    def __init__(self, run: int, env_seed: int, purpose: Purpose) -> None:
        self._generator = np.random.Generator(np.random.Philox(_NO_ENTROPY))  # type: ignore[arg-type]
        self._counter = np.array((0, 0, int(purpose), 0), np.uint64)
        key = np.array((run % _WORD, env_seed % _WORD), np.uint64)
        self._state = {
            "bit_generator": "Philox",
            "state": {"counter": self._counter, "key": key},
            "buffer": np.zeros(4, np.uint64),
            "buffer_pos": 4,  # nothing is buffered
            "has_uint32": 0,
            "uinteger": 0,
        }

    def __call__(self, counter: int) -> np.random.Generator:
        """Return the generator, at the start of what it draws for this counter."""
        self._counter[3] = counter % _WORD
        self._generator.bit_generator.state = self._state
        return self._generator


def stream(run: int, env_seed: int, purpose: Purpose, counter: int = 0) -> np.random.Generator:
    """Return the generator for one purpose of one episode."""
    return Streams(run, env_seed, purpose)(counter)
