"""Groups of features are dropped in some episodes, as they are unknown for some models of users."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from actors.config import EnvConfig
from actors.env.seed_fleet import SeedTrainingFleet
from actors.slots.observation import BASE, SLOT
from tests.support.env.walks import WAIT, grow, tiny_env

GROUPS = {
    "contributions": {"contribution", "worth", "contribution_velocity", "contribution_freshness", "interaction"},
    "accuracy": {"accuracy", "accuracy_known"},
    "train_loss": {"train_loss", "train_loss_known", "overfit"},
    "scores": {"score"},
    "val_rows": {"val_rows"},
}
GROW = [*grow(0, 3), *grow(1, 2)[:2], WAIT]


def split(obs: NDArray[np.float32], slots: int) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    at = 0
    for f in (*BASE, *(f for _ in range(slots) for f in SLOT)):
        found.setdefault(f.name, []).extend(obs[at : at + f.size].tolist())
        at += f.size
    return found


def play(share: float, seed: int, **changes: Any) -> tuple[list[dict[str, list[float]]], list[float]]:
    env = tiny_env(slots=2, column_slots=0, tasks=("spirals",), drop_features=share, horizon_epochs=6, **changes)
    seen, _ = env.reset(seed=seed)
    found, rewards = [split(seen["obs"], 2)], []
    for action in GROW:
        seen, reward, *_ = env.step(action)
        found.append(split(seen["obs"], 2))
        rewards.append(float(reward))
    return found, rewards


def hidden(whole: list[dict[str, list[float]]], other: list[dict[str, list[float]]]) -> set[str]:
    return {name for a, b in zip(whole, other, strict=True) for name in a if a[name] != b[name]}


def test_a_dropped_group_is_unknown_for_a_whole_episode() -> None:
    kinds = set()
    for seed in range(12):
        (whole, paid), (other, also) = play(0.0, seed), play(0.6, seed)
        assert paid == also
        gone = hidden(whole, other)
        dropped = {name for name, features in GROUPS.items() if gone & features}
        assert gone == set[str]().union(*(GROUPS[name] for name in dropped)), "whole groups only"
        assert all(not any(step[name]) for step in other for name in gone)
        kinds.add(frozenset(dropped))
        assert hidden(other, play(0.6, seed)[0]) == set(), "it follows from the seed"
    assert len(kinds) > 6
    assert set[str]().union(*kinds) == set(GROUPS)


@pytest.mark.parametrize("name", [*GROUPS, "price"])
def test_hidden_features_are_unknown_in_every_episode(name: str) -> None:
    for seed in range(3):
        (whole, paid), (other, also) = play(0.0, seed), play(0.0, seed, hidden_features=(name,))
        assert paid == also, "the policy still pays the price"
        assert hidden(whole, other) == GROUPS.get(name, {"price", "compute_price", "worth"})
        if name == "price":
            first = other[0]
            assert first["price"] + first["compute_price"] == [0.0] * 3, "one point per doubling, none for compute"


def test_groups_are_dropped_with_the_configured_probability() -> None:
    config = EnvConfig(
        tasks=("spirals",), slots=1, column_slots=0, horizon_epochs=1, inner_steps=1, drop_features=0.3, device="cpu"
    )
    fleet = SeedTrainingFleet(config, 200, 0)
    fleet.reset(range(200))
    gone = np.array([[name in e.hidden_features for name in GROUPS] for e in fleet.episodes])
    assert np.all(np.abs(gone.mean(0) - 0.3) < 0.1)
    assert 0.02 < (gone[:, 0] & gone[:, 1]).mean() < 0.18  # drawn independently
