"""Observations follow the feature table: positions, ranges, and values that are unknown, some in whole episodes."""

from __future__ import annotations

from math import log2
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from actors.blueprints.family import blueprint_index
from actors.config import EnvConfig
from actors.env.episode.host_episode import HostEpisode
from actors.slots.model_view import ModelView, TrainingState
from actors.slots.objective import Prices
from actors.slots.observation import BASE, SLOT, bounds, observe
from actors.slots.slot_shape import SlotKind
from actors.slots.spaces import seed_spaces
from actors.slots.stage import Slot, Stage
from actors.types.actions import Op
from tests.support.env.model_counter import ModelCounter, counted
from tests.support.env.reference_env import ReferenceEnv
from tests.support.env.reference_network import ReferenceColumn, ReferenceNetwork
from tests.support.env.walks import WAIT, act, grow, random_legal, tiny_env, tiny_reference


def places(slots: int) -> dict[str, slice]:
    """Return the indices of each feature, `name` or `slot/name`, from the order and sizes in the table."""
    names = [(f.name, f.size) for f in BASE] + [(f"{s}/{f.name}", f.size) for s in range(slots) for f in SLOT]
    ends = np.cumsum([size for _, size in names]).tolist()
    return {name: slice(end - size, end) for (name, size), end in zip(names, ends, strict=True)}


def legal_costs(env: ReferenceEnv, counter: ModelCounter, slot: int) -> list[float]:
    """Return the feature `costs` from seeds that are made and counted here, with the dearest blend."""
    masks, host, x = env.masks(), env.episode.host, env.train_x[:1]
    legal = np.flatnonzero(masks.rest[Op.GERMINATE, slot, : len(host.family.blueprints)]).tolist()
    found = []
    for blueprint in legal if masks.slot[Op.GERMINATE, slot] else []:
        made = ReferenceNetwork(host, np.random.default_rng(0), column_slots=8)
        made.germinate(slot, blueprint, 2, np.random.default_rng(0))
        seed, own = made.seeds[slot], made.seeds[slot].group.params
        if isinstance(seed, ReferenceColumn):
            flops = counted(seed.host, own, x, lambda s, h: h)
        else:  # it learns in a pass of its own through the host
            grown = seed.blueprint.forward
            flops = counted(host, made.group.params, x, lambda s, h, g=grown, p=own: g(p, h, None) if s == slot else h)
        size = log2(1.0 + sum(t.numel() for t in own.values()) / counter.model_params())
        found.append((size, counter.effort(flops)))
    cheap, dear = min(found, default=(0.0, 0.0)), max(found, default=(0.0, 0.0))
    return [float(bool(found)), *(np.clip([cheap[0], dear[0], cheap[1], dear[1]], -8, 8) / 4.0).tolist()]


def seed_features(env: ReferenceEnv, counter: ModelCounter, slot: int) -> list[float]:
    """Return the features `size` and `effort` of a seed."""
    seed, model, own = env.network.seeds[slot], counter.model_params(), counter.seed_params(slot)
    joined = slot in counter.blended()
    without = model - own if joined else model
    size = log2((without + own) / (without or counter.host_params()))  # it may be all that is left
    alone = counter.forward({slot: 1.0})
    if joined or isinstance(seed, ReferenceColumn):  # it makes no pass of its own through the host
        alone -= counter.forward({})
    return [size / 4.0, counter.effort(alone) / 4.0]


HALF = blueprint_index("column_half")
REPLACED = [*grow(1, 3, blend=2), *grow(3, HALF), act(Op.FOSSILIZE, 3)]


@pytest.mark.parametrize(("slots", "task", "seeds"), [(1, "spirals", 2), (5, "wine", 3), (8, "spirals", 1)])
def test_observations_of_random_episodes_fit_the_table(slots: int, task: str, seeds: int) -> None:
    columns = min(2, slots - 1)
    settings = {"points_per_doubling": (0.25, 8.0), "points_per_compute_doubling": (1 / 32, 1.0)}
    env = tiny_reference(slots=slots - columns, column_slots=columns, tasks=(task,), host_lr=0.1, **settings)
    where, (low, high), rng = places(slots), bounds(slots), np.random.default_rng(slots)
    assert max(p.stop for p in where.values()) == env.spaces.obs_size
    for seed in range(seeds):
        script = REPLACED if seed == 2 else []
        seen, _ = env.reset(seed=seed)
        counter, terminated, epoch = ModelCounter(env), False, 0
        while True:
            obs, episode = seen["obs"], env.episode
            assert ((obs >= low - 1e-6) & (obs <= high + 1e-6)).all()  # not a number is neither
            p, c = episode.prices
            ratio = episode.train_losses[-1] / episode.val_losses[-1] if epoch else None
            stages = [slot.stage for slot in episode.lifecycle.slots]
            used = [s for s in stages if s != Stage.DORMANT] or [Stage.DORMANT]
            added = max(counter.model_params() - counter.host_params(), 0)
            accuracy = env.network.evaluate(*env.observed, episode.growth.blended()).accuracy
            expected = {
                "time": epoch / 12,
                "price": log2(p) / 8,
                "compute_price": [1.0, log2(c) / 8] if c else [0.0, 0.0],
                "val_rows": [1.0, log2(len(env.observed[0])) / 16],
                "compute": counter.compute_doublings() / 4,
                "growth": counter.doublings() / 4,
                "overfit": [1.0, max(log2(ratio) / 8, -1.0)] if ratio else [0.0, 0.0],
                "last_op": np.eye(6)[episode.growth.last_op],
                "stage_counts": [used.count(s) / len(used) for s in Stage],
                "budget_used": added / episode.growth.budget_params,
            }
            for s, slot in enumerate(episode.lifecycle.slots):
                expected[f"{s}/stage"] = np.eye(len(Stage))[slot.stage]
                expected[f"{s}/alpha"] = slot.alpha
                expected[f"{s}/size"], expected[f"{s}/effort"] = (
                    seed_features(env, counter, s) if slot.active else (0.0, 0.0)
                )
                if epoch % 3 == 0:
                    expected[f"{s}/costs"] = legal_costs(env, counter, s)
                assert seen["blueprint_indices"][s] == (slot.blueprint if slot.active else -1)
                assert obs[where[f"{s}/contribution"]][0] == (slot.contribution is not None)
            for name, value in expected.items():
                np.testing.assert_allclose(obs[where[name]], value, rtol=1e-5, atol=1e-6, err_msg=name)
            assert obs[where["accuracy"]][0] == pytest.approx(accuracy / 100)
            if terminated:
                break
            action = script[epoch] if epoch < len(script) else random_legal(rng, env)
            seen, _, terminated, _, _ = env.step(action)
            counter.end_epoch()
            epoch += 1
        if script:
            assert counter.replaced()


def view(slot: Slot) -> ModelView:
    training = TrainingState(0, 10, 1.0, 3, [1.0], [50.0], [], None, None)
    prices, kinds = Prices(2.0, 0.0), [SlotKind.STREAM]
    return ModelView(training, Op.WAIT, True, 100, 400.0, prices, 0.0, [0], 0, kinds, [None], [0.0], [0.0], [slot])


MAYBE = "contribution contribution_velocity interaction gradient_norm gradient_health gradient_health_prev score"


@pytest.mark.parametrize("name", MAYBE.split())
def test_unknown_differs_from_a_measured_zero(name: str) -> None:
    stage = Stage.DORMANT if name == "score" else Stage.TRAINING
    unknown, zero, one = (
        observe(view(Slot(stage, **{name: value})))[places(1)[f"0/{name}"]].tolist() for value in (None, 0.0, 1.0)
    )
    assert (unknown, zero) == ([0.0, 0.0], [1.0, 0.0])
    assert one[0] == 1.0
    assert one[1] > 0.0


def test_what_a_seed_is_worth_is_its_contribution_less_the_price_of_its_doublings() -> None:
    """At 2 points per doubling, a seed of one and a half doublings that contributes 10 points is worth 7."""
    where = places(1)
    sized = view(Slot(Stage.TRAINING, contribution=10.0))
    seen = observe(sized._replace(sizes=[1.5]))[where["0/worth"]]
    np.testing.assert_allclose(seen, [1.0, np.log(8.0) / np.log(101.0)], rtol=1e-6)
    assert observe(view(Slot(Stage.TRAINING)))[where["0/worth"]].tolist() == [0.0, 0.0]


def test_missing_history_is_marked_unknown() -> None:
    where, env = places(5), tiny_reference()
    seen, _ = env.reset(seed=0)
    for epoch in range(5):
        known = min(epoch, 3)
        assert seen["obs"][where["history_known"]].tolist() == [1.0] * known + [0.0] * (3 - known)
        newest_first = env.episode.observed_accuracies[::-1][:4]
        assert seen["obs"][where["accuracy"]][: len(newest_first)] == pytest.approx(np.array(newest_first) / 100)
        assert not seen["obs"][where["loss"]][known + 1 :].any()
        seen, *_ = env.step(WAIT)


def test_freshness_is_a_power_of_the_epochs_since_the_measurement() -> None:
    where, env = places(3), tiny_reference(contribution_every=4)
    env.reset(seed=0)
    plan = {0: act(Op.GERMINATE, 1, 3), 1: act(Op.ADVANCE, 1)}
    fresh = []
    for epoch in range(10):
        seen, *_ = env.step(plan.get(epoch, WAIT))
        fresh.append(float(seen["obs"][where["1/contribution_freshness"]][0]))
    expected = [0, 0, 0, 1, 0.9, 0.81, 0.729, 1, 0.9, 0.81]  # measured in epochs 4 and 8
    assert fresh == pytest.approx(expected)


def test_with_hidden_time_no_feature_reveals_the_epoch() -> None:
    """From the eighth epoch on, an unchanged host with a fossilized seed has the same observation in every epoch."""

    def seen(epoch: int, in_stage: int, hidden: bool) -> NDArray[np.float32]:
        old = view(Slot(Stage.FOSSILIZED, blueprint=1, epochs_in_stage=in_stage, age_epochs=in_stage + 5))
        return observe(old._replace(training=old.training._replace(epoch=epoch, time_hidden=hidden)))

    assert np.array_equal(seen(15, 8, hidden=True), seen(25, 20, hidden=True))
    assert not np.array_equal(seen(15, 8, hidden=False), seen(25, 20, hidden=False))


GROUPS = {
    "contributions": {"contribution", "worth", "contribution_velocity", "contribution_freshness", "interaction"},
    "accuracy": {"accuracy", "accuracy_known"},
    "train_loss": {"train_loss", "train_loss_known", "overfit"},
    "scores": {"score"},
    "val_rows": {"val_rows"},
}
GROW = [*grow(0, 3), *grow(1, 2)[:2], WAIT]


Features = dict[str, list[float]]


def split(obs: NDArray[np.float32]) -> Features:
    return {name: obs[where].tolist() for name, where in places(2).items()}


def play(share: float, seed: int, **changes: Any) -> tuple[list[Features], list[float]]:
    env = tiny_env(slots=2, column_slots=0, drop_features=share, horizon_epochs=6, **changes)
    start, _ = env.reset(seed=seed)
    steps = [env.step(action) for action in GROW]
    return [split(seen["obs"]) for seen in (start, *(step[0] for step in steps))], [float(step[1]) for step in steps]


def hidden(whole: list[Features], other: list[Features]) -> set[str]:
    """Return the names of the features that differ, of all slots alike."""
    return {name.split("/")[-1] for a, b in zip(whole, other, strict=True) for name in a if a[name] != b[name]}


def test_a_dropped_group_is_unknown_for_a_whole_episode() -> None:
    kinds = set()
    for seed in range(12):
        (whole, paid), (other, also) = play(0.0, seed), play(0.6, seed)
        assert paid == also
        gone = hidden(whole, other)
        dropped = {name for name, features in GROUPS.items() if gone & features}
        assert gone == set[str]().union(*(GROUPS[name] for name in dropped))
        assert not any(any(step[name]) for step in other for name in step if name.split("/")[-1] in gone)
        kinds.add(frozenset(dropped))
        assert other == play(0.6, seed)[0]
    assert len(kinds) > 6
    assert set[str]().union(*kinds) == set(GROUPS)


@pytest.mark.parametrize("name", [*GROUPS, "price"])
def test_hidden_features_are_unknown_in_every_episode(name: str) -> None:
    for seed in range(3):
        (whole, paid), (other, also) = play(0.0, seed), play(0.0, seed, hidden_features=(name,))
        assert paid == also
        assert hidden(whole, other) == GROUPS.get(name, {"price", "compute_price", "worth"})
        if name == "price":
            assert other[0]["price"] + other[0]["compute_price"] == [0.0] * 3  # as one point per doubling alone


def test_groups_are_dropped_with_the_configured_probability() -> None:
    config = EnvConfig(tasks=("spirals",), drop_features=0.3)
    episodes = [HostEpisode(config, 0, seed, seed_spaces(config.total_slots).action) for seed in range(200)]
    gone = np.array([[name in e.hidden_features for name in GROUPS] for e in episodes])
    assert np.all(np.abs(gone.mean(0) - 0.3) < 0.1)
    assert 0.02 < (gone[:, 0] & gone[:, 1]).mean() < 0.18  # drawn independently
