"""Every reward mode sums to J: step by step, at the end, shaped, or relative to a twin."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from actors.config import ConfigError, EnvConfig
from actors.env.episode import host_episode
from actors.env.episode.twin import fitted_coefficients, twin_coefficient, twin_config
from actors.env.seed_fleet import SeedTrainingFleet
from actors.env.tasks import families
from actors.slots.contributions import EvalResult, Validation
from actors.types.actions import Op
from deploy.config.schema import Config, ImitationConfig
from learner.config import LearnerConfig
from tests.support.env import walks
from tests.support.env.scripted_host import play
from tests.support.env.walks import WAIT, act, grow, random_legal, tiny_env

TINY = EnvConfig(**walks.TINY | {"horizon_epochs": 8})
GROW = [*grow(0, 3), WAIT, act(Op.FOSSILIZE)]


def random_episode(**settings: Any) -> tuple[NDArray[np.float64], float]:
    """Play the same random legal actions, whatever the settings of rewards; return these and J as it is reported."""
    env, rng = tiny_env(**settings), np.random.default_rng(0)
    env.reset(seed=3)
    steps = [env.step(random_legal(rng, env)) for _ in range(env.episode.horizon_epochs)]
    objective = steps[-1][4]["telemetry"]["objective"]
    assert sum(env.episode.timeline.shares) == pytest.approx(objective)
    return np.array([float(step[1]) for step in steps]), objective


def test_every_reward_mode_sums_to_j() -> None:
    """Undiscounted, over a random episode; `test_objective.py` computes J of mode `objective` by hand."""
    modes = ("objective", "sparse", "contribution")
    (plain, sparse, shaped), objectives = zip(*(random_episode(reward=mode) for mode in modes), strict=True)
    assert len(set(objectives)) == 1
    assert [rewards.sum() for rewards in (plain, sparse, shaped)] == pytest.approx(objectives, abs=1e-6)
    assert not sparse[:-1].any()
    assert (shaped != plain).any()


@pytest.mark.parametrize(("gamma", "panic_at"), [(0.9, -1), (1.0, 5), (0.9, 7)])
def test_shaping_sums_to_zero_over_a_terminated_episode(gamma: float, panic_at: int) -> None:
    def accuracy(epoch: int, on: frozenset[int]) -> float:
        return 40.0 + epoch + 12.0 * len(on)

    config = replace(TINY, reward="contribution", shaping_gamma=gamma)
    shaped = play(config, accuracy, GROW, panic_at=panic_at)
    plain = play(replace(config, reward="objective"), accuracy, GROW, panic_at=panic_at)
    assert shaped.discounted(gamma) == pytest.approx(plain.discounted(gamma))
    assert shaped.objective == plain.objective
    assert max(abs(a - b) for a, b in zip(shaped.rewards, plain.rewards, strict=True)) > 5.0


def test_a_truncated_end_keeps_its_potential() -> None:
    config = replace(TINY, reward="contribution", shaping_gamma=0.9, time_limit="truncated")
    shaped = play(config, lambda epoch, on: 40.0 + 12.0 * len(on), GROW)
    plain = play(replace(config, reward="objective"), lambda epoch, on: 40.0 + 12.0 * len(on), GROW)
    assert shaped.last.truncated
    assert not shaped.last.terminated
    assert shaped.discounted(0.9) - plain.discounted(0.9) == pytest.approx(0.9**8 * 12.0)


def test_the_whole_configuration_is_checked_against_the_learner() -> None:
    shaped = EnvConfig(reward="contribution", shaping_gamma=0.995)
    hidden, below_one = EnvConfig(time_limit="truncated"), LearnerConfig(gamma=0.99)
    with pytest.raises(ConfigError, match=r"shaping_gamma 0\.995, but learner\.gamma is 1\.0"):
        Config(env=shaped)
    Config(env=shaped, learner=LearnerConfig(gamma=0.995))
    with pytest.raises(ConfigError, match="unbounded"):
        Config(env=hidden)
    Config(env=hidden, learner=below_one)
    with pytest.raises(ConfigError, match=r"imitation\.episodes is 32 with env\.time_limit truncated"):
        Config(env=hidden, learner=below_one, imitation=ImitationConfig(episodes=32))


def test_a_twin_that_parts_from_its_host_equals_one_that_is_played_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bit for bit: a fleet trains a twin only from the epoch in which a seed or column joins the host.

    Some hosts never grow, some grow at once, in the stream or beside it.
    """
    monkeypatch.setattr(host_episode, "twin_coefficient", lambda task_id: 1.0)
    config = EnvConfig(tasks=("spirals", "wine"), horizon_epochs=8, inner_steps=3, reference="twin")
    grown, alone, plain = (SeedTrainingFleet(c, 5, 0) for c in (config, twin_config(config), twin_config(config)))
    for fleet in (grown, alone, plain):
        fleet.reset(range(5))
    scripts = [[], grow(0, 3), [WAIT, WAIT, *grow(0, 3)[:2]], grow(3, 8), [WAIT, *grow(0, 3)]]
    for t in range(8):
        actions = np.array([script[t] if t < len(script) else WAIT for script in scripts])
        before = np.array([episode.accuracies[-1] for episode in alone.episodes])
        alone.step(np.zeros_like(actions))
        gains = np.array([episode.accuracies[-1] for episode in alone.episodes]) - before
        own, without = grown.step(actions), plain.step(actions)
        assert not grown.illegal
        np.testing.assert_array_equal(own.obs, without.obs)
        np.testing.assert_allclose(own.rewards, without.rewards - gains, rtol=1e-6, atol=1e-5)
    twins = [episode.reward.twin for episode in grown.episodes]
    assert [list(twin) for twin in twins] == [episode.accuracies for episode in alone.episodes]
    parted = [twin is not episode.accuracies for twin, episode in zip(twins, grown.episodes, strict=True)]
    assert parted == [False, True, False, True, True]


def test_a_twin_ends_where_the_governor_would_end_its_episode() -> None:
    """Its last accuracy then holds to the horizon."""
    env = tiny_env(horizon_epochs=5, reference="twin")
    env.reset(seed=0)
    episode = env.episode
    first = episode.accuracies[0]
    results = [(50.0, 1.0), (60.0, 0.9), (0.0, math.inf), (90.0, 0.1), (95.0, 0.1)]
    # Rewards are made of the accuracy on the scored rows, here half of that on the observed ones.
    episode.set_twin([(1.0, Validation(EvalResult(*r), r[0] / 2)) for r in results])
    assert episode.reward.twin == (first, 25.0, 30.0, 30.0, 30.0, 30.0)


def test_the_twin_is_subtracted_step_by_step_and_j_is_reported_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_episode, "twin_coefficient", lambda task_id: 0.7)
    own = tiny_env()
    own.reset(seed=3)
    for _ in range(12):
        own.step(WAIT)
    change = np.diff(own.episode.timeline.accuracy)  # the twin, played here by hand
    settings: list[dict[str, Any]] = [{}, {"reference": "twin"}, {"reference": "twin", "reward": "sparse"}]
    (plain, twin, sparse), objectives = zip(*(random_episode(**changes) for changes in settings), strict=True)
    assert objectives == pytest.approx([plain.sum()] * 3)
    assert twin == pytest.approx(plain - 0.7 * change, abs=1e-5)
    assert sparse[-1] == pytest.approx(twin.sum())
    assert not sparse[:-1].any()


def test_every_training_family_has_a_fitted_coefficient_and_others_use_one() -> None:
    known = [family.name for family in families("train") if family.factory is not None]
    assert set(fitted_coefficients()) == set(known)
    for name in known:
        assert 0.0 <= twin_coefficient(name) == fitted_coefficients()[name] < 1.5
    assert twin_coefficient("parity") == 1.0
