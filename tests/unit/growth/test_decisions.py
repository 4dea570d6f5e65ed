"""Decisions of the controller: observations, legal actions, refusals, and an unreachable policy."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from actors.growth.decision import read_log
from actors.sessions.session import SessionLost
from actors.slots.observation import BASE, SLOT
from actors.slots.stage import Stage
from tests.support.growth.columns import COLUMN, column_of, count
from tests.support.growth.growing import (
    GROWN,
    UNREACHABLE,
    WAIT,
    ConvNet,
    Run,
    Script,
    advance,
    fossilize,
    germinate,
    mlp,
    prune,
    untrained,
)


def feature(obs: NDArray[np.float32], name: str, slot: int | None = None) -> list[float]:
    table, start = (BASE, 0) if slot is None else (SLOT, sum(f.size for f in BASE) + slot * sum(f.size for f in SLOT))
    for f in table:
        if f.name == name:
            return [float(x) for x in obs[start : start + f.size]]
        start += f.size
    raise KeyError(name)


@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.long) for n in (1, 2, 3))])
def test_added_parameters_never_exceed_the_cap(seed: int) -> None:
    options: dict[str, Any] = {"deterministic": False, "seed": seed, "horizon_epochs": 30}
    own = Run(mlp(), untrained(3), ["0", "1", "3"], max_added_parameters=400, **options)
    for _ in range(29):
        own.epochs(1)
        added = count(own.model) - count(mlp())
        assert added == own.grower.added_parameters
        assert own.grower._growth.params().isolated <= 600
        assert added - own.grower._growth.params().isolated <= 400
    assert {d.op for d in own.grower.log} >= {"GERMINATE", "ADVANCE", "PRUNE"}
    assert not [d.reason for d in own.grower.log if d.reason]


def test_observations_match_what_happened() -> None:
    script = Script([*GROWN, WAIT])
    own = Run(mlp(), script, ["3"], horizon_epochs=8)
    first = own.validate()
    own.grower.step(*first)
    own.epochs(4)
    obs = [o for o, _, _ in script.seen]
    assert [feature(o, "time") for o in obs] == [[e / 8] for e in range(5)]
    assert feature(obs[0], "chance") == [pytest.approx(1 / 3)]
    assert feature(obs[0], "accuracy")[0] == pytest.approx(first[1])
    assert feature(obs[0], "accuracy_known") == [1, 0, 0, 0]
    assert feature(obs[2], "accuracy")[2] == pytest.approx(first[1])
    assert feature(obs[0], "loss")[0] == pytest.approx(math.log1p(first[0] / math.log(3)))
    stages = [Stage.DORMANT, Stage.GERMINATED, Stage.TRAINING, Stage.HOLDING, Stage.HOLDING]  # an instant ramp
    assert [feature(o, "stage", 0).index(1) for o in obs] == stages
    assert [feature(o, "last_op").index(1) for o in obs] == [0, 1, 5, 5, 0]
    assert feature(obs[1], "gradient_norm", 0) == feature(obs[1], "gradient_health", 0) == [0, 0]
    assert feature(obs[2], "gradient_health", 0) == [1, 1]
    assert feature(obs[2], "gradient_norm", 0)[1] > 0
    assert feature(obs[4], "alpha", 0) == [1]
    added, host = own.grower.added_parameters, count(mlp())
    assert feature(obs[4], "budget_used") == [pytest.approx(added / (16 * host))]
    assert feature(obs[4], "growth") == [pytest.approx(math.log2(1 + added / host) / 4)]
    assert [b.tolist() for _, b, _ in script.seen] == [[-1], [3], [3], [3], [3]]
    assert feature(obs[4], "contribution", 0) == feature(obs[4], "interaction", 0) == [0, 0]
    assert [d.contributions for d in own.grower.log] == [[None]] * 5
    assert [d.gradient_health for d in own.grower.log] == [[None], [None], [1.0], [1.0], [1.0]]


@pytest.mark.filterwarnings("error")
def test_a_loss_alone_is_enough_with_its_graph_or_without(request: pytest.FixtureRequest) -> None:
    torch.set_warn_always(True)  # PyTorch says once that a number has a graph
    request.addfinalizer(lambda: torch.set_warn_always(False))
    script = Script(GROWN)
    own = Run(mlp(), script, ["3"], num_classes=None)
    for loss in (4.0, torch.tensor(2.0, requires_grad=True), float("nan")):
        own.train()
        own.grower.step(loss)
    obs = [o for o, _, _ in script.seen]
    assert all(np.isfinite(o).all() for o in obs)
    assert [*feature(obs[1], "chance"), *feature(obs[1], "accuracy_known"), *feature(obs[1], "accuracy")] == [0] * 9
    assert feature(obs[1], "loss")[:2] == pytest.approx([math.log1p(0.5), math.log1p(1.0)])
    assert feature(obs[2], "loss")[0] == 5  # a non-finite loss reads as the worst value
    assert [d.op for d in own.grower.log] == ["GERMINATE", "ADVANCE", "ADVANCE"]


def test_contributions_equal_the_effect_of_switching_seeds_off() -> None:
    script = Script([germinate(0), advance(0), advance(0), germinate(1, 2), advance(1), WAIT])
    own = Run(mlp(), script, ["1", "3"], evaluate=lambda: own.validate()[1])
    own.epochs(5)
    own.train()
    full = own.validate()[1]

    def accuracy(on: dict[int, float]) -> float:
        with own.grower._seeds.activated(on):
            return own.validate()[1]

    one, two, none = accuracy({0: 1.0}), accuracy({1: 1.0}), accuracy({})
    both = accuracy({0: 1.0, 1: 1.0})
    assert full == one  # the second is in TRAINING
    own.grower.step(*own.validate())
    assert own.grower.log[-1].contributions == pytest.approx([100 * (full - none), 100 * (both - one)])
    interaction = own.grower._growth.slots[0].interaction
    assert interaction == pytest.approx(100 * (both - one - two + none))
    assert feature(script.seen[-1][0], "contribution", 0)[0] == 1
    assert own.grower.log[-1].gradient_health == [1.0, 1.0]
    assert own.validate()[1] == full


def test_measuring_has_no_side_effects_and_calibrates_batch_norm() -> None:
    """Training continues bit for bit as without measuring; a seed that only shifts its host contributes nothing."""

    def play(**options: Any) -> Run:
        return Run(ConvNet(), Script(GROWN), ["block.2"], (1, 5, 4), **options)

    plain = play().epochs(6)
    own = play(evaluate=lambda: own.validate()[1], calibrate=lambda: own.model.train()(own.x_y[0]))
    own.epochs(6)
    assert own.losses == plain.losses
    own.train()
    with torch.no_grad():
        for name, p in column_of(own).named_parameters():
            p.copy_(torch.full_like(p, 2.0 if name == "b2" else 0.0))
    shifted = own.validate()[1]
    own.grower.step(*own.validate())
    (contribution,) = own.grower.log[-1].contributions
    assert contribution is not None
    assert abs(contribution) <= 1.1  # BatchNorm takes a shift out; one row of 96 is 1.04 points
    with own.grower._seeds.activated({}):
        assert abs(own.validate()[1] - shifted) > 0.05  # which running statistics would not


def test_a_failed_measurement_is_unknown_and_does_not_end_training(caplog: pytest.LogCaptureFixture) -> None:
    own = Run(mlp(), Script(GROWN), ["3"], evaluate=Mock(side_effect=RuntimeError("no data there"))).epochs(5)
    assert own.grower.log[-1].contributions == [None]
    assert own.grower.stages == {"3": Stage.HOLDING}
    assert "no data there" in caplog.text


def test_an_unreachable_policy_makes_the_epoch_a_no_op(caplog: pytest.LogCaptureFixture) -> None:
    script = Script([*GROWN[:2], UNREACHABLE, RuntimeError("odd"), SessionLost("gone"), advance()])
    own = Run(mlp(), script, ["3"]).epochs(6)
    assert [d.op for d in own.grower.log] == ["GERMINATE", "ADVANCE", "WAIT", "WAIT", "WAIT", "ADVANCE"]
    said = zip(("no server there", "odd", "gone"), own.grower.log[2:5], strict=True)
    assert all(reason in decision.reason and decision.policy_version == -1 for reason, decision in said)
    assert own.losses[:6] == Run(mlp(), Script([])).epochs(2).losses
    assert caplog.text.count("did not answer") == 3


def test_an_illegal_answer_is_not_applied() -> None:
    own = Run(mlp(), Script([fossilize(), (9, 0, 0, 0, 0, 0)]), ["3"]).epochs(2)
    assert [d.op for d in own.grower.log] == ["WAIT", "WAIT"]
    assert ["not legal" in own.grower.log[0].reason, "does not fit" in own.grower.log[1].reason] == [True, True]


def test_a_dry_run_logs_decisions_without_applying_them() -> None:
    own = Run(mlp(), Script(GROWN), ["3"], dry_run=True).epochs(3)
    assert own.losses == Run(mlp(), Script([])).epochs(3).losses
    first = own.grower.log[0]
    assert (first.asked, first.op, first.reason) == ("GERMINATE 3", "WAIT", "dry run")
    assert own.grower.added_parameters == 0


def test_a_vetoed_action_is_not_applied() -> None:
    script = Script([germinate(blueprint=6), germinate(blueprint=1), advance(), prune()])
    own = Run(mlp(), script, ["3"], max_added_parameters=10_000, veto=lambda action: action.blueprint == 6).epochs(3)
    assert [d.reason for d in own.grower.log] == ["veto", "", ""]
    assert [d.op for d in own.grower.log] == ["WAIT", "GERMINATE", "ADVANCE"]
    assert feature(script.seen[1][0], "last_success") == [0]
    broken = Run(mlp(), Script([germinate()]), ["3"], veto=lambda action: {}[0]).epochs(1)
    assert broken.grower.log[0].reason.startswith("veto failed")


def test_decisions_are_appended_to_the_log_file(tmp_path: Path) -> None:
    own = Run(mlp(), Script(GROWN), ["3"], log_file=tmp_path / "log.jsonl").epochs(4)
    assert read_log(tmp_path / "log.jsonl") == own.grower.log
    rows = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [r["op"] for r in rows] == ["GERMINATE", "ADVANCE", "ADVANCE", "WAIT"]
    assert [rows[0][name] for name in ("epoch", "slot", "blueprint")] == [1, "3", "dense"]


def test_nothing_is_decided_after_the_horizon() -> None:
    script = Script([germinate(speed=3), advance(), advance(), WAIT, prune()])
    own = Run(mlp(), script, ["3"], horizon_epochs=4).epochs(10)
    assert len(script.seen) == 3
    assert {d.reason for d in own.grower.log[3:]} == {"the horizon has passed"}
    assert own.grower.log[-1].alphas == [1.0]  # a ramp is walked to its end


def test_a_missing_shadow_call_is_reported(caplog: pytest.LogCaptureFixture) -> None:
    Run(mlp(), Script(GROWN), ["3"], shadow=False).epochs(4)
    assert "learns nothing: call shadow" in caplog.text


@pytest.mark.parametrize(
    ("rule", "first"), [("trial:double@1-3", 7), ("trial:double+same@1-3,surrender=0", 4), ("fixed-column:double@1", 0)]
)
def test_contributions_are_measured_when_the_rule_reads_them(rule: str, first: int) -> None:
    """The decisions are those of a run that measures in every epoch."""
    ops, measured = [], dict[int | None, list[int]]()
    for every in (None, 1):
        torch.manual_seed(0)
        measured[every] = seen = []

        def evaluate() -> float:
            seen.append(own.grower.epoch + 1)  # noqa: B023 - called within this turn
            return own.validate()[1]  # noqa: B023

        options: dict[str, Any] = {"columns": COLUMN, "evaluate": evaluate, "evaluate_every": every}
        own = Run(mlp(), rule, [], horizon_epochs=10, **options)
        own.epochs(11)
        ops.append([(d.op, d.slot) for d in own.grower.log])
    assert ops[0] == ops[1]
    assert set(measured[None]) == {epoch for epoch in measured[1] if epoch >= first} > set()
