"""Rules by name: what a name means, what a rule does in an episode, and that a bad name is one clear line."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tamiyo
from actors.blueprints.family import blueprint_index
from actors.config import ConfigError
from actors.rules.names import DEFAULT_STREAM_RULE, is_rule, parse_rule, rule_policy
from actors.rules.reader import ObservationReader
from actors.sessions.local import LocalRule
from actors.slots.spaces import seed_spaces
from actors.slots.stage import BLENDED, Stage

SETTINGS: dict[str, Any] = {"tasks": ("rings",), "horizon_epochs": 12, "inner_steps": 8, "host_width": 4}


def play(rule: str, **settings: Any) -> tuple[list[str], Any]:
    """Play one episode through a session; return its ops and the environment after it."""
    env = tamiyo.make_env(**(SETTINGS | settings)).unwrapped
    session = LocalRule(rule).open(env.spaces)
    seen, info = env.reset(seed=1)
    ended, ops = False, []
    while not ended:
        answer = session.step(seen["obs"], seen["blueprint_indices"], info["masks"])
        seen, _, terminated, truncated, info = env.step(answer.action)
        assert "illegal_action" not in info
        ops.append(env.spaces.action.heads[0].choices[answer.action[0]])
        ended = terminated or truncated
    return ops, env


def test_names_are_told_from_files_and_servers() -> None:
    assert all(map(is_rule, ("never", "periodic", "periodic:every=2", "fixed-column:double@3", "gap", "gap:gap=0.2")))
    assert not any(map(is_rule, ("runs/never", "localhost:50051", "policy.safetensors", "")))


@pytest.mark.parametrize(
    "name",
    ["sometimes", "never:3", "fixed-column", "fixed-column:double", "fixed-column:huge@3", "fixed-column:quad*@3",
     "fixed-column:quad*0@3", "fixed-column:quad*9@3", "periodic:evry=2",
     "trial:double", "trial:huge@1-2", "trial:same+same@0-1", "trial:same@0-0",
     "periodic:every=x", "periodic:every=0", "periodic:blueprint=none", "periodic:alpha=0.3", "gap:size=none", "gap:1"],
)  # fmt: skip
def test_a_bad_name_is_one_line_that_lists_the_rules(name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        rule_policy(name, seed_spaces(3))
    message = str(caught.value)
    assert "\n" not in message
    assert all(
        part in message for part in (repr(name), "never", "periodic:", "fixed-column:SIZE[*COLUMNS]@EPOCH", "gap:")
    )


def test_two_columns_are_grown_one_after_the_other() -> None:
    ops, env = play("fixed-column:half*2@1", column_slots=3)
    assert ops[:2] == ["WAIT", "GERMINATE"]
    assert ops.count("GERMINATE") == 2
    assert [slot.stage for slot in env.episode.lifecycle.slots[env.config.slots :]] == [Stage.FOSSILIZED] * 2 + [
        Stage.DORMANT
    ]


@pytest.mark.parametrize("epoch", [-9, -10, -11])
def test_a_column_that_is_counted_back_from_the_end_joins_at_once(epoch: int) -> None:
    ops, env = play(f"fixed-column:double@{epoch}")
    start = 12 + epoch
    later = ["ADVANCE", "ADVANCE", "FOSSILIZE", "WAIT", "WAIT"]
    assert ops[: start + 6] == ["WAIT"] * start + ["GERMINATE", *later]
    assert env.episode.lifecycle.slots[env.config.slots].stage is Stage.FOSSILIZED


def trial(rule: str, **settings: Any) -> tuple[list[str], list[Stage]]:
    ops, env = play(rule, **{"host_width": 2, "inner_steps": 24} | settings)
    return ops, [slot.stage for slot in env.episode.lifecycle.slots[env.config.slots :]]


def test_a_trial_keeps_the_column_that_pays_and_prunes_the_others() -> None:
    ops, stages = trial("trial:double+quad@1-3", rent_weight=0.01)
    assert ops == [
        "WAIT",
        "GERMINATE",
        "ADVANCE",
        "GERMINATE",
        "ADVANCE",
        *["WAIT"] * 4,
        "ADVANCE",
        "PRUNE",
        "FOSSILIZE",
    ]
    assert sorted(stages[:2]) == [Stage.FOSSILIZED, Stage.EMBARGOED]


def test_a_trial_that_does_not_pay_leaves_the_model_as_it_was() -> None:
    ops, stages = trial("trial:double+quad@0-2", rent_weight=500.0)
    assert ops[-2:] == ["PRUNE", "PRUNE"]
    assert ops.count("ADVANCE") == 2  # to TRAINING
    assert not any(stage in BLENDED for stage in stages)
    bare = play("never", host_width=2, inner_steps=24, rent_weight=500.0)[1].episode
    grown = play("trial:double+quad@0-2", host_width=2, inner_steps=24, rent_weight=500.0)[1].episode
    assert grown.accuracies == bare.accuracies


def test_the_default_of_periodic_is_the_named_stream_rule() -> None:
    assert parse_rule("periodic") == parse_rule(DEFAULT_STREAM_RULE)
    assert parse_rule("periodic:every=7") != parse_rule("periodic")


def test_a_fixed_column_joins_four_epochs_after_it_germinates() -> None:
    ops, env = play("fixed-column:double@3")
    assert ops == ["WAIT"] * 3 + ["GERMINATE", "ADVANCE", "ADVANCE", "WAIT", "WAIT", "FOSSILIZE"] + ["WAIT"] * 3
    slots = env.episode.lifecycle.slots
    column = slots[env.config.slots]  # the first column slot
    assert (column.stage, column.alpha) == (Stage.FOSSILIZED, 0.5)
    assert column.blueprint == blueprint_index("column_double")
    assert sum(slot.active for slot in slots) == 1


def test_without_column_slots_a_fixed_column_only_waits() -> None:
    assert set(play("fixed-column:double@3", column_slots=0)[0]) == {"WAIT"}


def test_periodic_fills_the_stream_and_leaves_the_column_slots_empty() -> None:
    ops, env = play("periodic:every=2,seeds=2,blueprint=norm,ramp=0")
    assert ops.count("GERMINATE") == ops.count("FOSSILIZE") == 2
    assert [slot.active for slot in env.episode.lifecycle.slots] == [True, True, False, False, False]


def test_a_gap_rule_grows_a_host_that_is_too_small_and_keeps_what_pays() -> None:
    rule, small = "gap:gap=0.5,still=0.5,epochs=1,size=quad", {"host_width": 2, "inner_steps": 24}
    free, _ = play(rule, rent_weight=0.0, **small)
    assert "FOSSILIZE" in free
    assert "PRUNE" not in free
    dear, _ = play(rule, rent_weight=500.0, **small)
    assert "PRUNE" in dear
    assert "FOSSILIZE" not in dear


def test_a_gap_rule_does_not_grow_without_a_training_loss() -> None:
    spaces = seed_spaces(5)
    env = tamiyo.make_env(**SETTINGS).unwrapped
    seen, info = env.reset(seed=1)
    session = LocalRule("gap:gap=9,still=0.9,epochs=1,start=0").open(spaces)
    for _ in range(6):  # before the first epoch there is no training loss
        assert session.step(seen["obs"], seen["blueprint_indices"], info["masks"]).action[0] == 0


def test_a_session_continues_from_its_exported_state() -> None:
    env = tamiyo.make_env(**SETTINGS).unwrapped
    seen, info = env.reset(seed=1)
    arguments = (seen["obs"], seen["blueprint_indices"], info["masks"])
    session = LocalRule("fixed-column:same@2").open(env.spaces)
    session.step(*arguments)
    session.step(*arguments)
    continued = LocalRule("fixed-column:same@2").open(env.spaces, state=session.exported)
    assert continued.step(*arguments).action[0] == session.step(*arguments).action[0] == 1
    assert LocalRule("fixed-column:same@2").open(env.spaces).step(*arguments).action[0] == 0


def test_the_reader_inverts_the_scales_of_the_observation() -> None:
    env = tamiyo.make_env(**SETTINGS, rent_weight=3.0).unwrapped
    ops, env = play("fixed-column:double@3", rent_weight=3.0)
    assert ops
    obs = env.episode.observation()["obs"][None]
    reader = ObservationReader(env.spaces)
    np.testing.assert_allclose(reader.price(obs), 3.0, rtol=1e-5)
    np.testing.assert_allclose(reader.doublings(obs), env.episode.growth.rent(), rtol=1e-5)
    column = env.episode.lifecycle.slots[env.config.slots]
    np.testing.assert_allclose(reader.points(obs)[0, env.config.slots], column.contribution, rtol=1e-4)
    assert np.isnan(reader.points(obs)[0, 0])
    assert reader.epochs_in_stage(obs)[0, env.config.slots] == column.epochs_in_stage
    losses = env.episode.val_losses[-1], env.episode.train_losses[-1]
    for loss, name in zip(losses, ("loss", "train_loss"), strict=True):
        np.testing.assert_allclose(reader.relative_loss(obs, name)[0], loss / env.episode.task.chance_loss, rtol=1e-5)
