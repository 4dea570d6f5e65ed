"""The chooser: what it reads, its regression against scikit-learn's, the doublings that it expects, what it chooses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from sklearn.linear_model import Ridge
from sklearn.preprocessing import StandardScaler

from actors.config import EnvConfig
from actors.env.episode.host_episode import HostEpisode
from actors.env.seed_fleet import SeedTrainingFleet
from actors.rollout.wave import Policy, Provenance, run_wave
from actors.rules.chooser import ChooserRule
from actors.rules.gains import ColumnChoice, GainModel, early_features, packaged_gains
from actors.rules.reader import ObservationReader
from actors.rules.schedule import NEVER, Scheduled
from actors.types.episode import EndReason, Episode
from benchmarks.fit_chooser import CHOICES, fit_gains

ENV = EnvConfig(tasks=("rings",), host_width=(2, 32), horizon_epochs=(8, 14), inner_steps=2, device="cpu")
EVERY = tuple(ColumnChoice(*choice) for choice in CHOICES)
SEEDS = range(12)


def played(policy: Policy, env: EnvConfig = ENV) -> list[tuple[HostEpisode, Episode]]:
    fleet = SeedTrainingFleet(env, len(SEEDS), 1)
    source = Provenance(version=0, generation=0, state_stride=1, run_seed=1)
    episodes = run_wave(fleet, policy, SEEDS, source)
    return list(zip(fleet.episodes, episodes, strict=True))


def constant(choices: Sequence[ColumnChoice], gains: Sequence[float]) -> GainModel:
    """Return a model that expects the same everywhere."""
    f, c = 15, len(choices)
    return GainModel(tuple(choices), np.zeros(f), np.ones(f), np.zeros((2 * f, c)), np.array(gains, dtype=np.float64))


def test_the_regression_is_that_of_scikit_learn() -> None:
    rng = np.random.default_rng(0)
    features, gains = rng.normal(3.0, 2.0, (200, 4)), rng.normal(size=(200, 2))
    features[:, 2] = 7.0  # says nothing
    z = StandardScaler().fit_transform(features).clip(-4, 4)[:, [0, 1, 3]]
    oracle = Ridge(alpha=0.3 * 200).fit(np.concatenate([z, z**2], 1), gains)
    model = fit_gains(EVERY[:2], features, gains, 0.3)
    np.testing.assert_allclose(model.predict(features), oracle.predict(np.concatenate([z, z**2], 1)), atol=1e-9)


def test_unknown_features_count_as_average() -> None:
    rng = np.random.default_rng(0)
    features = rng.normal(size=(100, 3))
    model = fit_gains(EVERY[:1], features, features[:, :1] * 2.0, 0.01)
    unknown = np.array([[0.5, np.nan, 0.1]])
    np.testing.assert_array_equal(model.predict(unknown), model.predict(np.array([[0.5, features[:, 1].mean(), 0.1]])))


def test_features_that_the_host_does_not_tell_are_unknown() -> None:
    spaces = SeedTrainingFleet(ENV, 1, 1).spaces
    waited = (played(Scheduled(spaces, NEVER), env) for env in (ENV, replace(ENV, drop_features=0.99)))
    reader = ObservationReader(spaces)
    known, some = (early_features(reader, np.stack([episode.obs[3] for _, episode in rows])) for rows in waited)
    assert np.isfinite(known).all()
    assert np.isnan(some).any(0).sum() >= 4
    assert some.shape == known.shape == (len(SEEDS), 15)


def test_expected_doublings_are_those_that_columns_pay() -> None:
    spaces = SeedTrainingFleet(ENV, 1, 1).spaces
    expected: dict[int, np.ndarray] = {}

    class Asked(ChooserRule):
        def _best(self, model):
            expected[model.row] = self.doublings(model)
            return -1

    played(Asked(spaces, constant(EVERY, [0.0] * len(EVERY))))
    for k, choice in enumerate(EVERY):
        own = played(Scheduled(spaces, choice.schedule))
        paid = np.array([host.standing.doublings for host, _ in own])
        got = np.array([expected[row][k] for row in range(len(SEEDS))])
        grown = paid > 0  # the others broke down
        assert grown.sum() >= 10
        np.testing.assert_allclose(got[grown], paid[grown], rtol=0.05 if choice.size == "double" else 1e-5)


@pytest.mark.parametrize(("price", "size"), [(0.25, "quad"), (2.0, "same"), (200.0, None)])
def test_it_grows_what_is_worth_most_at_the_price(price: float, size: str | None) -> None:
    """Each doubling that a column adds costs the price; gains are 3 points for `same` and 5 for `quad`."""
    env = replace(ENV, points_per_doubling=price, horizon_epochs=10)
    choices = (ColumnChoice("same", 3), ColumnChoice("quad", 3))
    for host, episode in played(ChooserRule(SeedTrainingFleet(env, 1, 1).spaces, constant(choices, (3.0, 5.0))), env):
        if episode.end_reason is EndReason.GOVERNOR:
            continue  # nothing is left of the column
        grown = [host.host.family.names[host.growth.slots[s].blueprint] for s in host.growth.blended()]
        assert grown == ([f"column_{size}"] if size else [])
        assert set(episode.actions[:3, 0]) == {0}  # it looks for three epochs


def test_the_packaged_regression_knows_the_choices() -> None:
    model = packaged_gains()
    assert model.choices == EVERY
    assert np.isfinite(model.predict(np.full((1, 15), np.nan))).all()
