"""`ChooserRule`: look at three epochs, then grow the column that a regression expects to pay most, or none."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from actors.blueprints.family import blueprint_index
from actors.rules.gains import LOOK, GainModel, early_features
from actors.rules.rule import WAIT, ModelState, RulePolicy
from actors.rules.schedule import SIZES, Scheduled
from actors.slots.slot_shape import SlotKind
from actors.types.spaces import Spaces


class ChooserRule(RulePolicy):
    """Waits for three epochs, chooses, and follows the choice.

    The choice is the rule `fixed-column` with the highest expected J: the gain that the regression expects less the
    price of the doublings that it adds, for as long as they would be there; or none if that is negative. Memory: that
    of the schedule, and 1 + the number of the choice, 0 before it is made and -1 for none.
    """

    MEMORY = Scheduled.MEMORY + 1

    def __init__(self, spaces: Spaces, gains: GainModel) -> None:
        super().__init__(spaces)
        self.gains = gains
        self._followers = [Scheduled(spaces, choice.schedule) for choice in gains.choices]

    def _choose(self, model: ModelState, memory: NDArray[np.float32]) -> list[int]:
        if memory[0] == LOOK:
            memory[-1] = self._best(model)
        number = int(memory[-1])
        if number <= 0:
            memory[0] += 1
            return WAIT
        return self._followers[number - 1]._choose(model, memory[:-1])

    def _best(self, model: ModelState) -> int:
        """Return 1 + the number of the choice, or -1 for never growing."""
        horizon = int(self.reader.horizon_epochs(model.obs)[0])
        plans = [follower.schedule for follower in self._followers]
        legal = np.array([bool(model.germinable(p.blueprint)) and p.start_in(horizon) is not None for p in plans])
        gain = self.gains.predict(early_features(self.reader, model.obs))[0]
        worth = np.where(legal, gain - self.reader.price(model.obs)[0] * self.doublings(model), -np.inf)
        worth = np.append(worth, 0.0)  # of never growing
        best = int(worth.argmax())
        return best + 1 if best < len(legal) else -1

    def doublings(self, model: ModelState) -> NDArray[np.float64]:
        """Return how often each choice doubles the model's parameters, `[choices]`.

        They follow from the costs of the cheapest and the dearest legal column. A network of s times the width has
        a * s**2 + (1 - a) * s times the parameters: layers between hidden units grow quadratically, the others
        linearly. Where the largest column is capped or the smallest is rounded up, the share `a` that its cost shows
        is too low, so the higher one counts.
        """
        legal = [size for name, size in SIZES.items() if model.germinable(blueprint_index(f"column_{name}"))]
        costs = self.reader.slot(model.obs, "costs")[0]
        columns = np.flatnonzero(self.reader.slot(model.obs, "kind")[0, :, SlotKind.COLUMN] * costs[:, 0])
        known = {}
        if legal and columns.size:
            ends = 2.0 ** (4.0 * costs[columns[0], 1:3].astype(np.float64)) - 1.0  # in parameters of the model
            known = dict(zip((legal[0], legal[-1]), ends.tolist(), strict=True))
        shares = [(cost - size) / (size**2 - size) for size, cost in known.items() if size != 1.0]
        share = min(max([*shares, 0.0]), 1.0)
        sizes = np.array([SIZES[choice.size] for choice in self.gains.choices])
        grown = share * sizes**2 + (1.0 - share) * sizes
        exact = np.array([known.get(size, np.nan) for size in sizes.tolist()])
        columns = np.array([choice.columns for choice in self.gains.choices])
        return np.asarray(np.log2(1.0 + columns * np.where(np.isnan(exact), grown, exact)))
