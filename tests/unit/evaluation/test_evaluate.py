"""`tamiyo evaluate`, from the command line to its page."""

from __future__ import annotations

import gzip
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console

from actors.config import EnvConfig, PolicyConfig
from actors.policy.network import FactoredRecurrentActorCritic
from actors.slots.spaces import seed_spaces
from deploy.cli import main
from deploy.commands.evaluate import EvaluationRun
from deploy.commands.evaluation_flags import EvaluateOptions
from deploy.config.schema import PRESETS, Config
from deploy.config.yaml import to_yaml
from deploy.evaluation import tune
from deploy.evaluation.players import FIXED
from deploy.evaluation.suite import CONDITIONS, PRICED
from learner.run.checkpoint import LearnerProgress, load_checkpoint, load_network, save_checkpoint, save_policy

ENV = replace(PRESETS["research"].env, horizon_epochs=(2, 3), inner_steps=2)


def _policy(folder: Path, env: EnvConfig = ENV, seed: int = 0, blind: bool = False) -> Path:
    torch.manual_seed(seed)
    settings = PolicyConfig(hidden_size=8, encoder_size=8, head_size=8, blind=blind)
    network = FactoredRecurrentActorCritic(seed_spaces(env.total_slots), settings)
    folder.mkdir()
    (folder / "config.yaml").write_text(to_yaml(Config(env=env)))
    optimizer = torch.optim.AdamW(network.parameters())
    save_checkpoint(folder / "checkpoints", network, optimizer, LearnerProgress(version=1), (), 8, 3)
    return folder


def _told(out: Path, condition: str = PRICED) -> dict[str, dict[str, object]]:
    return {line["name"]: line for line in json.loads((out / "results.json").read_text())[condition]["lines"]}


def test_evaluate_end_to_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Policies are played once. Later, tables are made from what was kept, and a policy is added to it. One of which
    cells are missing is left out."""
    runs = [_policy(tmp_path / f"run-{n}", seed=n) for n in range(2)]
    blind = _policy(tmp_path / "blind", seed=2, blind=True)
    bare = _policy(tmp_path / "bare", replace(ENV, column_slots=0), seed=3)
    out = tmp_path / "out"
    flags = ["--player", "gap", "--families", "xor", "--quick", "--jobs", "1", "--out", str(out)]
    first = ["evaluate", "--checkpoint", str(runs[0]), "--blind", str(blind), "--also", f"no columns={bare}"]
    assert main([*first, *flags]) == 0
    page = (out / "results.md").read_text()
    for figure in ("sweep.png", "front.png"):
        assert f"]({figure})" in page
        assert (out / figure).stat().st_size > 5000
    told = _told(out)
    names = {"never grow", "built wider x8", "best single rule", "best trial rule", "gap rule", "gap", "policy"}
    assert names | {"blind", "no columns", "full sweep", "equal-compute sweep"} <= set(told)
    for condition in CONDITIONS:
        assert set(_told(out, condition)) == set(told)
        players = page.split(f"## Players at {condition}\n")[1].split("## ")[0]
        assert all(f"| {name} | " in players for name in told)
    shown = capsys.readouterr().out
    assert all(text in shown for text in ("points over full sweep", "left  policy-"))
    played = {path.name: path.read_bytes() for path in (out / "cells").iterdir()}
    assert sum(map(len, played.values())) < 30_000
    assert shown.count("  blind-") == 1  # it looks at no price

    for folder in (runs[0], blind, bare):
        shutil.rmtree(folder)
    assert main(["evaluate", "--kept", "--checkpoint", str(runs[1]), *flags]) == 0
    added = _told(out)
    assert added["policy"]["policies"] == 2
    same = ("over_never", "by_price", "accuracy", "test_accuracy", "doublings", "compute")
    assert {key: added["blind"][key] for key in same} == {key: told["blind"][key] for key in same}
    now = {path.name: path.read_bytes() for path in (out / "cells").iterdir()}
    assert {name: now[name] for name in played} == played  # nothing was played again

    for file in (out / "cells").glob("policy-*"):
        kept = json.loads(gzip.decompress(file.read_bytes()))
        kept["cells"].popitem()
        file.write_bytes(gzip.compress(json.dumps(kept).encode()))
    assert "Targets" in (out / "results.md").read_text()
    assert main(["evaluate", *flags]) == 0
    assert capsys.readouterr().out.count("is left out: 1 of 8 cells are missing") == 2
    assert "policy" not in _told(out)
    assert "Targets" not in (out / "results.md").read_text()


def test_an_ablation_alone_does_not_decide_on_the_environment(tmp_path: Path) -> None:
    research = PRESETS["research"].env
    bare = _policy(tmp_path / "bare", replace(research, column_slots=0))
    asked = EvaluationRun(EvaluateOptions(also=(f"no columns={bare}",)), Console())
    assert asked.config.column_slots == research.column_slots > 0
    assert dict(asked.policies[0].env)["column_slots"] == 0


def test_policies_of_other_environments_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, other = _policy(tmp_path / "a"), _policy(tmp_path / "b", replace(ENV, inner_steps=4))
    assert main(["evaluate", "--checkpoint", str(one), str(other), "--out", str(tmp_path)]) == 2
    assert "was trained with another env.inner_steps than the first policy" in capsys.readouterr().err


def test_tuning_chooses_rules_on_training_families(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tune, "CANDIDATES", {FIXED: ("fixed-column:half@1", "fixed-column:quad@1")})
    rules = tmp_path / "rules.yaml"
    command = ["evaluate", "--tune", "--suite", "train", "--families", "moons", "--quick", "--jobs", "1"]
    assert main([*command, "--rules", str(rules), "--out", str(tmp_path)]) == 0
    found = tune.read_rules(rules)
    assert set(found[FIXED].values()) <= {"fixed-column:half@1", "fixed-column:quad@1"}
    assert found == tune.read_rules(tune.RULES_FILE) | {FIXED: found[FIXED]}


def test_a_policy_outside_a_run_folder_plays_in_the_environment_of_the_study(tmp_path: Path) -> None:
    run, alone = _policy(tmp_path / "run"), tmp_path / "alone" / "policy.safetensors"
    alone.parent.mkdir()
    save_policy(load_checkpoint(run), alone)
    kept, own = (load_network(path).state_dict() for path in (alone, run))
    assert all(torch.equal(kept[name], value) for name, value in own.items())
    asked = EvaluationRun(EvaluateOptions(checkpoint=(alone,)), Console())
    assert (asked.config.horizon_epochs, asked.config.inner_steps) == ((15, 40), (8, 32))
    assert [player.env for player in asked.policies] == [()]
