"""Episodes of an evaluation, by wider hosts and rules, and the cells in which they are kept."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from actors.config import EnvConfig
from actors.env.seed_fleet import SeedTrainingFleet
from actors.rules.names import rule_policy
from actors.slots.objective import Prices
from actors.types.actions import Op
from deploy.evaluation.cells import CellStore, Job, run_cells
from deploy.evaluation.play import play, play_built
from deploy.evaluation.players import Player, rule_player
from deploy.evaluation.suite import ALL_PRICES, CONDITIONS, FREE, PRICED
from tests.support.made_up_rows import built_row, grown_row

CONFIG = EnvConfig(tasks=("spirals",), host_width=6, horizon_epochs=3, inner_steps=2, device="cpu")
POLICY = Player(line="policy", sha256="ab" * 32, checkpoint="somewhere.safetensors")
BUILT = Player(scale=2)
CHEAP, DEAR = Prices(2.0, 0.5), Prices(4.0, 0.5)


def test_rows_are_kept_and_rounded(tmp_path: Path) -> None:
    rows = [replace(built_row(2, 1 / 3), seed=s, compute=0.123456) for s in range(3)]
    job = Job(BUILT, CONFIG, CHEAP, 7, 3)
    CellStore(tmp_path).write(job, rows)
    found = CellStore(tmp_path).read(job)
    assert [row.seed for row in found] == [0, 1, 2]
    assert (found[0].gain, found[0].compute, found[0].ops) == (0.333, 0.1235, rows[0].ops)
    assert found[0].curve == tuple(round(x, 2) for x in rows[0].curve)
    assert CellStore(tmp_path).read(replace(job, seeds=2)) == found[:2]  # the first seeds of more
    assert CellStore(tmp_path).read(replace(job, seeds=4)) is None


def test_cells_depend_on_what_was_played(tmp_path: Path) -> None:
    store, job = CellStore(tmp_path), Job(POLICY, CONFIG, CHEAP, 7, 2)
    store.write(job, [grown_row(1.0, 0.5), grown_row(2.0, 0.0)])
    assert store.read(job) is not None
    assert store.read(replace(job, player=replace(POLICY, checkpoint=""))) is not None  # the file may be gone
    for other in (
        replace(job, run_seed=8),
        replace(job, config=replace(CONFIG, inner_steps=3)),
        replace(job, prices=DEAR),
        replace(job, player=replace(POLICY, sha256="ab" * 31 + "cd")),
    ):
        assert store.read(other) is None


def test_prices_that_a_player_does_not_look_at_share_its_cells() -> None:
    indifferent = (BUILT, rule_player("fixed-column:same@3"), rule_player("never"))
    rules = ("gap", "chooser", "trial:double@1-2")
    blind = replace(CONFIG, hidden_features=("price",))
    for player, config, cells in (
        *((player, CONFIG, ["spirals"]) for player in indifferent),
        *((rule_player(rule), CONFIG, [f"spirals@{p}" for p in ("0.5", "1", "2", "4")]) for rule in rules),
        (POLICY, CONFIG, [f"spirals@{w.doubling:g},{w.compute_doubling:g}" for w in ALL_PRICES]),
        (POLICY, blind, ["spirals"]),
    ):
        jobs = [Job(player, config, prices, 7, 2) for prices in ALL_PRICES]
        assert list(dict.fromkeys(job.cell for job in jobs)) == cells
        assert len({job.fingerprint() for job in jobs}) == len(cells)


def test_what_a_player_does_not_look_at_changes_nothing() -> None:
    """A trial at one price of parameters, with and without one of compute."""
    pairs = (CONDITIONS[FREE][1], CONDITIONS[PRICED][1])
    prices = ({"points_per_doubling": p.doubling, "points_per_compute_doubling": p.compute_doubling} for p in pairs)
    player = rule_player("trial:double@0-1")
    free, priced = (player.play(replace(CONFIG, **given), 7, [1, 2]) for given in prices)
    assert [replace(row, gain=0.0) for row in free] == [replace(row, gain=0.0) for row in priced]
    assert [row.gain for row in free] == pytest.approx([row.gain for row in priced])


def test_only_missing_cells_are_played(tmp_path: Path) -> None:
    store, log = CellStore(tmp_path), list[str]()
    jobs = [Job(Player(scale=k), CONFIG, w, 7, 2) for k in (1, 2) for w in (CHEAP, DEAR)]
    first = run_cells(jobs[:2], store, 1, log.append)
    both = run_cells(jobs, store, 1, log.append)
    assert ["about 0:00 left  built-1  spirals" in log[0], "1/1, about 0:00 left  built-2" in log[1]] == [True, True]
    assert both[Player(scale=1), "spirals"] == first[Player(scale=1), "spirals"]
    assert set(both) == {(Player(scale=1), "spirals"), (Player(scale=2), "spirals")}
    assert run_cells(jobs, CellStore(tmp_path), 1, log.append) == both
    assert len(log) == 2
    assert not list(tmp_path.glob("*.partial"))


LONGER = replace(CONFIG, host_width=(2, 9), horizon_epochs=8, inner_steps=4, points_per_doubling=1.0)
SEEDS = (3, 4)


def test_a_host_that_is_built_wider_is_an_ordinary_host_of_that_width() -> None:
    """Its data, minibatches and initial parameters are those of an episode with a fixed width."""
    fleet = SeedTrainingFleet(LONGER, len(SEEDS), 5)
    fleet.reset(SEEDS)
    players = play_built(LONGER, 5, SEEDS, 4), play_built(LONGER, 5, SEEDS), fleet.episodes
    for row, bare, drawn in zip(*players, strict=True):
        fixed = play_built(replace(LONGER, host_width=4 * drawn.host.width), 5, [row.seed])[0]
        assert row.curve[1:] == pytest.approx(fixed.curve[1:], abs=0.5)  # a fleet of one rounds differently
        assert (len(row.curve), row.curve[-1]) == (LONGER.horizon_epochs + 1, row.accuracy)
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
    whole = play_built(LONGER, 5, SEEDS, scale)
    short = play_built(replace(LONGER, horizon_epochs=3), 5, SEEDS, scale)
    assert [row.curve for row in short] == [row.curve[:4] for row in whole]


def test_a_rule_plays_legal_actions() -> None:
    rows = play(lambda spaces: rule_policy("fixed-column:double@1", spaces), LONGER, 5, SEEDS)
    for row in rows:
        assert (row.illegal, row.joined, row.bare) == (0, 1, False)
        assert sum(row.ops) == row.epochs
        assert (row.ops[Op.GERMINATE], row.ops[Op.PRUNE], row.ops[Op.FOSSILIZE]) == (1, 0, 1)
        assert row.gain - 2 * row.doublings - 0.5 * row.compute == row.objective(Prices(2, 0.5))
        assert row.curve == ()
