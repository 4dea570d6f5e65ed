"""Episodes of an evaluation: hosts that are built wider, and rules."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from actors.config import EnvConfig
from actors.env.seed_fleet import SeedTrainingFleet
from actors.rules.names import rule_policy
from actors.slots.objective import Prices
from actors.types.actions import Op
from deploy.evaluation.play import play, play_built

CONFIG = EnvConfig(
    tasks=("spirals",), host_width=(2, 9), horizon_epochs=8, inner_steps=4, points_per_doubling=1.0, device="cpu"
)
SEEDS = (3, 4)


def test_a_host_that_is_built_wider_is_an_ordinary_host_of_that_width() -> None:
    """Its data, minibatches and initial parameters are those of an episode with a fixed width."""
    fleet = SeedTrainingFleet(CONFIG, len(SEEDS), 5)
    fleet.reset(SEEDS)
    players = play_built(CONFIG, 5, SEEDS, 4), play_built(CONFIG, 5, SEEDS), fleet.episodes
    for row, bare, drawn in zip(*players, strict=True):
        fixed = play_built(replace(CONFIG, host_width=4 * drawn.host.width), 5, [row.seed])[0]
        assert row.curve[1:] == pytest.approx(fixed.curve[1:], abs=0.5)  # a fleet of one rounds differently
        assert (len(row.curve), row.curve[-1]) == (CONFIG.horizon_epochs + 1, row.accuracy)
        assert 0 < row.test_accuracy <= 100
        assert row.curve[0] == bare.curve[0]  # gains are over the same untrained host
        assert row.gain == pytest.approx(row.accuracy - bare.curve[0])
        # Two features, four layers of w units with biases and norms, three classes.
        w, k = drawn.host.width, 4 * drawn.host.width
        assert row.compute == pytest.approx(np.log2((5 * k + 3 * k * k) / (5 * w + 3 * w * w)))
        assert row.doublings == pytest.approx(np.log2((17 * k + 3 * k * k + 3) / (17 * w + 3 * w * w + 3)))
        assert (row.bare, bare.bare, bare.compute) == (False, True, 0.0)


@pytest.mark.parametrize("scale", [1, 4])
def test_a_shorter_training_is_the_beginning_of_a_longer_one(scale: int) -> None:
    """No learning rate depends on the horizon, so that a sweep which stops early is read off the curve."""
    whole = play_built(CONFIG, 5, SEEDS, scale)
    short = play_built(replace(CONFIG, horizon_epochs=3), 5, SEEDS, scale)
    assert [row.curve for row in short] == [row.curve[:4] for row in whole]


def test_a_rule_plays_legal_actions() -> None:
    rows = play(lambda spaces: rule_policy("fixed-column:double@1", spaces), CONFIG, 5, SEEDS)
    for row in rows:
        assert (row.illegal, row.joined, row.bare) == (0, 1, False)
        assert sum(row.ops) == row.epochs
        assert (row.ops[Op.GERMINATE], row.ops[Op.PRUNE], row.ops[Op.FOSSILIZE]) == (1, 0, 1)
        assert row.gain - 2 * row.doublings - 0.5 * row.compute == row.objective(Prices(2, 0.5))
        assert row.curve == ()
