"""Rules by name: what a name means, what a rule does in an episode, and that a bad name is one clear line."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tamiyo
from actors.blueprints.family import blueprint_index
from actors.config import ConfigError, EnvConfig
from actors.env.episode.host_episode import HostEpisode
from actors.rules.names import is_rule, rule_policy
from actors.rules.reader import ObservationReader
from actors.sessions.local import LocalRule
from actors.slots.spaces import seed_spaces
from actors.slots.stage import Stage
from tests.support.env.scripted_host import Scripted
from tests.support.env.scripted_host import play as play_scripted
from tests.support.env.walks import Action

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
    ["sometimes", "never:3", "fixed-column", "fixed-column:huge@3", "fixed-column:quad*0@3", "fixed-column:quad*9@3",
     "trial:double", "trial:huge@1-2", "trial:same+same@0-1", "trial:same@0-0", "trial:same@1-2,surrender=x",
     "trial:same@1-2,surrender=-1", "trial:same@1-2,surrender=nan", "trial:same@1-2,alpha=0.6", "trial:same@1-2,alpha",
     "periodic:evry=2", "periodic:every=x", "periodic:every=0", "periodic:blueprint=none", "gap:size=none", "gap:1"],
)  # fmt: skip
def test_a_bad_name_is_one_line_that_lists_the_rules(name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        rule_policy(name, seed_spaces(3))
    message = str(caught.value)
    assert "\n" not in message
    for part in (repr(name), "never", "periodic:", "fixed-column:SIZE[*COLUMNS]@EPOCH", "gap:"):
        assert part in message


def test_two_columns_are_grown_one_after_the_other() -> None:
    ops, env = play("fixed-column:half*2@1", column_slots=3)
    assert ops[:2] == ["WAIT", "GERMINATE"]
    assert ops.count("GERMINATE") == 2
    stages = [slot.stage for slot in env.episode.lifecycle.slots[env.config.slots :]]
    assert stages == [Stage.FOSSILIZED, Stage.FOSSILIZED, Stage.DORMANT]


@pytest.mark.parametrize(("epoch", "start", "held"), [(3, 3, 2), (-9, 3, 0), (-10, 2, 0), (-11, 1, 0)])
def test_a_fixed_column_joins_after_it_germinates(epoch: int, start: int, held: int) -> None:
    """Four epochs later, or at once if it is counted back from the end."""
    ops, env = play(f"fixed-column:double@{epoch}")
    grown = ["GERMINATE", "ADVANCE", "ADVANCE", *["WAIT"] * held, "FOSSILIZE"]
    assert ops == ["WAIT"] * start + grown + ["WAIT"] * (12 - start - len(grown))
    slots = env.episode.lifecycle.slots
    column = slots[env.config.slots]  # the first column slot
    assert (column.stage, column.alpha) == (Stage.FOSSILIZED, 0.5)
    assert column.blueprint == blueprint_index("column_double")
    assert sum(slot.active for slot in slots) == 1


GROW = ["WAIT", "GERMINATE", "ADVANCE"]


def test_a_trial_keeps_the_column_that_pays_and_prunes_the_others() -> None:
    ops, env = play("trial:double+quad@1-3", host_width=2, inner_steps=24, points_per_doubling=0.01)
    assert ops == [*GROW, *GROW[1:], *["WAIT"] * 4, "ADVANCE", "PRUNE", "FOSSILIZE"]
    stages = [slot.stage for slot in env.episode.lifecycle.slots[env.config.slots :]]
    assert sorted(stages[:2]) == [Stage.FOSSILIZED, Stage.EMBARGOED]


def test_a_trial_begins_with_the_size_named_first_and_joins_at_its_alpha() -> None:
    run = scripted_trial("trial:quad+double@1-3,alpha=0.7", {"column_double": 1.1, "column_quad": 1.2})
    first, second = run.episode.lifecycle.slots[run.episode.config.slots :]
    assert (first.blueprint, first.stage, first.alpha) == (blueprint_index("column_quad"), Stage.FOSSILIZED, 0.7)
    assert second.stage is not Stage.FOSSILIZED


def scripted_trial(rule: str, worth: dict[str, float], **settings: Any) -> Scripted:
    """Follow a rule on a host on which columns contribute what `worth` says, in multiples of their price."""
    config = EnvConfig(**(SETTINGS | {"points_per_doubling": 2.0, "points_per_compute_doubling": 0.0} | settings))
    session = LocalRule(rule).open(seed_spaces(config.total_slots))
    held: list[HostEpisode] = []

    def follow(episode: HostEpisode) -> Action:
        held[:] = [episode]
        seen = episode.observation()
        return session.step(seen["obs"], seen["blueprint_indices"], episode.growth.masks()).action

    def accuracy(epoch: int, on: frozenset[int]) -> float:
        if not on:
            return 50.0
        growth, slot = held[0].growth, min(on)  # sets of two columns matter only once one has joined
        blueprint = growth.slots[slot].blueprint
        price = 2.0 * np.log2(1 + growth.seed_cost(slot, blueprint, 0) / growth.host_params)
        return 50.0 + worth[held[0].host.family.names[blueprint]] * float(price)

    return play_scripted(config, accuracy, follow)


HALF, BOTH = "trial:double@1-2,surrender=0.5", "trial:double+quad@1-2,surrender=0.5"


@pytest.mark.parametrize(
    ("rule", "worth", "settings", "rest"),
    [
        (HALF, {"column_double": 0.49}, {}, [*["WAIT"] * 3, "PRUNE", *["WAIT"] * 5]),  # below half of its price
        (HALF, {"column_double": 0.51}, {}, [*["WAIT"] * 7, "PRUNE", "WAIT"]),  # it stays, but does not pay
        (HALF, {"column_double": 1.01}, {}, [*["WAIT"] * 7, "ADVANCE", "FOSSILIZE"]),
        (HALF, {"column_double": 9.0}, {"hidden_features": ("contributions",)}, [*["WAIT"] * 7, "PRUNE", "WAIT"]),
        (BOTH, {"column_double": 0.2, "column_quad": 1.2}, {},
         [*GROW[1:], "WAIT", "PRUNE", *["WAIT"] * 3, "ADVANCE", "FOSSILIZE"]),
    ],
)  # fmt: skip
def test_a_column_is_given_up_half_way_if_it_contributes_too_little(
    rule: str, worth: dict[str, float], settings: dict[str, Any], rest: list[str]
) -> None:
    """Where contributions are unknown it is not, and the host ends bare; of two columns the other one joins."""
    run = scripted_trial(rule, worth, **settings)
    assert run.episode.timeline.ops == GROW + rest
    growth = run.episode.growth
    joined = [blueprint_index(max(worth, key=worth.__getitem__))] if "FOSSILIZE" in rest else []
    assert [growth.slots[s].blueprint for s in growth.blended()] == joined


@pytest.mark.parametrize(("worth", "gone"), [(-0.1, True), (0.1, False)])
def test_without_a_price_a_column_is_given_up_if_it_harms(worth: float, gone: bool) -> None:
    run = scripted_trial(HALF, {"column_double": worth}, points_per_doubling=0.0)
    assert ("PRUNE" in run.episode.timeline.ops) == gone


def test_giving_up_saves_compute_on_a_real_host() -> None:
    """Where a column cannot pay, the host ends as it would have, and compute is less than that of the whole trial."""
    settings = {"host_width": 2, "inner_steps": 24, "points_per_doubling": 500.0, "points_per_compute_doubling": 1.0}
    runs = {rule: play(rule, **settings) for rule in ("never", "trial:quad@1-2", "trial:quad@1-2,surrender=0.5")}
    never, whole, given_up = (env.episode for _, env in runs.values())
    assert never.accuracies == whole.accuracies == given_up.accuracies
    assert 0.0 == never.standing.compute_doublings < given_up.standing.compute_doublings
    assert given_up.standing.compute_doublings < whole.standing.compute_doublings - 0.3
    ops = runs["trial:quad@1-2,surrender=0.5"][0]
    assert ops == [*GROW, *["WAIT"] * 3, "PRUNE", *["WAIT"] * 5]


def test_without_column_slots_a_fixed_column_only_waits() -> None:
    assert set(play("fixed-column:double@3", column_slots=0)[0]) == {"WAIT"}


def test_periodic_fills_the_stream_and_leaves_the_column_slots_empty() -> None:
    ops, env = play("periodic:every=2,seeds=2,blueprint=norm,ramp=0")
    assert ops.count("GERMINATE") == ops.count("FOSSILIZE") == 2
    assert [slot.active for slot in env.episode.lifecycle.slots] == [True, True, False, False, False]


def test_a_gap_rule_grows_a_host_that_is_too_small_and_keeps_what_pays() -> None:
    for price, last in ((0.0, "FOSSILIZE"), (500.0, "PRUNE")):
        rule, small = "gap:gap=0.5,still=0.5,epochs=1,size=quad", {"host_width": 2, "inner_steps": 24}
        ops, _ = play(rule, points_per_doubling=price, **small)
        assert {"FOSSILIZE", "PRUNE"} & set(ops) == {last}


def test_a_gap_rule_does_not_grow_without_a_training_loss() -> None:
    env = tamiyo.make_env(**SETTINGS).unwrapped
    seen, info = env.reset(seed=1)
    session = LocalRule("gap:gap=9,still=0.9,epochs=1,start=0").open(env.spaces)
    for _ in range(6):  # before the first epoch there is no training loss
        assert session.step(seen["obs"], seen["blueprint_indices"], info["masks"]).action[0] == 0


def test_the_reader_inverts_the_scales_of_the_observation() -> None:
    _, env = play("fixed-column:double@3", points_per_doubling=3.0, points_per_compute_doubling=0.25)
    obs, episode, reader = env.episode.observation()["obs"][None], env.episode, ObservationReader(env.spaces)
    column, doublings, chance = episode.lifecycle.slots[3], episode.standing.doublings, episode.task.chance_loss
    for found, expected in (
        (reader.price(obs), 3.0),
        (reader.compute_price(obs), 0.25),
        (4.0 * reader.base(obs, "growth")[:, 0], doublings),
        (reader.sizes(obs)[0], doublings * np.eye(5)[3]),  # the one seed has added all doublings
        (reader.points(obs)[0, [0, 3]], [np.nan, column.contribution]),
        (reader.epochs_in_stage(obs)[0, 3], column.epochs_in_stage),
        (reader.relative_loss(obs, "loss")[0], episode.val_losses[-1] / chance),
        (reader.relative_loss(obs, "train_loss")[0], episode.train_losses[-1] / chance),
    ):
        np.testing.assert_allclose(found, expected, rtol=1e-4)
