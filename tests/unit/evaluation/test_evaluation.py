"""The parts of an evaluation: suites, costs, schedules, tuning and tables."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from actors.config import EnvConfig, PolicyConfig
from actors.env.blueprints.family import blueprint_index
from actors.env.env import seed_spaces
from actors.env.host_episode import HostEpisode
from actors.env.hosts.mlp import MLPHost
from actors.env.slots.topology import GrownSeed
from actors.env.tasks import families
from actors.env.tasks.measured import measurements
from actors.policy.network import FactoredRecurrentActorCritic
from actors.rules.schedule import KINDS, NEVER, Schedule, Scheduled, fixed_column
from deploy.cli import main
from deploy.commands import evaluate
from deploy.config.schema import PRESETS, Config
from deploy.config.yaml import to_yaml
from deploy.evaluation import flops, suite, tune
from deploy.evaluation.cells import played_seconds
from deploy.evaluation.play import Row, largest, play
from deploy.evaluation.players import Player, play_player, play_schedules
from deploy.evaluation.results import Results
from deploy.evaluation.schedules import draw_schedule
from learner.run.checkpoint import LearnerProgress, load_checkpoint, load_policy, save_checkpoint, save_policy

CONFIG = EnvConfig(tasks=("spirals",), host_width=6, horizon_epochs=8, inner_steps=4, rent_weight=1.0, device="cpu")
EARLY = Schedule("periodic", 1, 2, 1, blueprint=3, blend=0, alpha_target=2, alpha_speed=0, training=2)


def test_held_out_families_are_disjoint_from_training_ones_and_hold_dont_grow_tasks() -> None:
    training = {f.name for f in families("train")}
    held_out = suite.members("heldout")
    assert not training & {m.family for m in held_out}
    assert len([m for m in held_out if m.headline]) >= 6
    assert len({m.family for m in held_out if m.headline}) >= 16
    others = suite.members("mlbench")
    assert {m.family for m in (*held_out, *others)} == {f.name for f in families("heldout") if f.factory}
    measured = measurements()
    for member in (*held_out, *others):
        if member.family in measured:
            gains = [grown.priced.mean for m in measured[member.family] for grown in (m.seed, m.column)]
            assert member.dont_grow == (max(gains) < 1.0), member.family
    assert {m.family for m in others} - {m.family for m in held_out} == set(suite.TRIVIAL)
    assert all(measured[name][0].never > 99 for name in suite.TRIVIAL)
    assert set(suite.tuning_families()) <= training
    assert len({suite.REPORTING, suite.SELECTION, suite.TUNING}) == 3


def test_flops_match_the_matrix_shapes() -> None:
    host = MLPHost(5, 6, 3, 2)
    own = flops.table(host, (5,))
    assert own.host == 2 * (5 * 6 + 2 * 6 * 6 + 6 * 3)
    assert own.seeds[1]["dense"] == 2 * 2 * 6 * 6
    assert own.seeds[0]["norm"] == 0
    assert own.columns["column_double"] == 2 * (5 * 12 + 2 * 12 * 12 + 12 * 3)
    assert own.seed(2, "column_half") == 2 * (5 * 3 + 2 * 3 * 3 + 3 * 3)


def test_the_cost_of_an_episode_counts_active_seeds() -> None:
    """The seed germinates in epoch 1, trains in a shadow pass from epoch 2, and is blended from epoch 4."""
    rows = play_player(Player("x", "schedule", schedule=EARLY), CONFIG, 5, [1])
    bare = play_player(Player("x", "never"), CONFIG, 5, [1])
    host = HostEpisode(CONFIG, 5, 1, seed_spaces(5).action)
    own = flops.table(host.host, host.task.shape)
    samples, epochs = CONFIG.inner_steps * CONFIG.batch_size, CONFIG.horizon_epochs
    assert bare[0].training_flops == 3 * samples * epochs * own.host
    seed = own.seeds[0]["dense"]
    shadow, blended = 2, epochs - 4
    wanted = 3 * samples * (epochs * own.host + blended * seed + shadow * (own.host + seed))
    assert rows[0].training_flops == wanted
    assert rows[0].inference_flops == own.host + seed
    assert bare[0].measuring_flops == epochs * len(host.task.val) * own.host


def test_a_column_costs_one_pass_beside_the_host_and_its_ablation_none() -> None:
    column = Player("x", "schedule", schedule=fixed_column(blueprint_index("column_same"), 1))
    row = play_player(column, CONFIG, 5, [1])[0]
    host = HostEpisode(CONFIG, 5, 1, seed_spaces(5).action)
    own = flops.table(host.host, host.task.shape)
    assert row.topology == [[3.0, float(blueprint_index("column_same")), 0.0, 1.0]]
    samples, epochs = CONFIG.inner_steps * CONFIG.batch_size, CONFIG.horizon_epochs
    shadow, blended = 1, epochs - 3  # germinated in epoch 1, training in 2, blended from 3
    wanted = 3 * samples * (epochs * own.host + blended * own.host + shadow * 2 * own.host)
    assert row.training_flops == wanted
    assert row.measuring_flops == len(host.task.val) * (epochs + shadow + blended) * own.host
    assert row.inference_flops == 2 * own.host
    assert row.rent == pytest.approx(np.log2(row.final_params / row.host_params) * 7 / 8)


def test_a_schedule_follows_its_rule() -> None:
    row = play_player(Player("x", "schedule", schedule=EARLY), CONFIG, 5, [1, 2])[0]
    assert row.illegal == 0
    assert (row.started, row.fossilized) == (1, 1)
    assert row.grown == (GrownSeed(0, 3, 0, 1.0),)
    assert row.rent == pytest.approx(np.log2(row.final_params / row.host_params) * 7 / 8)
    picky = replace(EARLY, keep_above=99.0)
    assert play_player(Player("x", "schedule", schedule=picky), CONFIG, 5, [1])[0].fossilized == 0
    numb = replace(EARLY, kind="gradient", threshold=1e9)
    assert play_player(Player("x", "schedule", schedule=numb), CONFIG, 5, [1])[0].topology == []
    stalled = replace(EARLY, kind="plateau", threshold=0.9, wait=3)
    assert play_player(Player("x", "schedule", schedule=stalled), CONFIG, 5, [1])[0].started == 1
    never = replace(EARLY, kind="plateau", wait=99)
    assert play_player(Player("x", "schedule", schedule=never), CONFIG, 5, [1])[0].started == 0


def test_drawn_schedules_take_only_legal_actions() -> None:
    rng = np.random.default_rng(1)
    plans = [draw_schedule(kind, rng, CONFIG) for kind in KINDS for _ in range(5)]
    columns = {blueprint_index(f"column_{size}") for size in ("half", "same", "double", "quad")}
    assert {plan.blueprint in columns for plan in plans} == {True, False}
    rows = play(lambda spaces: Scheduled(spaces, plans), CONFIG, 5, range(len(plans)))
    assert not any(row.illegal for row in rows)
    assert all(row.finite for row in rows)
    assert any(row.started for row in rows)


def test_rows_do_not_depend_on_the_fleet() -> None:
    together = play_schedules([EARLY, NEVER], CONFIG, 5, [1, 2])
    alone = [play_schedules([plan], CONFIG, 5, [seed])[0] for plan, seed in ((EARLY, 1), (NEVER, 2))]
    assert together == pytest.approx(np.array(alone), abs=1e-9)


def test_followers_match_their_leader() -> None:
    leader = play_player(Player("x", "schedule", schedule=EARLY), CONFIG, 5, [1, 2])
    scratch = play_player(Player("y", "scratch", leader="x"), CONFIG, 5, [1, 2], leader)
    assert [r.final_params for r in scratch] == [r.final_params for r in leader]
    assert [r.rent for r in scratch] == pytest.approx([np.log2(r.final_params / r.host_params) for r in leader])
    matched = play_player(Player("z", "matched", leader="x"), CONFIG, 5, [1, 2], leader)
    for mine, theirs, whole in zip(matched, leader, scratch, strict=True):
        epoch = whole.training_flops / CONFIG.horizon_epochs
        assert abs(mine.training_flops - theirs.training_flops) <= epoch / 2 + 1
    many = [replace(row, topology=row.topology * 3) for row in leader]
    random = play_player(Player("r", "random", leader="x"), replace(CONFIG, horizon_epochs=20), 5, [1, 2], many)
    assert [row.started for row in random] == [3, 3]
    assert not any(row.illegal for row in random)


def test_static_maximum_fills_all_slots_within_the_budget() -> None:
    built = largest(CONFIG, 5, [1])[0]
    assert [g.slot for g in built] == [0, 1, 2, 3, 4]
    row = play_player(Player("x", "largest"), CONFIG, 5, [1])[0]
    assert row.fossilized == 5
    assert 0.7 < (row.final_params / row.host_params - 1) / CONFIG.budget_ratio <= 1


def test_halving_finds_the_best_schedule_for_each_rent() -> None:
    """Schedule i gains 3 i at a rent of i: at weight 2 the last is best, at weight 5 the first."""
    asked: list[int] = []

    def stand(wanted: object) -> list[tuple[float, float]]:
        rows = [(3.0 * i + 0.1 * seed, float(i)) for i, _, seed in wanted]  # type: ignore[attr-defined]
        asked.append(len(rows))
        return rows

    scores = tune.Scores(stand)
    plans = {i: replace(EARLY, start=i) for i in range(9)}
    assert tune.halve(scores, plans, ["a", "b"], 2.0, tune.RUNGS[:3]).schedule.start == 8
    played = sum(asked)
    assert played == 2 * (9 + 3 * 2 + 1 * 6)  # what was played before is not played again
    assert tune.halve(scores, plans, ["a", "b"], 5.0, tune.RUNGS[:3]).schedule.start == 0


def made_up_row(gain: float, **changes: object) -> Row:
    own = Row(0, gain, 0.0, 90.0, 90.0, 6, 100, 100, 0, [], 0, False, 8, 0, True, 1.0, 1.0, 1.0)
    return replace(own, **changes)  # type: ignore[arg-type]


def test_the_table_matches_the_rows() -> None:
    members = (suite.Member("a"), suite.Member("b", dont_grow=True), suite.Member("c", headline=False))
    rng = np.random.default_rng(0)

    def line(shift: float, policies: int, **changes: object) -> list[dict[str, list[Row]]]:
        noise = rng.standard_normal((policies, 3, 6)) * 0.01
        return [
            {m.family: [made_up_row(shift + x, **changes) for x in noise[p, f]] for f, m in enumerate(members)}
            for p in range(policies)
        ]

    rows = {"never grow": line(0, 1), "tuned periodic": line(1, 1), "per-task best": line(3, 1)}
    rows["fixed column"] = line(1.2, 1)
    rows["policy greedy"] = line(2.5, 3)
    rows["blind greedy"] = line(1.5, 2)
    rows["from scratch"] = line(2, 3)
    found = {t.name: t for t in Results(rows, members, 5.0, resamples=200).targets}
    assert found["share of the gap to the per-task best closed"].value == pytest.approx(0.75, abs=0.02)
    assert all(t.met for t in found.values()), found
    rows["policy greedy"][0]["b"] = [made_up_row(2.5, fossilized=1, finite=False)] * 6
    worse = {t.name: t for t in Results(rows, members, 5.0, resamples=200).targets}
    assert worse["share of don't-grow episodes that end bare"].told == "12 of 18"
    assert worse["episodes with NaN"].told.startswith("6 of")
    assert not worse["episodes with NaN"].met
    b = Results(rows, members, 5.0, resamples=200).families[1]
    assert (b.family, b.dont_grow, b.bare) == ("b", True, pytest.approx(12 / 18))
    assert b.over_never["policy greedy"] == pytest.approx(2.5, abs=0.02)
    assert b.policy_over_fixed is not None
    assert b.policy_over_fixed.mean == pytest.approx(1.3, abs=0.02)
    told = Results(rows, members, 5.0, resamples=200).sentences
    assert told[0].startswith("The policy beats one column of twice the width at epoch 3 by 1.3")
    assert told[1].startswith("The policy beats the tuned periodic schedule by 1.5")
    rows["policy sampled"], rows["per-task best"] = line(1, 3), line(1, 1)
    named = {t.name: t for t in Results(rows, members, 5.0, resamples=200).targets}
    flat = named["share of the gap to the per-task best closed"]
    assert (flat.value, flat.met) == (None, False)
    assert flat.told.startswith("no certain gap: ")
    told = Results(rows, members, 5.0, resamples=200).sentences
    assert told[3].startswith("Sampled instead of greedy, it does not beat the tuned periodic schedule: ")


def _policy(folder: Path, **policy: object) -> Path:
    settings = PolicyConfig(hidden_size=8, encoder_size=8, head_size=8, **policy)  # type: ignore[arg-type]
    network = FactoredRecurrentActorCritic(seed_spaces(5), settings)
    folder.mkdir()
    (folder / "config.yaml").write_text(to_yaml(Config(env=replace(CONFIG, horizon_epochs=(2, 3), inner_steps=2))))
    optimizer = torch.optim.AdamW(network.parameters())
    save_checkpoint(folder / "checkpoints", network, optimizer, LearnerProgress(version=1), (), 8, 3)
    return folder


def test_a_kept_policy_equals_the_checkpoint(tmp_path: Path) -> None:
    run = _policy(tmp_path / "run", blind=True)
    save_policy(load_checkpoint(run), tmp_path / "policy.safetensors")
    kept, own = load_policy(tmp_path / "policy.safetensors"), load_policy(run)
    assert kept.config.blind
    assert all(torch.equal(a, b) for a, b in zip(kept.state_dict().values(), own.state_dict().values(), strict=True))


def test_evaluate_end_to_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluate, "workers", ThreadPoolExecutor)  # the next test starts processes
    run, blind = _policy(tmp_path / "run"), _policy(tmp_path / "blind", blind=True)
    schedules = tmp_path / "schedules.json"
    flags = ["--families", "xor", "majority", "--seeds", "2", "--jobs", "1"]
    command = ["evaluate", "--checkpoint", str(run), "--blind", str(blind), *flags]
    assert main([*command, "--schedules", str(schedules)]) == 2
    assert "--tune" in capsys.readouterr().err
    winner = tune.Winner(EARLY, 0.0, 1)
    config = suite.protocol(replace(CONFIG, horizon_epochs=(2, 3), inner_steps=2), 1.0)
    kinds = {kind: {"1": winner} for kind in KINDS}
    tune.Tuned(tune.rules(config), 1, ("spirals",), kinds, {"xor": winner, "majority": winner}).save(schedules)
    command += ["--schedules", str(schedules), "--player", "gap"]
    assert main(command) == 0
    out = run / "evaluation"
    told = json.loads((out / "results.json").read_text())
    names = {x["name"] for x in told["lines"]}
    assert {"policy greedy", "blind sampled", "from scratch", "per-task best", "gap", "fixed column"} <= names
    assert {"policy at price 0.5", "policy at price 2", "policy at price 4"} <= names
    kept = [json.loads(path.read_text())["seconds"] for path in (out / "cells").rglob("*.json")]
    assert played_seconds(out / "cells") == pytest.approx(sum(kept))
    assert max(kept) > 0
    page = (out / "index.html").read_text()
    assert page.count("<svg") == 5
    assert "http" not in page
    before = {path: path.stat().st_mtime_ns for path in out.rglob("cells/**/*.json")}
    capsys.readouterr()
    assert main([*command, "--seeds", "2"]) == 0
    assert {path: path.stat().st_mtime_ns for path in out.rglob("cells/**/*.json")} == before  # nothing played again
    assert main([*command, "--horizon", "4"]) == 2  # tuned for another horizon
    assert "horizon_epochs" in capsys.readouterr().err


def test_rules_are_evaluated_without_a_policy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["evaluate", "--suite", "train", "--families", "moons", "--seeds", "2", "--jobs", "1"]
    command += ["--horizon", "3", "--inner-steps", "2", "--out", str(tmp_path)]
    assert main(command) == 2
    assert "--player RULE" in capsys.readouterr().err
    assert main([*command, "--player", "sometimes"]) == 2
    assert "'sometimes' is not a rule: the rules are never, periodic" in capsys.readouterr().err
    assert main([*command, "--player", "fixed-column:quad@0", "--price", "2"]) == 0
    told = json.loads((tmp_path / "results.json").read_text())
    names = ["never grow", "static maximum", "fixed column", "periodic in the stream", "fixed-column:quad@0"]
    assert [line["name"] for line in told["lines"]] == names
    assert told["price"] == 2.0
    quad = next(line for line in told["lines"] if line["name"] == "fixed-column:quad@0")
    assert quad["params"] > 1.5


def test_best_schedules_are_selected_only_for_families_without_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """For a task without gain from growth it is never growing; existing entries are kept."""
    monkeypatch.setattr(evaluate, "workers", ThreadPoolExecutor)  # a process takes seconds to start
    schedules = tmp_path / "schedules.json"
    winner = tune.Winner(EARLY, 0.0, 1)
    rules = tune.rules(suite.protocol(replace(PRESETS["research"].env, horizon_epochs=8, inner_steps=8), 8.0))
    kinds = {kind: {"8": winner} for kind in KINDS}
    tune.Tuned(rules, 2, ("spirals",), kinds, {"xor": winner}).save(schedules)
    command = ["evaluate", "--select", "--suite", "mlbench", "--families", "simplex", "--rungs", "1", "--jobs", "1"]
    assert main(command) == 2
    assert "--select needs --schedules FILE" in capsys.readouterr().err
    command += ["--schedules", str(schedules), "--horizon", "8", "--inner-steps", "8", "--price", "8"]
    assert main([*command, "--tune"]) == 2
    assert "leave out --select" in capsys.readouterr().err
    assert main(command) == 0
    best = json.loads(schedules.read_text())["best"]
    assert list(best) == ["xor", "simplex"]
    assert best["xor"]["schedule"]["seeds"] == EARLY.seeds
    assert best["simplex"]["schedule"]["seeds"] == 0
