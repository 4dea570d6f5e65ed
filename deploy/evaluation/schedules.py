"""Schedules of an evaluation: those that tuning draws from, and random growth that is matched with a policy's."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from actors.config import EnvConfig, span
from actors.env.blueprints.column import COLUMNS
from actors.env.blueprints.family import VECTOR
from actors.env.slots.stage import Stage
from actors.rules.rule import WAIT, ModelState, RulePolicy, choices
from actors.rules.schedule import Kind, Schedule
from actors.types.actions import Op
from actors.types.spaces import Spaces


def draw_schedule(kind: Kind, rng: np.random.Generator, config: EnvConfig) -> Schedule:
    """Draw one schedule from the space that is tuned: seeds of one blueprint, in the stream or as columns."""
    thresholds = {"periodic": [0.0], "plateau": [0.0, 0.002, 0.01, 0.03, 0.1], "gradient": [0.0, 0.02, 0.05, 0.1, 0.3]}
    kept = [None, None, 0.0, 0.5, 1.0, 2.0, 4.0]
    horizon = span(config.horizon_epochs)[0]
    blueprint = int(
        rng.integers(1, len(VECTOR.blueprints) if config.column_slots else VECTOR.columns.index(COLUMNS[0]))
    )
    is_column = VECTOR.columns[blueprint] is not None
    return Schedule(
        kind=kind,
        start=int(rng.integers(0, max(1, horizon // 2))),
        wait=int(rng.integers(1, max(2, horizon // 3))),
        seeds=int(rng.integers(1, (config.column_slots if is_column else config.slots) + 1)),
        blueprint=blueprint,
        blend=0 if is_column else int(rng.integers(3)),
        alpha_target=int(rng.choice([1, 2, 2])),
        alpha_speed=int(rng.integers(4)),
        training=int(rng.integers(1, 5)),
        keep_above=kept[int(rng.integers(len(kept)))],
        threshold=float(rng.choice(thresholds[kind])),
    )


class RandomSchedule(RulePolicy):
    """Grows as many seeds as row n's count says, each anything legal at any time. Memory: epoch, seeds started."""

    LEAST_EPOCHS = 4  # germinate, advance, train, hold

    def __init__(self, spaces: Spaces, counts: Sequence[int]) -> None:
        super().__init__(spaces)
        self.counts = tuple(counts)

    def _choose(self, model: ModelState, memory: NDArray[np.float32]) -> list[int]:
        noise, masks = model.noise, model.masks
        epoch, started = int(memory[0]), int(memory[1])
        memory[0] = epoch + 1
        for slot in model.furthest_first():
            if model.legal(Op.FOSSILIZE, slot):
                return choices(Op.FOSSILIZE, slot)
            patient = model.stages[slot] == Stage.TRAINING and noise[1] > 1 / 3
            if model.legal(Op.ADVANCE, slot) and not patient:
                return choices(Op.ADVANCE, slot)
        horizon = int(self.reader.horizon_epochs(model.obs)[0])
        wanted, left = self.counts[model.row] - started, max(1, horizon - self.LEAST_EPOCHS - epoch)
        assert masks.slot is not None
        free = np.flatnonzero(masks.slot[model.row, Op.GERMINATE])
        if not free.size or noise[0] >= wanted / left:  # every set of epochs is as likely as any other
            return WAIT
        memory[1] = started + 1
        slot = int(_pick(free, noise[1]))
        sizes = self.spaces.action.sizes
        legal = np.flatnonzero(masks.rest[model.row, Op.GERMINATE, slot, : sizes[2]])
        blueprint = int(_pick(legal, noise[2]))
        blends = np.flatnonzero(masks.rest[model.row, Op.GERMINATE, slot, sizes[2] : sizes[2] + sizes[3]])
        target, speed = (int(noise[k] * sizes[k]) for k in (4, 5))
        return choices(Op.GERMINATE, slot, blueprint, int(_pick(blends, noise[3])), target, speed)


def _pick(options: NDArray[np.int64], noise: float) -> int:
    return int(options[int(noise * len(options))])
