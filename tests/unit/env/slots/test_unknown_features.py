"""Groups of features are dropped in some episodes, as they are unknown for some models of users."""

from __future__ import annotations

from itertools import islice
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from actors.config import EnvConfig
from actors.env.episode.host_episode import HostEpisode
from actors.slots.observation import BASE, SLOT
from actors.slots.spaces import seed_spaces
from tests.support.env.walks import WAIT, grow, tiny_env

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
    found: Features = {}
    values = iter(obs.tolist())
    for f in (*BASE, *SLOT, *SLOT):
        found.setdefault(f.name, []).extend(islice(values, f.size))
    return found


def play(share: float, seed: int, **changes: Any) -> tuple[list[Features], list[float]]:
    env = tiny_env(slots=2, column_slots=0, drop_features=share, horizon_epochs=6, **changes)
    start, _ = env.reset(seed=seed)
    steps = [env.step(action) for action in GROW]
    return [split(seen["obs"]) for seen in (start, *(step[0] for step in steps))], [float(step[1]) for step in steps]


def hidden(whole: list[Features], other: list[Features]) -> set[str]:
    return {name for a, b in zip(whole, other, strict=True) for name in a if a[name] != b[name]}


def test_a_dropped_group_is_unknown_for_a_whole_episode() -> None:
    kinds = set()
    for seed in range(12):
        (whole, paid), (other, also) = play(0.0, seed), play(0.6, seed)
        assert paid == also
        gone = hidden(whole, other)
        dropped = {name for name, features in GROUPS.items() if gone & features}
        assert gone == set[str]().union(*(GROUPS[name] for name in dropped))
        assert all(not any(step[name]) for step in other for name in gone)
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
