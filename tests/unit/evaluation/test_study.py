"""`tamiyo study`: finished entries are skipped, and every entry can be run."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from actors.errors import UserError
from deploy.cli import main
from deploy.config.schema import PRESETS
from deploy.config.yaml import from_yaml, overlay
from deploy.evaluation import study
from learner.run.checkpoint import load_policy

ROOT = Path(__file__).parents[3]


def _write(folder: Path, **changes: object) -> Path:
    data = {
        "name": "tiny",
        "preset": "quick",
        "root": str(folder / "runs"),
        "results": str(folder / "results"),
        "trainings": [{"name": "main", "seeds": [1, 2], "minutes": 0.5}],
        **changes,
    }
    path = folder / "study.yaml"
    path.write_text(yaml.safe_dump(data))
    return path


EXAMPLE = """
name: sweep
preset: research
trainings:
  - {name: main, seeds: [1, 2, 3], minutes: 60, keep: true}
  - {name: blind, seeds: [1, 2], minutes: 60, settings: {policy: {blind: true}}}
  - {name: no-columns, seeds: [1], minutes: 60, settings: &short {env: {column_slots: 0}, learner: {updates: 60}}}
  - {name: short, seeds: [1], minutes: 20, settings: {<<: *short, learner: {updates: 5}}}
evaluations:
  - {name: headline, policies: [main], blind: [blind], also: [no-columns]}
  - {name: short, policies: [short], flags: [--seeds, "4"]}
"""


def test_a_study_is_read(tmp_path: Path) -> None:
    text = EXAMPLE.replace("{name: short, policies", "{name: few, policies")
    (tmp_path / "study.yaml").write_text(text)
    found = study.read_study(tmp_path / "study.yaml")
    assert [t.name for t in found.trainings] == [
        "main-1",
        "main-2",
        "main-3",
        "blind-1",
        "blind-2",
        "no-columns-1",
        "short-1",
    ]
    blind, short = (overlay(PRESETS[found.preset], found.members(name)[0].settings) for name in ("blind", "short"))
    assert blind.policy.blind
    assert (short.env.column_slots, short.learner.updates) == (0, 5)
    assert found.evaluations[0].also == ("no-columns",)
    assert found.evaluations[1].flags == ("--seeds", "4")
    assert found.folder("few") == Path("results/sweep/few")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"preset": "quik"}, "did you mean 'quick'"),
        ({"training": []}, "did you mean 'trainings'"),
        ({"trainings": [{"name": "a", "seeds": [1]}]}, "'minutes' is missing"),
        ({"trainings": [{"name": "a", "seeds": [1], "minutes": 1, "settings": {"env": {"slots": 9}}}]}, "at most 8"),
        ({"trainings": [{"name": "a", "seeds": [1, 1], "minutes": 1}]}, "two entries named 'a-1'"),
        ({"evaluations": [{"name": "e", "policies": ["mian"]}]}, "did you mean 'main'"),
    ],
)
def test_an_invalid_study_is_reported_in_one_line(tmp_path: Path, changes: dict[str, object], reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        study.read_study(_write(tmp_path, **changes))


def test_finished_entries_are_listed_and_not_run_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = _write(tmp_path)
    asked = study.read_study(path)
    entry = asked.trainings[0]
    asked.folder(entry.name).mkdir(parents=True)
    study._record(asked, entry, ["train"], 0.0, {})
    assert main(["study", str(path), "--list"]) == 0
    told = capsys.readouterr().out
    assert "main-1  0.5      done" in told
    assert "main-2  0.5      left" in told
    ran: list[list[str]] = []
    monkeypatch.setattr(study, "_tamiyo", lambda command: ran.append(list(command)) or 130)
    assert main(["study", str(path)]) == 130
    assert [command[:3] for command in ran] == [["train", "--preset", "quick"]]
    config = from_yaml(asked.folder("main-2") / "config.yaml", PRESETS["quick"])
    assert (config.run.seed, config.run.name, config.learner.max_seconds) == (2, "tiny-main-2", 30.0)
    changed = study.read_study(_write(tmp_path, trainings=[{"name": "main", "seeds": [1], "minutes": 2}]))
    assert not study._finished(changed, changed.trainings[0])


def test_an_evaluation_first_trains_missing_policies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One policy was kept, one is in its run folder, one is lost with its run, and one was never trained."""
    trainings = [{"name": "main", "seeds": [1, 2, 3, 4], "minutes": 0.5}]
    path = _write(tmp_path, trainings=trainings, evaluations=[{"name": "played", "policies": ["main"]}])
    asked = study.read_study(path)
    for entry in asked.trainings[:3]:
        asked.folder(entry.name).mkdir(parents=True)
        study._record(asked, entry, ["train"], 0.0, {})
    asked.run_dir("main-1").mkdir(parents=True)
    (asked.run_dir("main-1") / study.POLICY).touch()
    (asked.run_dir("main-2") / "checkpoints").mkdir(parents=True)
    (asked.run_dir("main-2") / "checkpoints" / "update_00000001.safetensors").touch()
    trained: list[str] = []
    monkeypatch.setattr(study, "_train", lambda _, entry: trained.append(entry.name) or 0)
    monkeypatch.setattr(study, "_evaluate", lambda _, entry: trained.append(entry.name) or 0)
    assert study.run_study(path, only=["played"]) == 0
    assert trained == ["main-3", "main-4", "played"]


def test_a_run_is_resumed_only_with_the_same_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[list[str]] = []
    monkeypatch.setattr(study, "_tamiyo", lambda command: ran.append(list(command)) or 130)
    path, run = _write(tmp_path), tmp_path / "runs" / "tiny-main-1"
    assert study.run_study(path) == 130
    run.mkdir(parents=True)  # as `tamiyo train` leaves it when it is cut off
    (run / "config.yaml").write_text((tmp_path / "results" / "tiny" / "main-1" / "config.yaml").read_text())
    assert study.run_study(path) == 130
    assert ran[-1] == ["train", "--resume", str(run)]
    path = _write(tmp_path, settings={"learner": {"lr": 1e-5}})
    assert study.run_study(path) == 130
    assert ran[-1][:2] == ["train", "--preset"]
    assert not run.exists()
    assert (run.with_name("tiny-main-1-before-1") / "config.yaml").is_file()


@pytest.mark.long
def test_an_interrupted_study_continues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    settings = {
        "env": {"tasks": ["spirals"], "horizon_epochs": 3, "inner_steps": 2},
        "policy": {"hidden_size": 8, "encoder_size": 8, "head_size": 8, "blind": True},
        "actors": {"count": 1, "envs_per_actor": 2},
        "learner": {"updates": 2, "batch_episodes": 4},
        "run": {"reference_episodes": 2},
    }
    training = {"name": "blind", "seeds": [3], "minutes": 1, "keep": True, "settings": settings}
    flags = ["--families", "xor", "--seeds", "2", "--jobs", "1"]
    played = {"name": "played", "policies": ["blind"], "also": ["blind"], "flags": flags}
    path = _write(tmp_path, trainings=[training], evaluations=[played])
    assert study.run_study(path) == 0
    folder, run_dir = tmp_path / "results" / "tiny" / "blind-3", tmp_path / "runs" / "tiny-blind-3"
    record = json.loads((folder / "record.json").read_text())
    assert record["updates"] == 2
    assert len((run_dir / "curve.csv").read_text().splitlines()) == 3
    assert record["command"].startswith("tamiyo train --preset quick --config")
    assert load_policy(run_dir / "policy.safetensors").config.blind
    record = json.loads((tmp_path / "results" / "tiny" / "played" / "record.json").read_text())
    assert record["core_minutes"] > 0
    assert (record["targets"][-1]["name"], record["targets"][-1]["value"]) == ("episodes with NaN", 0.0)
    kept = str(run_dir / "policy.safetensors")
    assert record["command"].startswith(f"tamiyo evaluate --checkpoint {kept} --also blind={kept} --out ")
    cells = tmp_path / "results" / "tiny" / "cells"  # evaluations share them
    assert f"--cells {cells} " in record["command"]
    assert len(list(cells.glob("policy-*.json.gz"))) == len(list(cells.glob("blind-*.json.gz"))) == 1
    monkeypatch.setattr(study, "_tamiyo", lambda command: 1)
    assert study.run_study(path) == 0  # nothing is left to run
    quick = PRESETS["quick"]
    monkeypatch.setitem(PRESETS, "quick", replace(quick, learner=replace(quick.learner, lr=quick.learner.lr / 2)))
    assert study.run_study(path) == 1  # what its entry means has changed
