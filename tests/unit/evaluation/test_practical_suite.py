"""The suite of practical models: what a cell depends on, J, sweep and halving by hand, targets, and interruptions."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from math import log2
from pathlib import Path

import numpy as np
import pytest

from actors.errors import UserError
from actors.slots.objective import Prices
from deploy.cli import main
from deploy.evaluation.practical.halving import Arms, Halved, halve, halved_within
from deploy.evaluation.practical.page import models_table, players_table, write_results
from deploy.evaluation.practical.results import BUILT, NEVER, SWEEP, PracticalResults, Training
from deploy.evaluation.practical.runs import (
    PracticalCell,
    PracticalModel,
    PracticalRun,
    cell_file,
    play_cell,
    read_run,
    run_script,
)
from deploy.evaluation.practical.targets import targets
from deploy.evaluation.suite import CONDITIONS, FREE, NOMINAL, PRICED
from tests.support.waiting import wait_for

RULE, POLICY = "trial:double+quad@0-2", "/runs/a.safetensors"
SMALL, LARGE = PracticalModel("small", "Small", (2, 4, 8)), PracticalModel("large", "Large", (2, 4, 8))
FIRST = Training("small", 2, 0)

SCRIPT = """
import argparse, sys, time, torch, tamiyo
p = argparse.ArgumentParser()
for name in ("width", "seed", "epochs", "policy", "price", "compute-price"):
    p.add_argument("--" + name, type=str if name == "policy" else float)
o = p.parse_args()
net = lambda scale: torch.nn.Linear(2, 2, bias=False) if scale == 1 else torch.nn.Sequential(
    torch.nn.Linear(2, int(2 * scale)), torch.nn.Linear(int(2 * scale), 2))
model = net(1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
grower = tamiyo.GrowthController(model, optimizer=optimizer, columns=tamiyo.Column(net), horizon_epochs=int(o.epochs),
    num_classes=2, policy=o.policy, points_per_doubling=o.price, points_per_compute_doubling=o.compute_price)
x = val = torch.ones(4, 2)
evaluate = lambda rows: model(rows)
history = []
for epoch in range(int(o.epochs) + 1):
    if epoch:
        time.sleep(0.02)
        model(x).sum().backward()
        grower.shadow(lambda: model(x).sum())
        optimizer.step()
        history.append(0.5 + 0.02 * epoch)
    grower.step(1.0, 0.5 + 0.02 * epoch)
model = grower.export()
test_metric = 0.75
"""


def run(val: float = 50.0, test: float = 60.0, params: int = 100, **changes: object) -> PracticalRun:
    made = PracticalRun([10.0, 20.0, 30.0, val], test, params, params, 2.0 * params, 0.0, [], 1.0)
    return replace(made, **changes)


def results(price: float = 1.0, compute_price: float = 0.0, without: tuple[str, ...] = ()) -> PracticalResults:
    """Two models at one width: on the first, twice the width is best in validation, on the second nothing pays."""
    runs = {
        NEVER: (run(), run()),
        RULE: (
            run(57.0, 69.0, final_params=400, flops=800.0, compute=1.5),
            run(final_params=400, flops=800.0, compute=3.0),
        ),
        POLICY: (run(57.0, 66.0, final_params=200, flops=400.0, compute=log2(6.0)), run(compute=1.0)),
        "built x2": (run(62.0, 70.0, 400), run(params=400)),
        "built x4": (run(62.5, 80.0, 1600), run(params=1600)),
    }
    known = {
        (training, player): own[n]
        for player, own in runs.items()
        for n, training in enumerate((FIRST, Training("large", 2, 0)))
        if player not in without
    }
    widths, players = {"small": (2,), "large": (2,)}, [NEVER, *BUILT, RULE, POLICY]
    return PracticalResults((SMALL, LARGE), widths, (0,), players, Prices(price, compute_price), known)


def over_never(own: PracticalResults, training: Training, player: str) -> float:
    return own.outcome(training, player).over_never


def test_the_sweep_is_chosen_on_validation_rows_and_scored_on_test_rows() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        val, test, sizes = rng.uniform(0, 100, 3), rng.uniform(0, 100, 3), np.array([100, 400, 1600])
        players = (NEVER, *BUILT)
        given = zip(val.tolist(), test.tolist(), sizes.tolist(), strict=True)
        runs = {(FIRST, player): run(*numbers) for player, numbers in zip(players, given, strict=True)}
        own = PracticalResults((SMALL,), {"small": (2,)}, (0,), players, Prices(2.0, 0.5), runs)
        doublings = np.array([0.0, 2.0, 4.0])
        kept = int(np.argmax(val - 2.0 * doublings))
        expected = test[kept] - test[0] - 2.0 * doublings[kept] - 0.5 * np.log2(1 + 4 + 16)
        assert over_never(own, FIRST, SWEEP) == pytest.approx(expected)
        outcome = own.outcome(FIRST, SWEEP)
        assert (outcome.seconds, outcome.flops) == (3.0, pytest.approx(21.0))  # those of all three


def test_j_charges_the_model_at_the_end_and_the_compute_of_the_training() -> None:
    free, priced = results(0.5), results(0.5, 0.25)
    assert over_never(free, FIRST, NEVER) == 0.0
    assert over_never(free, FIRST, RULE) == pytest.approx(69.0 - 60.0 - 0.5 * 2.0)
    assert over_never(free, FIRST, RULE) - over_never(priced, FIRST, RULE) == pytest.approx(0.25 * 1.5)
    assert over_never(free, FIRST, "built x2") == pytest.approx(70.0 - 60.0 - 0.5 * 2.0)
    assert over_never(priced, FIRST, "built x2") == pytest.approx(9.0 - 0.25 * 2.0)


def test_halving_drops_the_worse_half_twice_and_pays_for_all_that_was_trained() -> None:
    arms = Arms([[9.0, 1, 1, 1], [5, 5, 2, 2], [1, 6, 6, 6]], [1.0, 4.0, 16.0])
    assert halve(arms, 3, 0.25) == Halved(1, 1.0 * 2 / 4 + 4.0 + 16.0 / 4)  # the third is out after one epoch
    assert halve(arms, 3, 0.5) == Halved(2, 1.0 * 2 / 4 + 4.0 + 16.0)  # the first at two epochs, the second at four
    assert halve(arms, 1, 0.5) == Halved(0, 1.0)
    assert halved_within([arms], 9.0) == [halve(arms, 3, 0.25)]
    assert halved_within([arms], 6.0) == [halve(arms, 2, 0.5)]  # the widest is left out where all cost too much
    assert halved_within([arms], 0.5) == [Halved(0, 1.0)]


def test_targets_are_measured_on_what_was_played() -> None:
    own = {FREE: results(), PRICED: results(1.0, 0.25)}
    found = {target.name: target for target in targets(own)}
    behind = found[f"{RULE} over the sweep, c = 0"]
    assert behind.value == pytest.approx(((69 - 2 - 60) - (70 - 2 - 60) + (-2) - 0) / 2)
    assert behind.met is False
    assert behind.interval.low < -1.5 < behind.interval.high
    share = found["FLOPs of the policy, of the sweep's"]
    assert (share.value, share.met) == (pytest.approx((6 + 2) / 2 / 21), True)
    assert found["policy over never in its worst training, c = p/4"].value == pytest.approx(-0.25)
    assert found["policy over built x2, test points, worst small model, c = 0"].value == pytest.approx(-4.0)
    assert {target.trainings for target in found.values()} == {2}


def test_missing_cells_leave_out_what_needs_them_and_are_said() -> None:
    own = {FREE: results(without=("built x4", POLICY)), PRICED: results(1.0, 0.25, ("built x4", POLICY))}
    assert own[FREE].outcome(FIRST, SWEEP) is None
    assert over_never(own[FREE], FIRST, "built x2") == 8.0
    assert all(target.value is None and target.verdict == "" for target in targets(own))
    assert {row[0] for row in players_table(own[FREE], "").rows} == {NEVER, "built x2", RULE}
    partial = results()
    partial = replace(partial, runs={key: v for key, v in partial.runs.items() if key[0] == FIRST})
    assert all(target.verdict.endswith(" so far") for target in targets({FREE: partial, PRICED: partial}))


def test_tables_and_figures_are_written_into_a_page(tmp_path: Path) -> None:
    table = models_table(results(), "")
    assert table.rows[0] == (
        "Small", "2", "100", "1", "60.0", "70.0 (+8.0)", "80.0 (+16.0)", "69.0 (+7.0)", "66.0 (+5.0)", "70.0 (+8.0)",
        "60.0 (+0.0)",
    )  # fmt: skip
    page, own = tmp_path / "page.md", {FREE: results(), PRICED: results(1.0, 0.25)}
    (tmp_path / "results").mkdir()
    page.write_text("before\n<!-- measured -->\nold\n<!-- end of measured -->\nafter\n")
    write_results(own, tmp_path, page)
    text = page.read_text()
    assert "| Small | 2 | 100 | 1 | 60.0 |" in text
    assert (text[:7], text[-6:], "old" in text) == ("before\n", "after\n", False)
    assert len(list((tmp_path / "results").glob("*.png"))) == 2
    assert len(json.loads((tmp_path / "practical.json").read_text())[FREE]["rows"]) == 14
    with pytest.raises(UserError, match="no place for tables"):
        write_results(own, tmp_path, tmp_path / "practical.md")


def test_a_cell_depends_on_its_settings_and_on_what_the_script_says(tmp_path: Path) -> None:
    script = tmp_path / "own.py"
    script.write_text(SCRIPT)
    cell = PracticalCell("own", script, (), 2, 0, 4, "fixed-column:double@1", NOMINAL)
    others = [replace(cell, width=4), replace(cell, seed=1), replace(cell, epochs=5), replace(cell, policy=NEVER)]
    others += [replace(cell, prices=Prices(2.0, 0.0)), replace(cell, flags=("--task=price",))]
    assert len({c.fingerprint() for c in (cell, *others)}) == 7
    played = play_cell(cell, tmp_path / "cells")
    assert read_run(cell, tmp_path / "cells") == played
    assert played.host_params == 4 < played.final_params
    weights = played.final_params - 6  # the column has as many biases
    assert played.flops == 2 * 4 * weights  # a multiplication and an addition for each weight and row
    assert played.compute > 0
    assert played.curve == pytest.approx([52.0, 54.0, 56.0, 58.0])
    assert played.decisions[0] == "1 GERMINATE column 1 column_double"
    file = cell_file(cell, tmp_path / "cells")
    kept = file.read_text()
    for text in ("", "{", '{"run": {}}', "[]", kept[:-40], kept.replace('"host_params": 4', "")):
        file.write_text(text)
        assert read_run(cell, tmp_path / "cells") is None
    script.write_text(SCRIPT + "# changed\n")
    assert read_run(cell, tmp_path / "cells") is None
    assert not cell_file(cell, tmp_path / "cells").exists()


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("test_metric = 0.75", "", "has no test_metric at its end"),
        ("range(int(o.epochs) + 1)", "range(1, int(o.epochs) + 1)", "before its first epoch"),
        ("policy=o.policy", "policy='127.0.0.1:1'", "did not answer in epoch 0"),
        ("o = p.parse_args()", "sys.exit(3)", "ended with 3"),
    ],
)
def test_scripts_that_do_not_keep_to_the_suite_are_refused(tmp_path: Path, old: str, new: str, told: str) -> None:
    script = tmp_path / "own.py"
    assert old in SCRIPT
    script.write_text(SCRIPT.replace(old, new))
    with pytest.raises(UserError, match=told):
        run_script(PracticalCell("own", script, (), 2, 0, 2, NEVER, NOMINAL))


def cells_of(folder: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*.json") if path.name != "practical.json"}


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_killed_evaluation_continues_and_a_damaged_cell_is_played_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "gru_signals.py").write_text(SCRIPT)
    command = ["evaluate", "--suite", "practical", "--models", "gru_signals", "--widths", "small", "--seeds", "1"]
    command += ["--jobs", "1", "--player", "fixed-column:double@0", "--scripts", str(tmp_path)]
    command += ["--out", str(tmp_path / "out"), "--cells", str(tmp_path / "cells")]
    code = f"from deploy.cli import main; main({command!r})"
    killed = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.DEVNULL)
    wait_for(lambda: cells_of(tmp_path / "cells"), 200)
    killed.kill()
    killed.wait()
    before = cells_of(tmp_path / "cells")
    assert 1 <= len(before) < 4
    assert main(command) == 0
    assert f"{4 - len(before)}/{4 - len(before)}, about 0:00 left" in capsys.readouterr().out
    played = cells_of(tmp_path / "cells")
    assert len(played) == 4
    assert before.items() <= played.items()
    content = json.loads((tmp_path / "out" / "practical.json").read_text())
    free, priced = ({row["player"]: row for row in content[name]["rows"]} for name in CONDITIONS)
    rule = "fixed-column:double@0"
    assert set(free) == {NEVER, *BUILT, rule, SWEEP}
    paid = free[rule]["over_never"] - priced[rule]["over_never"]
    assert paid == pytest.approx(log2(free[rule]["flops"]) / 4, abs=1e-3)
    damaged, *others = played
    damaged.write_text(damaged.read_text()[:-40])
    assert main([*command, "--kept"]) == 0
    assert "3 of 4 cells were played" in capsys.readouterr().out
    assert main(command) == 0
    assert json.loads(damaged.read_text())["run"]["test"] == 75.0
    assert {path: cells_of(tmp_path / "cells")[path] for path in others} == {path: played[path] for path in others}
