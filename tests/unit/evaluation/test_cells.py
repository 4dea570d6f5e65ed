"""Cells: what is kept is read again, and only under the same conditions."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from actors.config import EnvConfig
from deploy.evaluation.cells import CellStore, Job, run_cells, shared
from deploy.evaluation.players import Player, rule_player
from tests.support.made_up_rows import built_row, grown_row

CONFIG = EnvConfig(tasks=("spirals",), host_width=6, horizon_epochs=3, inner_steps=2, rent_weight=2.0, device="cpu")
POLICY = Player(line="policy", sha256="ab" * 32, checkpoint="somewhere.safetensors")
BUILT = Player(scale=2)


def test_rows_are_kept_and_rounded(tmp_path: Path) -> None:
    rows = [replace(built_row(2, 1 / 3), seed=s, training_flops=1234567.0) for s in range(3)]
    job = shared(Job(BUILT, CONFIG, 7, 3))
    CellStore(tmp_path).write(job, rows, 1.5)
    found = CellStore(tmp_path).read(job)
    assert found is not None
    assert [row.seed for row in found] == [0, 1, 2]
    assert (found[0].gain, found[0].training_flops, found[0].panic) == (0.333, 1234600.0, False)
    assert found[0].curve == tuple(round(x, 2) for x in rows[0].curve)
    assert CellStore(tmp_path).read(replace(job, seeds=2)) == found[:2]  # the first seeds of more
    assert CellStore(tmp_path).read(replace(job, seeds=4)) is None


def test_cells_depend_on_what_was_played(tmp_path: Path) -> None:
    store, job = CellStore(tmp_path), Job(POLICY, CONFIG, 7, 2)
    store.write(job, [grown_row(1.0, 0.5), grown_row(2.0, 0.0)], 1.0)
    assert store.read(job) is not None
    assert store.read(replace(job, player=replace(POLICY, checkpoint=""))) is not None  # the file may be gone
    for other in (
        replace(job, run_seed=8),
        replace(job, config=replace(CONFIG, inner_steps=3)),
        replace(job, config=replace(CONFIG, rent_weight=4.0)),
        replace(job, player=replace(POLICY, sha256="ab" * 31 + "cd")),
    ):
        assert store.read(other) is None


def test_a_player_that_does_not_see_the_price_shares_its_cells() -> None:
    dear = replace(CONFIG, rent_weight=4.0)
    for player in (BUILT, rule_player("fixed-column:same@3"), rule_player("never"), rule_player("periodic")):
        jobs = [Job(player, config, 7, 2) for config in (CONFIG, dear)]
        assert jobs[0].cell == jobs[1].cell == "spirals"
        assert jobs[0].fingerprint() == jobs[1].fingerprint()
    for player in (POLICY, rule_player("gap")):
        jobs = [Job(player, config, 7, 2) for config in (CONFIG, dear)]
        assert [job.cell for job in jobs] == ["spirals@2", "spirals@4"]
        assert jobs[0].fingerprint() != jobs[1].fingerprint()


def test_all_cells_of_a_player_are_in_one_file(tmp_path: Path) -> None:
    store = CellStore(tmp_path)
    jobs = [Job(POLICY, replace(CONFIG, tasks=(task,)), 7, 1) for task in ("spirals", "moons")]
    for job in jobs:
        CellStore(tmp_path).write(job, [grown_row(1.0, 0.5)], 1.0)
    assert [path.name for path in tmp_path.iterdir()] == ["policy-abababab.json.gz"]
    assert all(store.read(job) for job in jobs)
    assert store.policies() == [replace(POLICY, checkpoint="")]


def test_a_policy_plays_in_its_own_environment(tmp_path: Path) -> None:
    own = replace(POLICY, env=(("column_slots", 0), ("hidden_features", ("price",))))
    store = CellStore(tmp_path)
    store.write(Job(own, CONFIG, 7, 1), [grown_row(1.0, 0.5)], 1.0)
    assert CellStore(tmp_path).policies() == [replace(own, checkpoint="")]


def test_only_missing_cells_are_played(tmp_path: Path) -> None:
    store, log = CellStore(tmp_path), list[str]()
    jobs = [Job(Player(scale=k), replace(CONFIG, rent_weight=w), 7, 2) for k in (1, 2) for w in (1.0, 2.0)]
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


def test_names_of_players_are_names_of_files() -> None:
    names = [BUILT.name, POLICY.name, rule_player("gap:size=quad,gap=0.1").name, rule_player("never").name]
    assert names == ["built-2", "policy-abababab", "gap_size=quad,gap=0.1", "built-1"]
    assert not any(os.sep in rule_player(name).name for name in ("periodic", "fixed-column:quad@1"))
