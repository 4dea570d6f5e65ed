"""One number of an absurd size is clipped, counted and reported; a scale that really moves is followed."""

from __future__ import annotations

import dataclasses
import itertools
from math import isfinite
from pathlib import Path

import numpy as np
import pytest
import torch

from actors.codec import encode_episode
from actors.errors import UserError
from actors.policy.network import FactoredRecurrentActorCritic
from actors.policy.normalizer import ObservationNormalizer, ValueNormalizer
from actors.types.episode import Episode, InvalidEpisode
from learner.ppo.batch import Batch, make_batch
from learner.ppo.extremes import clip_rewards
from learner.ppo.imitation import ImitationResult, imitate
from tests.support.learning.batches import toy_ppo
from tests.support.learning.toy import SPACES, toy_network, toy_seed, toy_wave
from tests.support.learning.toy_learner import ToyProducer, lines, make_learner, toy_schema
from tests.support.stores import Store


def untrained() -> FactoredRecurrentActorCritic:
    torch.manual_seed(0)
    return FactoredRecurrentActorCritic(SPACES, toy_network().config)


def episodes(count: int = 32, scale: float = 1.0) -> list[Episode]:
    """Rewards are standard normal times `scale`."""
    rng = np.random.default_rng(0)
    played = toy_wave(toy_network(), [toy_seed(3 + k % 5, truncated=False, salt=k) for k in range(count)])
    return [dataclasses.replace(e, rewards=(scale * rng.standard_normal(len(e))).astype(np.float32)) for e in played]


def changed(batch: Batch, field: str, number: float) -> Batch:
    """One number of the third episode replaced: that of the episode, or of its second step."""
    values = getattr(batch, field).clone()
    values[2 if field == "bootstrap_value" else int(batch.episode_lengths[:2].sum()) + 1] = number
    return batch._replace(**{field: values})


@pytest.mark.parametrize(
    ("field", "clipped", "number", "before"),
    [("rewards", "clipped_rewards", 3e38, 5), ("bootstrap_value", "clipped_values", -1e20, 0)],
)
def test_one_absurd_number_leaves_the_critic_its_scale(field: str, clipped: str, number: float, before: int) -> None:
    truncated = {"terminated": False, "truncated": True, "bootstrap_value": 0.5}
    network = untrained()
    clean = make_batch([dataclasses.replace(e, **truncated) for e in episodes()], SPACES)  # type: ignore[arg-type]
    ppo = toy_ppo(1e-3, network)
    for update in range(before):
        assert ppo(clean, update=update, version=update)[clipped] == 0
    metrics = ppo(changed(clean, field, number), update=before, version=before)
    assert (metrics[clipped], metrics["skipped_steps"]) == (1, 0)
    assert all(isfinite(value) for value in metrics.values())
    spread = np.std([e.rewards.sum() for e in episodes()])
    assert float(network.value_normalizer.std) < 20 * spread


@pytest.mark.parametrize(
    ("scale", "returns", "reward", "expected"),
    [  # returns that were all 0, of a sparse task, say nothing of how large a reward may be
        (1e-3, [-7.0, 7.0], 699.0, 699.0),
        (1e-3, [-7.0, 7.0], -701.0, -700.0),
        (0.0, [], 1000.0, 1000.0),
        (0.0, [0.0] * 50, 1000.0, 1000.0),
        (1e4, [-1.0, 1.0], 1e4, 1e4),  # a scale that most episodes share is followed at once
    ],
)
def test_the_limit_is_a_hundred_deviations_of_the_return(
    scale: float, returns: list[float], reward: float, expected: float
) -> None:
    normalizer, batch = ValueNormalizer(popart=True), make_batch(episodes(scale=scale), SPACES)
    if returns:
        normalizer.update(torch.tensor(returns), torch.nn.Linear(2, 1))
    spoilt = changed(batch, "rewards", reward)
    clipped, count = clip_rewards(spoilt, normalizer)
    assert torch.equal(clipped.rewards, changed(batch, "rewards", expected).rewards)
    assert int(count["clipped_rewards"]) == (reward != expected)


def test_bootstrap_values_are_clipped_around_the_mean_return() -> None:
    scale, played = ValueNormalizer(popart=True), episodes(scale=1e-3)
    scale.update(torch.tensor([43.0, 57.0]), torch.nn.Linear(2, 1))
    ends = [(False, 749.0), (False, 751.0), (False, -649.0), (False, -651.0), (True, 1e6)]
    given = [
        dataclasses.replace(e, terminated=terminated, truncated=not terminated, bootstrap_value=value)
        for e, (terminated, value) in zip(played, ends, strict=False)
    ]
    clipped, count = clip_rewards(make_batch(given, SPACES), scale)
    assert clipped.bootstrap_value[:4].tolist() == [749.0, 750.0, -649.0, -650.0]
    assert int(count["clipped_values"]) == 2  # that of a terminated episode is not used


def test_values_of_steps_are_clipped_before_they_enter_a_target() -> None:
    """What the critic makes of the states that an actor sent may be of any size."""
    network, batch = untrained(), make_batch(episodes(), SPACES)
    ppo = toy_ppo(1e-3, network)
    ppo(batch, update=0, version=0)
    with torch.no_grad():
        network.value_output.bias += 1e6
    metrics = ppo(batch, update=1, version=1)
    assert metrics["clipped_values"] == batch.size
    assert float(network.value_normalizer.std) < 1e3


@pytest.mark.parametrize(
    ("log_prob", "ratio", "prior"), [(-200.0, "per_head", False), (-1e9, "joint", True), (-3e38, "per_head", True)]
)
def test_absurd_log_probs_neither_break_a_step_nor_enter_a_target(log_prob: float, ratio: str, prior: bool) -> None:
    network, clean = untrained(), make_batch(episodes(), SPACES)
    ppo = toy_ppo(1e-3, network, untrained() if prior else None, ratio=ratio, prior_coef=0.1 if prior else 0.0)
    assert ppo(clean, update=0, version=0)["clipped_log_probs"] == 0
    spoilt = changed(changed(clean, "log_probs", log_prob), "rewards", -50.0)  # no clip bounds a negative advantage
    metrics = ppo(spoilt, update=1, version=1)
    assert (metrics["clipped_log_probs"], metrics["skipped_steps"]) == (1, 0)
    assert all(isfinite(number) for number in metrics.values())
    assert all(bool(t.isfinite().all()) for t in network.state_dict().values())
    assert float(network.value_normalizer.std) < 100


def test_what_no_policy_can_have_sent_is_refused() -> None:
    (episode,), schema = episodes(1), toy_schema()
    schema.check(episode)
    log_probs, states, initial = episode.log_probs.copy(), episode.states, episode.initial_state
    log_probs[1, 0] = -101.0
    for name, value in (
        ("log_probs", log_probs),
        ("states", states._replace(h=np.full_like(states.h, 3e38))),
        ("initial_state", initial._replace(h=np.full_like(initial.h, -2e6))),
    ):
        spoilt = dataclasses.replace(episode, **{name: value})  # type: ignore[arg-type]
        spoilt.validate()
        with pytest.raises(InvalidEpisode, match=r"log-prob is below|has numbers beyond"):
            schema.check(spoilt)


@pytest.mark.parametrize("before", [0, 20], ids=["in the first batch", "in a later one"])
def test_one_absurd_observation_leaves_the_statistics_theirs(before: int) -> None:
    """Unlike before: a variance of 1e18 over all steps so far, for as long as the count remembers."""
    torch.manual_seed(0)
    normalizer, batches = ObservationNormalizer(3), 2.0 + 3.0 * torch.randn(before + 1, 500, 3)
    for rows in batches[:before]:
        assert int(normalizer.update(rows)) == 0
    batches[-1, 7, 1] = 1e9
    assert int(normalizer.update(batches[-1])) == 1
    low, high = normalizer(torch.tensor([[-1.0] * 3, [5.0] * 3]))
    assert torch.allclose(high[::2], torch.ones(2), atol=0.15)
    assert torch.allclose(low[::2], -torch.ones(2), atol=0.15)
    widest = (1.0 + 1e4 / normalizer.count) ** 0.5  # an entry at 100 deviations adds 1e4 / count to a variance of 1
    assert min(high[1], -low[1]) > 0.7 / widest


def test_a_feature_that_begins_to_move_is_taken_in() -> None:
    """A flag that was never set, and a count that was always 0."""
    normalizer = ObservationNormalizer(2)
    assert int(normalizer.update(torch.zeros(100, 2))) == 0
    assert int(normalizer.update(torch.tensor([[1.0, 500.0]] * 4 + [[0.0, 0.0]] * 96))) == 0
    assert normalizer.mean.tolist() == pytest.approx([0.02, 10.0])


def test_the_run_reports_both(store: Store, tmp_path: Path) -> None:
    def absurd(episode: Episode) -> bytes:
        rewards, obs = episode.rewards.copy(), episode.obs.copy()
        rewards[-1], obs[0, 0] = 1e30, -1e12
        return encode_episode(dataclasses.replace(episode, rewards=rewards, obs=obs))

    learner = make_learner(tmp_path, store, updates=3)
    learner.run(ToyProducer(store, spoil={5: absurd}))
    rows = lines(tmp_path / "metrics.jsonl")
    assert [row["clipped_rewards"] for row in rows] == [0, 1, 0]
    assert [row["clipped_observations"] for row in rows] == [0, 1, 0]
    for words in ("rewards of a batch were more than 100", "were winsorised for the running statistics"):
        assert sum(words in note for note in learner.notes) == 1


def imitated(infinite: int, passes: int, shown: list[Episode]) -> tuple[FactoredRecurrentActorCritic, ImitationResult]:
    """The first gradients, so many, are infinite."""
    network, steps = untrained(), itertools.count()
    network.norm.bias.register_hook(lambda grad: grad * torch.inf if next(steps) < infinite else grad)
    return network, imitate(network, shown, passes=passes, minibatch_episodes=14)


def test_imitation_skips_steps_whose_gradient_is_not_finite_and_needs_a_sound_one() -> None:
    network, result = imitated(3, 4, episodes())
    assert result.skipped == 3
    assert result.after < result.before
    assert all(bool(t.isfinite().all()) for t in network.state_dict().values())
    with pytest.raises(UserError, match="gradient of every step was NaN or infinite"):
        imitated(1000, 2, episodes())


def test_imitation_clips_an_absurd_reward() -> None:
    first, *others = episodes()
    rewards = np.where(np.arange(len(first)) == 0, np.float32(1e20), first.rewards)
    network, result = imitated(0, 1, [dataclasses.replace(first, rewards=rewards), *others])
    assert (result.clipped, result.skipped) == (1, 0)
    assert float(network.value_normalizer.std) < 100
