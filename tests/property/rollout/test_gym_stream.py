"""Gymnasium streams: isolation of rows, autoreset modes, bootstrapped observations, segments, masks and versions;
episodes that cannot be trained on."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from actors.config import GymConfig, PolicyConfig
from actors.errors import UserError
from actors.gym.fleet import GymFleet
from actors.gym.unified import UnifiedEnv
from actors.policy.network import FactoredRecurrentActorCritic
from actors.policy.state import PolicyState
from actors.rollout.sampler import EpisodeSeeds, StreamSampler
from actors.rollout.stream import MAX_REJECTED, EpisodeStream
from actors.rollout.wave import Provenance
from actors.types.actions import ActionMasks
from actors.types.episode import EndReason, Episode
from actors.types.spaces import Spaces
from tests.support.env.gym_envs import Scripted
from tests.support.episodes import assert_alike

SEEDS = (11, 5, 23, 42, 8, 3, 77, 60, 19, 4)


def network(spaces: Spaces) -> FactoredRecurrentActorCritic:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = PolicyConfig(
        core="lstm+memory", memory_cells=3, memory_size=4,
        hidden_size=12, encoder_size=10, head_size=8, num_layers=2, probability_floor=0.01,
    )  # fmt: skip
    made = FactoredRecurrentActorCritic(spaces, config)
    with torch.no_grad():
        for p in made.parameters():
            p.add_(0.3 * torch.randn_like(p))
    return made


def scripted(
    width: int, seed_of: Callable[[int], int], mode: Any = AutoresetMode.DISABLED, kind: Any = Scripted, **kwargs: Any
) -> GymFleet:
    envs = [lambda: UnifiedEnv(kind(**kwargs), "scripted")] * width
    return GymFleet("scripted", SyncVectorEnv(envs, autoreset_mode=mode), seed_of)


def in_turn(seeds: Sequence[int]) -> Callable[[int], int]:
    """Return a seed function that assigns seeds in the order in which episodes begin, in any row."""
    waiting = iter(seeds)
    return lambda row: next(waiting, 1000)


def play(fleet: GymFleet, steps: int, segment: int = 1000, versions: Sequence[int] = (3,)) -> list[Episode]:
    """Step every row `steps` times, with the given versions in turn."""
    policy = network(fleet.spaces)
    stream = EpisodeStream(fleet, policy, 5, segment)
    episodes: list[Episode] = []
    for t in range(steps):
        source = Provenance(versions[t % len(versions)], 1, 2, run_seed=5)
        episodes += stream.advance(policy, source)
    for episode in episodes:
        episode.validate()
    return episodes


def check_isolation(sizes: tuple[int, ...], masks: str) -> None:
    kwargs: dict[str, Any] = {"sizes": sizes, "masks": masks}
    together = {e.seed: e for e in play(scripted(4, in_turn(SEEDS), **kwargs), 40)}
    assert set(SEEDS) <= set(together)
    assert len({len(e) for e in together.values()}) >= 4
    assert {e.terminated for e in together.values()} == {True, False}
    for seed in SEEDS:
        alone, episode = play(scripted(1, in_turn([seed]), **kwargs), 20)[0], together[seed]
        assert_alike(episode, alone)
        for part in ("h", "c", "cells", "usage"):
            assert not getattr(episode.initial_state, part).any()
            assert getattr(episode.states, part)[:, 1:].any() or len(episode.states.h[0]) < 2


@pytest.mark.parametrize(("sizes", "masks"), [((3,), "info"), ((2, 4, 3), "per_head")])
def test_an_episode_does_not_depend_on_other_rows(sizes: tuple[int, ...], masks: str) -> None:
    check_isolation(sizes, masks)


def test_a_memory_that_is_carried_into_the_next_episode_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    reset = PolicyState.reset_rows

    def without_memory(self: PolicyState, rows: torch.Tensor) -> PolicyState:
        return reset(self, rows)._replace(cells=self.cells, usage=self.usage)

    monkeypatch.setattr(PolicyState, "reset_rows", without_memory)
    with pytest.raises(AssertionError):
        check_isolation((3,), "info")


def numbered() -> Callable[[int], int]:
    """Return a seed function that encodes the row: row * 1000 plus the number of the row's episode."""
    begun: dict[int, int] = {}

    def seed_of(row: int) -> int:
        begun[row] = begun.get(row, -1) + 1
        return row * 1000 + begun[row]

    return seed_of


@pytest.mark.parametrize("mode", [AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP])
@pytest.mark.parametrize("sizes", [(3,), (2, 3)])
def test_episodes_of_autoresetting_environments_match_a_replay(mode: AutoresetMode, sizes: tuple[int, ...]) -> None:
    """Each row's episodes are those of a plain environment that is stepped with the same actions."""
    kwargs: dict[str, Any] = {"sizes": sizes, "masks": "info"}
    fleet = scripted(3, numbered(), mode, **kwargs)
    everything = np.ones(fleet.spaces.action.flat_size)
    rows: dict[int, list[Episode]] = {row: [] for row in range(3)}
    for episode in play(fleet, 60):
        rows[episode.seed // 1000].append(episode)
    for row, episodes in rows.items():
        env = UnifiedEnv(Scripted(**kwargs), "plain")
        assert len(episodes) >= 3
        for k, episode in enumerate(episodes):
            obs, info = env.reset(seed=row * 1000 if k == 0 else None)
            for t in range(len(episode)):
                assert np.array_equal(episode.obs[t], obs)
                assert np.array_equal(episode.masks[t], info.get("action_mask", everything))
                action = episode.actions[t]
                obs, reward, terminated, truncated, info = env.step(action[0] if len(action) == 1 else action)
                assert episode.rewards[t] == np.float32(reward)
                assert (terminated or truncated) == (t == len(episode) - 1)
            assert np.array_equal(episode.final_obs, obs)
            assert (episode.terminated, episode.truncated) == (terminated, truncated)
            assert episode.end_reason is EndReason.ENVIRONMENT
            if truncated:
                assert np.array_equal(episode.final_masks, info.get("action_mask", everything))


def values_of(episode: Episode, last: np.ndarray) -> tuple[np.ndarray, float]:
    """Return values `[T]` and the value of the observation `last`, from running the policy on this episode alone."""
    spaces = scripted(1, lambda row: 0).spaces
    policy = network(spaces)
    state, values = policy.initial_state(1), []
    for obs in [*episode.obs, last]:
        masks = ActionMasks.of_flat(spaces.action, np.ones((1, spaces.action.flat_size), dtype=np.bool_))
        decision, state = policy.act(obs[None], np.zeros((1, 0), np.int64), masks, state, np.zeros((1, 1)))
        values.append(float(decision.values[0]))
    return np.array(values[:-1]), values[-1]


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_truncated_episodes_are_bootstrapped_from_the_final_observation(mode: AutoresetMode) -> None:
    truncated = [e for e in play(scripted(3, numbered(), mode), 60) if e.truncated]
    assert len(truncated) >= 5
    for episode in truncated:
        values, bootstrap = values_of(episode, episode.final_obs)
        assert np.allclose(values, episode.values, atol=1e-4)
        assert abs(episode.bootstrap_value - bootstrap) < 1e-4
        first = Scripted().reset(seed=episode.seed)[0]
        assert abs(values_of(episode, first)[1] - bootstrap) > 1e-3  # the check distinguishes observations


def assert_continuous(segments: Sequence[Episode], whole: Episode, length: int) -> None:
    assert [e.telemetry["segment"] for e in segments] == list(range(len(segments)))
    assert [len(e) for e in segments[:-1]] == [length] * (len(segments) - 1)
    assert all(e.end_reason is EndReason.CUT and e.truncated for e in segments[:-1])
    assert (segments[-1].terminated, segments[-1].end_reason) == (whole.terminated, whole.end_reason)
    for name in ("obs", "actions", "rewards", "masks"):
        assert np.array_equal(np.concatenate([getattr(e, name) for e in segments]), getattr(whole, name)), name
    for name in ("log_probs", "values"):
        assert np.allclose(np.concatenate([getattr(e, name) for e in segments]), getattr(whole, name), atol=1e-6)
    for part in ("h", "c"):
        joined = np.concatenate([getattr(e.states, part) for e in segments], axis=1)
        assert np.allclose(joined, getattr(whole.states, part), atol=1e-6)
    for before, after in itertools.pairwise(segments):
        start = after.initial_state
        assert np.array_equal(start.h, after.states.h[:, :1])
        assert np.array_equal(start.c, after.states.c[:, :1])
        assert np.array_equal(before.final_obs, after.obs[0])
        assert abs(before.bootstrap_value - after.values[0]) < 1e-6
    assert segments[-1].telemetry["episode_steps"] == len(whole)
    assert np.isclose(segments[-1].telemetry["episode_return"], whole.undiscounted_return)


def test_concatenated_segments_equal_the_whole_episode() -> None:
    long = {"longest": 60}
    whole = {e.seed: e for e in play(scripted(3, in_turn(SEEDS), **long), 200)}
    parts = play(scripted(3, in_turn(SEEDS), **long), 200, segment=8)
    assert max(len(e) for e in parts) == 8
    assert max(len(e) for e in whole.values()) > 16
    for seed in SEEDS:
        assert_continuous([e for e in parts if e.seed == seed], whole[seed], 8)


def test_each_step_records_the_version_of_its_weights() -> None:
    episodes = play(scripted(2, numbered()), 30, versions=(4, 7, 9))
    assert max(map(len, episodes)) >= 4
    for episode in episodes:
        first = (4, 7, 9).index(int(episode.policy_version[0]))
        assert episode.policy_version.tolist() == [(4, 7, 9)[(first + t) % 3] for t in range(len(episode))]


# Episodes with numbers that cannot be trained on are dropped, and nothing else is


SOURCE = Provenance(3, 1, 4, 0)
NAN = float("nan")


class Spoilt(Scripted):
    """Adds `reward` and `value` to the last reward and observation of the episodes of every `every`th seed, or `value`
    to their first observation."""

    def __init__(self, every: int = 3, reward: float = NAN, value: float = 0.0, first: bool = False) -> None:
        super().__init__(longest=9)
        self.observation_space = Box(-np.inf, np.inf, (4,), np.float64)
        self.every, self.reward, self.value, self.first = every, reward, value, first

    def reset(self, **kwargs: Any) -> Any:
        obs, info = super().reset(**kwargs)
        self.truncates = True
        return obs + (self.value if self.first and self.seed % self.every == 0 else 0.0), info

    def step(self, action: Any) -> Any:
        obs, reward, *rest = super().step(action)
        if self.first or self.count < self.length or self.seed % self.every:
            return obs, reward, *rest
        return obs + self.value, reward + self.reward, *rest

    def _look(self) -> Any:
        return super()._look().astype(np.float64)


gymnasium.register("tests/Spoilt-v0", entry_point=Spoilt)


def stream(every: int, mode: AutoresetMode, segment: int = 100, **kwargs: Any) -> EpisodeStream:
    fleet = scripted(4, in_turn(range(1, 1000)), mode, Spoilt, every=every, **kwargs)
    return EpisodeStream(fleet, network(fleet.spaces), 0, segment)


def test_only_episodes_with_such_a_number_are_dropped() -> None:
    """Every other episode is, bit by bit, what it is beside environments without any."""
    spoilt, clean = (stream(every, AutoresetMode.DISABLED) for every in (3, 10**9))
    policy = network(spoilt.fleet.spaces)
    kept, whole = ([e for _ in range(60) for e in made.advance(policy, SOURCE)] for made in (spoilt, clean))
    assert {e.seed for e in kept} == {e.seed for e in whole if e.seed % 3}
    assert spoilt.rejected == sum(e.seed % 3 == 0 for e in whole) >= 10
    assert clean.rejected == 0
    by_seed = {e.seed: e for e in whole}
    for episode in kept:
        episode.validate()
        assert np.array_equal(episode.obs, by_seed[episode.seed].obs)
        assert np.array_equal(episode.actions, by_seed[episode.seed].actions)


@pytest.mark.parametrize(
    ("mode", "given"),
    [
        *((mode, given) for mode in AutoresetMode for given in ({}, {"value": NAN, "reward": 0.0})),
        *((mode, {"value": NAN, "first": True}) for mode in AutoresetMode),
        *((AutoresetMode.DISABLED, {"reward": reward}) for reward in (float("-inf"), 1e39)),
        (AutoresetMode.SAME_STEP, {"value": 1e300, "reward": 0.0}),
    ],
)
def test_nothing_that_is_shipped_holds_such_a_number(mode: AutoresetMode, given: dict[str, Any]) -> None:
    """1e39 is finite in float64, and not in the float32 that it is shipped as. The seeds of later episodes are drawn by
    the environment, where it resets by itself."""
    made = stream(2, mode, segment=3, **given)
    policy = network(made.fleet.spaces)
    kept = [e for _ in range(60) for e in made.advance(policy, SOURCE)]
    assert made.rejected >= 10
    assert len(kept) >= 10
    for episode in kept:
        episode.validate()


def test_environments_that_give_nothing_else_end_the_run() -> None:
    made = stream(1, AutoresetMode.DISABLED)
    policy = network(made.fleet.spaces)
    with pytest.raises(UserError, match=r"gave a reward that is NaN.* 100 episodes in a row") as refusal:
        assert not any(made.advance(policy, SOURCE) for _ in range(9 * MAX_REJECTED))
    assert "\n" not in str(refusal.value)


def test_an_episode_that_cannot_be_compared_ends_the_comparison() -> None:
    sampler = StreamSampler(GymConfig(id="tests/Spoilt-v0"), 2, 0, EpisodeSeeds(0, 0, None))
    policy = network(sampler.spaces)
    while not sampler.rejected:
        sampler.sample(policy, SOURCE)
    rejected = sampler.rejected
    assert [row["seed"] for row in sampler.play(policy, SOURCE, [1, 2, 4], False)] == [1, 2, 4]
    assert sampler.rejected == rejected  # it counts from the start of the run
    with pytest.raises(UserError, match="cannot be compared"):
        sampler.play(policy, SOURCE, [1, 3], False)
    sampler.close()
