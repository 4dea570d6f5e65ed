"""The suite of training scripts: what a cell depends on, J and the sweep by hand, tables, and the scripts' duties."""

from __future__ import annotations

import json
from dataclasses import replace
from math import log2
from pathlib import Path

import numpy as np
import pytest

from actors.errors import UserError
from actors.slots.objective import Prices
from deploy.cli import main
from deploy.evaluation.model_results import BUILT, NEVER, SWEEP, ModelResults, front
from deploy.evaluation.model_runs import (
    FOLDER,
    SCRIPTS,
    ModelCell,
    ModelRun,
    ModelScript,
    cell_file,
    model_scripts,
    play_cell,
    read_run,
    run_script,
)
from deploy.evaluation.suite import CONDITIONS, NOMINAL

RULE = "fixed-column:double@3"
SMALL, LARGE = ModelScript("small", "Small", (2, 4, 8)), ModelScript("large", "Large", (2, 4, 8))

SCRIPT = """
import argparse, sys, torch, tamiyo
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
for epoch in range(int(o.epochs) + 1):
    if epoch:
        model(x).sum().backward()
        grower.shadow(lambda: model(x).sum())
        optimizer.step()
    grower.step(1.0, 0.5 + 0.1 * epoch)
model = grower.export()
test_accuracy = 0.75
"""


def run(untrained: float = 10.0, accuracy: float = 50.0, test: float = 60.0, params: int = 100) -> ModelRun:
    return ModelRun(untrained, accuracy, test, params, params, 2.0 * params, 0.0, [], 1.0)


def results(price: float = 1.0, compute_price: float = 0.0) -> ModelResults:
    """Two scripts at one width: on the first, twice the width is best in validation, on the second nothing pays."""
    runs = {
        ("small", 2, NEVER, 0): run(),
        ("small", 2, RULE, 0): replace(run(accuracy=57.0, test=69.0), final_params=400, flops=800.0, compute=1.5),
        ("small", 2, "built x2", 0): run(untrained=99.0, accuracy=62.0, test=70.0, params=400),
        ("small", 2, "built x4", 0): run(accuracy=62.5, test=80.0, params=1600),
        ("large", 2, NEVER, 0): run(),
        ("large", 2, RULE, 0): replace(run(), final_params=400, flops=800.0, compute=3.0),
        ("large", 2, "built x2", 0): run(params=400),
        ("large", 2, "built x4", 0): run(params=1600),
    }
    widths = {"small": (2,), "large": (2,)}
    return ModelResults((SMALL, LARGE), widths, (0,), [NEVER, RULE, *BUILT], Prices(price, compute_price), runs)


def test_j_charges_the_model_at_the_end_and_the_sweep_is_chosen_by_validation() -> None:
    found = {(line.model, line.player): line for line in results(price=0.5).lines}
    assert found["small", NEVER].objective == 50.0
    assert found["small", RULE].objective == pytest.approx(69.0 - 10.0 - 0.5 * 2.0)
    assert found["small", RULE].params == 4.0
    built = found["small", "built x2"]
    assert built.doublings == log2(4)
    assert built.over_never == pytest.approx(70.0 - 60.0 - 0.5 * 2.0), "what the wide one has untrained is no gain"
    assert found["small", SWEEP].over_never == built.over_never, "four times the width is best only in testing"
    assert found["small", SWEEP].seconds == 3.0
    assert found["large", SWEEP].over_never == 0.0
    assert found["large", RULE].over_never == -1.0


def test_j_charges_compute_that_of_a_sweep_for_all_its_runs() -> None:
    """FLOPs of a model that was built wider are those of its passes, however large a grown one is in the end."""
    free, priced = ({(line.model, line.player): line for line in results(0.5, c).lines} for c in (0.0, 0.25))
    paid = {key: free[key].over_never - priced[key].over_never for key in free}
    assert paid["small", NEVER] == 0.0
    assert paid["small", RULE] == pytest.approx(0.25 * 1.5)
    assert paid["small", "built x2"] == pytest.approx(0.25 * 2.0)
    assert paid["large", SWEEP] == pytest.approx(0.25 * log2(1 + 4 + 16), abs=1e-3), "though it keeps the bare model"


def test_tables_are_shown_and_written() -> None:
    models, means = results().tables()
    assert models.rows[0] == ("Small", "2", "60.0", "69.0 (+7.0)", "70.0 (+8.0)", "80.0 (+16.0)", "70.0 (+8.0)")
    assert "| Small | 2 | 60.0 | 69.0 (+7.0) |" in models.markdown()
    assert [row[0] for row in means.rows] == [NEVER, RULE, *BUILT, SWEEP]
    assert means.rows[1] == (RULE, "+2.50", "+2.00", "+2.25", "-2.00")


def test_the_front_leads_from_the_bare_model_to_what_was_made_of_it() -> None:
    panel = front(results()).axes[0]
    points = {str(line.get_label()): np.asarray(line.get_xydata()) for line in panel.lines}
    assert panel.get_title() == "Small"
    assert points["never grow"].tolist() == [[100.0, 60.0]]
    assert points[RULE].tolist() == [[400.0, 69.0]]
    assert points["built at some width"].tolist() == [[100.0, 60.0], [400.0, 70.0], [1600.0, 80.0]]
    assert [(a.xy, a.xyann) for a in panel.texts] == [((400.0, 69.0), (100.0, 60.0))]


def test_a_cell_depends_on_its_settings_and_on_what_the_script_says(tmp_path: Path) -> None:
    script = tmp_path / "own.py"
    script.write_text(SCRIPT)
    cell = ModelCell(script, 2, 0, 4, "fixed-column:double@1", NOMINAL)
    others = [replace(cell, width=4), replace(cell, seed=1), replace(cell, epochs=5), replace(cell, policy=NEVER)]
    others += [replace(cell, prices=Prices(2.0, 0.0)), replace(cell, prices=Prices(1.0, 0.25))]
    assert len({c.fingerprint() for c in (cell, *others)}) == 7
    played = play_cell(cell, tmp_path / "cells")
    assert read_run(cell, tmp_path / "cells") == played
    assert played.host_params == 4
    assert played.final_params > 4
    weights = played.final_params - 6  # the column has as many biases
    assert played.flops == 2 * 4 * weights, "a multiplication and an addition for each weight and row"
    assert played.compute > 0
    assert played.untrained == 50.0
    assert played.accuracy == pytest.approx(90.0)
    assert played.decisions[0] == "1 GERMINATE column 1 column_double"
    script.write_text(SCRIPT + "# changed\n")
    assert read_run(cell, tmp_path / "cells") is None
    assert not cell_file(cell, tmp_path / "cells").exists()


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("test_accuracy = 0.75", "", "has no test_accuracy at its end"),
        ("range(int(o.epochs) + 1)", "range(1, int(o.epochs) + 1)", "before its first epoch"),
        ("policy=o.policy", "policy='127.0.0.1:1', timeout_s=0.1", "did not answer in epoch 0"),
        ("o = p.parse_args()", "sys.exit(3)", "ended with 3"),
    ],
)
def test_scripts_that_do_not_keep_to_the_suite_are_refused(tmp_path: Path, old: str, new: str, told: str) -> None:
    script = tmp_path / "own.py"
    assert old in SCRIPT
    script.write_text(SCRIPT.replace(old, new))
    with pytest.raises(UserError, match=told):
        run_script(ModelCell(script, 2, 0, 2, NEVER, NOMINAL))


def test_unknown_and_missing_scripts_are_one_line(tmp_path: Path) -> None:
    assert model_scripts((), FOLDER) == SCRIPTS
    with pytest.raises(UserError, match="'own' is not in the suite models"):
        model_scripts(("own",), FOLDER)
    with pytest.raises(UserError, match="clone it and name its folder with --scripts"):
        model_scripts((), tmp_path)


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--tune"], "--suite models has no use for --tune"),
        (["--player", "column"], "no checkpoint at column"),
        (["--player", "gap:gap=x"], "is not a rule"),
        (["--seeds", "0"], "--seeds is 0"),
        (["--price", "-1"], "cannot be negative"),
    ],
)
def test_impossible_options_are_one_line(flags: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", "--suite", "models", *flags]) == 2
    assert told in capsys.readouterr().err


def test_other_suites_have_no_use_for_the_options_of_scripts(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", "--scripts", str(FOLDER), "--player", "gap"]) == 2
    assert "--suite heldout has no use for --scripts" in capsys.readouterr().err


def test_the_command_plays_keeps_and_resumes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rule = "fixed-column:double@0"
    command = ["evaluate", "--suite", "models", "--quick", "--jobs", "1", "--families", "mlp_breast_cancer"]
    command += ["--player", rule, "--out", str(tmp_path)]
    assert main(command) == 0
    assert "4/4, about 0:00 left" in capsys.readouterr().out
    kept = {path: path.stat().st_mtime_ns for path in (tmp_path / "cells").rglob("*.json")}
    assert len(kept) == 4
    content = json.loads((tmp_path / "models.json").read_text())
    free, priced = ({line["player"]: line for line in content[name]["lines"]} for name in CONDITIONS)
    assert set(free) == set(priced) == {NEVER, rule, *BUILT, SWEEP}
    assert free[rule]["doublings"] > 0
    assert free[rule]["over_never"] - priced[rule]["over_never"] == pytest.approx(free[rule]["compute"] / 4, abs=2e-3)
    assert main(command) == 0
    assert {path: path.stat().st_mtime_ns for path in kept} == kept, "nothing is played twice"
    assert "left" not in capsys.readouterr().out
