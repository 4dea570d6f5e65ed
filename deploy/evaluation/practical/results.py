"""What the players of the suite `practical` came to: J of each, the sweep over widths, and successive halving.

J = test metric - p D - c C, in points. D are the doublings of the parameters of the model that is kept, C those of the
training FLOPs, both over the narrow model. The sweep trains a model at one, two and four times its width and keeps the
one with the best J in validation; its FLOPs are those of all three. Cells may be missing: what needs them is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import log2, nan
from typing import Any, NamedTuple

import numpy as np

from actors.rules.names import is_rule
from actors.slots.objective import Prices, Standing
from deploy.evaluation.practical.halving import Arms, Halved, halved_within
from deploy.evaluation.practical.runs import PracticalModel, PracticalRun

NEVER, SWEEP, HALVING = "never", "sweep", "halving"
BUILT = {"built x2": 2, "built x4": 4}
"""Players that build the model wider instead of growing it: multiples of the width."""
WIDTHS = (NEVER, *BUILT)


class Training(NamedTuple):
    """What all players are compared on."""

    model: str
    width: int
    seed: int


@dataclass(frozen=True)
class Outcome:
    """What a player came to in one training."""

    over_never: float  # points of J
    test: float  # percent
    doublings: float  # D
    flops: float  # of training, never growing = 1
    params: float  # at the end
    seconds: float  # of one core; for the sweep, of all its runs; nan for halving, which is computed


@dataclass(frozen=True)
class PracticalResults:
    """Runs by (training, player); those of `BUILT` are of a wider model that never grows."""

    models: Sequence[PracticalModel]
    widths: Mapping[str, Sequence[int]]  # by model
    seeds: Sequence[int]
    players: Sequence[str]  # never first
    prices: Prices
    runs: Mapping[tuple[Training, str], PracticalRun]

    @property
    def names(self) -> list[str]:
        """Return the players of the tables: those that were played, the sweep, and halving beside a policy."""
        return [*self.players, SWEEP, *([HALVING] if self.policy else [])]

    @cached_property
    def policy(self) -> str:
        """Return the first player that is a policy, or ""."""
        return next((p for p in self.players if p not in BUILT and not is_rule(p)), "")

    def trainings(self, model: str | None = None, width: int | None = None) -> Iterator[Training]:
        for name, widths in self.widths.items():
            for wide in widths if model in (None, name) else ():
                yield from (Training(name, wide, seed) for seed in self.seeds if width in (None, wide))

    def outcome(self, training: Training, player: str) -> Outcome | None:
        """Return what a player came to, or None if cells are missing."""
        parts = (player,) if player in self.players else WIDTHS
        if any((training, name) not in self.runs for name in (NEVER, *parts)):
            return None
        if player == HALVING:
            if training not in self._halved:
                return None
            halved = self._halved[training]
            kept, flops, seconds = WIDTHS[halved.kept], halved.cost, nan
        else:
            played = [self.runs[training, name] for name in parts]
            kept = max(parts, key=lambda name: self._curve(training, name)[-1])
            flops = sum(self._flops(training, name) for name in parts)
            seconds = sum(run.seconds for run in played)
        bare, run, doublings = self.runs[training, NEVER], self.runs[training, kept], self._doublings(training, kept)
        worth = Standing(run.test, doublings, log2(flops)).worth(self.prices)
        return Outcome(worth - bare.test, run.test, doublings, flops, run.final_params, seconds)

    def _doublings(self, training: Training, player: str) -> float:
        return log2(self.runs[training, player].final_params / self.runs[training, NEVER].host_params)

    def _flops(self, training: Training, player: str) -> float:
        bare, run = self.runs[training, NEVER], self.runs[training, player]
        return run.flops / bare.flops if player in BUILT else float(2.0**run.compute)

    def _curve(self, training: Training, player: str) -> list[float]:
        """Return the validation metric by epoch, less the price of the parameters."""
        price = self.prices.doubling * self._doublings(training, player)
        return [value - price for value in self.runs[training, player].curve]

    @cached_property
    def _halved(self) -> dict[Training, Halved]:
        """Return what halving came to where the policy was played, with its mean FLOPs."""
        needed = (*WIDTHS, self.policy)
        known = [t for t in self.trainings() if all((t, name) in self.runs for name in needed)]
        if not known:
            return {}
        arms = [
            Arms([self._curve(training, name) for name in WIDTHS], [self._flops(training, name) for name in WIDTHS])
            for training in known
        ]
        budget = float(np.mean([self._flops(training, self.policy) for training in known]))
        return dict(zip(known, halved_within(arms, budget), strict=True))

    def outcomes(self, player: str, model: str | None = None, width: int | None = None) -> list[Outcome]:
        """Return those of all trainings that were played."""
        found = (self.outcome(training, player) for training in self.trainings(model, width))
        return [outcome for outcome in found if outcome is not None]

    def as_dict(self) -> dict[str, Any]:
        rows = []
        for training in self.trainings():
            for player in self.names:
                if (outcome := self.outcome(training, player)) is not None:
                    numbers = {name: round(value, 4) for name, value in vars(outcome).items() if value == value}
                    run = self.runs.get((training, player))
                    rows.append({**training._asdict(), "player": player, **numbers})
                    rows[-1] |= {"decisions": run.decisions} if run and run.decisions else {}
        return {"prices": self.prices._asdict(), "rows": rows}
