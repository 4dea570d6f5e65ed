"""Cells: what is kept is read again, and only under the same conditions."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from actors.config import EnvConfig
from actors.slots.objective import Prices
from deploy.evaluation.cells import CellStore, Job, run_cells
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
    rules = ("gap", "chooser", "trial:double@1-2")
    blind = replace(CONFIG, hidden_features=("price",))
    for player, config, cells in (
        *(
            (player, CONFIG, ["spirals"])
            for player in (BUILT, rule_player("fixed-column:same@3"), rule_player("never"))
        ),
        *((rule_player(rule), CONFIG, [f"spirals@{p}" for p in ("0.5", "1", "2", "4")]) for rule in rules),
        (POLICY, CONFIG, [f"spirals@{w.doubling:g},{w.compute_doubling:g}" for w in ALL_PRICES]),
        (POLICY, blind, ["spirals"]),
    ):
        jobs = [Job(player, config, prices, 7, 2) for prices in ALL_PRICES]
        assert list(dict.fromkeys(job.cell for job in jobs)) == cells
        assert len({job.fingerprint() for job in jobs}) == len(cells)


def test_what_a_player_does_not_look_at_changes_nothing() -> None:
    """A trial at one price of parameters, with and without one of compute."""
    player, config = rule_player("trial:double@0-1"), replace(CONFIG, tasks=("spirals",))
    free, priced = (
        player.play(
            replace(config, points_per_doubling=p.doubling, points_per_compute_doubling=p.compute_doubling), 7, [1, 2]
        )
        for p in (CONDITIONS[FREE][1], CONDITIONS[PRICED][1])
    )
    assert [replace(row, gain=0.0) for row in free] == [replace(row, gain=0.0) for row in priced]
    assert [row.gain for row in free] == pytest.approx([row.gain for row in priced])


def test_all_cells_of_a_player_are_in_one_file(tmp_path: Path) -> None:
    store = CellStore(tmp_path)
    jobs = [Job(POLICY, replace(CONFIG, tasks=(task,)), CHEAP, 7, 1) for task in ("spirals", "moons")]
    for job in jobs:
        CellStore(tmp_path).write(job, [grown_row(1.0, 0.5)])
    assert [path.name for path in tmp_path.iterdir()] == ["policy-abababab.json.gz"]
    assert all(store.read(job) for job in jobs)
    assert store.policies() == [replace(POLICY, checkpoint="")]


def test_only_missing_cells_are_played(tmp_path: Path) -> None:
    store, log = CellStore(tmp_path), list[str]()
    jobs = [Job(Player(scale=k), CONFIG, w, 7, 2) for k in (1, 2) for w in (CHEAP, DEAR)]
    first = run_cells(jobs[:2], store, 1, log.append)
    assert len(log) == 1
    assert "1/1, about 0:00 left  built-1  spirals" in log[0]
    both = run_cells(jobs, store, 1, log.append)
    assert len(log) == 2
    assert "1/1, about 0:00 left  built-2" in log[1]
    assert both[Player(scale=1), "spirals"] == first[Player(scale=1), "spirals"]
    assert set(both) == {(Player(scale=1), "spirals"), (Player(scale=2), "spirals")}
    assert run_cells(jobs, CellStore(tmp_path), 1, log.append) == both
    assert len(log) == 2
    assert not list(tmp_path.glob("*.partial"))
