"""Training sessions: what is shipped equals what a loop over the network records, and every step counts once."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from contextlib import suppress
from typing import Any

import grpc
import numpy as np
import pytest
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status

from actors.config import QueueConfig
from actors.policy.publish import from_weights
from actors.rng import Purpose, stream
from actors.serving.client.asynchronous import AsyncPolicyClient
from actors.serving.client.blocking import PolicyClient
from actors.serving.client.connection import at_once
from actors.serving.client.episode import AsyncClientEpisode, ClientEpisode
from actors.serving.status import DETAILS_KEY, error_of_call
from actors.sessions.refusal import Reason
from actors.sessions.session import SERVING_SEED, PolicyError, SessionLost, step_noise
from actors.slots.spaces import seed_spaces
from actors.types.actions import ActionMasks
from actors.types.episode import EndReason, Episode, RecurrentState
from tests.support.episodes import assert_alike
from tests.support.learning.toy import SPACES
from tests.support.serving.servers import FakeWeightStore, serving, step_inputs, weights
from tests.support.serving.training_sessions import Endpoint, RawSession, endpoint, refused
from tests.support.waiting import wait_for

pytestmark = pytest.mark.integration


def reward_of(step: int) -> float:
    return float(np.float32(np.sin(step + 1.0)))


def given(step: int) -> tuple[Any, ...]:
    """What an episode is given at a step, in the order of its arguments."""
    obs, blueprints, masks = step_inputs(0, step)
    return obs, masks, blueprints


def play(episode: ClientEpisode, steps: int, first: int = 0) -> None:
    for step in range(first, first + steps):
        episode.act(*given(step))
        episode.reward(reward_of(step))


def test_asyncio_episodes_are_those_of_the_blocking_client() -> None:
    """One that ends and one that is truncated; and one whose client leaves by an exception, which is cut."""

    async def act(episode: AsyncClientEpisode, steps: int) -> None:
        for step in range(steps):
            await episode.act(*given(step))
            episode.reward(reward_of(step))

    async def play_all(address: str) -> None:
        async with AsyncPolicyClient(address) as client:
            async with client.episode(seed=5) as episode:
                await act(episode, 6)
            assert episode.summary.steps == 6
            async with client.episode(seed=6, spaces=SPACES) as episode:
                await act(episode, 3)
                await episode.truncate(*given(3))
            with pytest.raises(PolicyError, match="call reward"):
                async with client.episode() as episode:
                    episode.reward(1.0)
            with suppress(ZeroDivisionError):
                async with client.episode() as episode:
                    await act(episode, 3)
                    raise ZeroDivisionError

    with endpoint() as own, PolicyClient(own.address) as client:
        asyncio.run(play_all(own.address))
        found = own.episodes(3)
        with client.episode(5) as episode:
            play(episode, 6)
        with client.episode(6) as episode:
            play(episode, 3)
            episode.truncate(*given(3))
        wait_for(lambda: own.transport.ledger().accepted == 5)
        expected = own.episodes(2)
    for one, other in zip(found, expected, strict=False):
        assert_alike(one, other)
    assert (found[2].end_reason, len(found[2])) == (EndReason.CUT, 2)


EXACT = ("obs", "blueprint_indices", "actions", "masks", "rewards")
CLOSE = ("log_probs", "values", "baseline_values")


def oracle(network: Any, seed: int, steps: int) -> dict[str, list[Any]]:
    """Act step by step with the network, and list what an episode must hold of each step. `after` and `likeliest` are
    the values of its observation as a final one, for a sampled and for the likeliest action."""
    state, rows = network.initial_state(1), list[dict[str, Any]]()
    last = stream(SERVING_SEED, seed, Purpose.BOOTSTRAP).random(len(SPACES.action.heads))[None]
    for step in range(steps + 1):
        obs, blueprints, masks = step_inputs(0, step)
        batch = obs[None], blueprints[None], ActionMasks(*(mask[None] for mask in masks)), state
        after, likeliest = (network.act(*batch, last, greedy)[0].bootstrap_values[0] for greedy in (False, True))
        row = {"obs": obs, "blueprint_indices": blueprints, "rewards": np.float32(reward_of(step))}
        row |= {"states": state.row(0), "after": after, "likeliest": likeliest}
        decision, state = network.act(*batch, step_noise(seed, step, last.size)[None])
        rows.append(row | {name: array[0] for name, array in decision._asdict().items()})
    return {name: [row[name] for row in rows] for name in rows[0]}


def same(segment: Episode, expected: dict[str, list[Any]], start: int, end: int) -> None:
    for name in EXACT:
        np.testing.assert_array_equal(getattr(segment, name), np.stack(expected[name][start:end]))
    for name in CLOSE:
        np.testing.assert_allclose(getattr(segment, name), np.stack(expected[name][start:end]), atol=2e-5)
    first = start
    if segment.burn_in is not None:
        first -= len(segment.burn_in)
        np.testing.assert_array_equal(segment.burn_in.obs, np.stack(expected["obs"][first:start]))
    stored = RecurrentState.concatenate(expected["states"][first : end : segment.state_stride])
    for state, wanted in ((segment.states, stored), (segment.initial_state, expected["states"][start])):
        for one, other in zip(state, wanted, strict=True):
            np.testing.assert_allclose(one, other, atol=2e-5)


@pytest.mark.parametrize("changes", [{"core": "lstm+memory"}, {"critic": "q_op", "bootstrap": "sampled"}])
def test_an_episode_equals_a_loop_over_the_network(changes: dict[str, Any]) -> None:
    own = weights(3, 7, **changes)
    expected = oracle(from_weights(own), seed=13, steps=10)
    obs, masks, _ = given(10)
    with endpoint(FakeWeightStore(own)) as e, PolicyClient(e.address) as client:
        with client.episode(13, SPACES) as episode:
            play(episode, 10)
            summary = episode.truncate(*given(10))
        (shipped,) = e.episodes(1)
    same(shipped, expected, 0, 10)
    assert (shipped.truncated, shipped.end_reason, shipped.seed) == (True, EndReason.ENVIRONMENT, 13)
    assert shipped.bootstrap_value == pytest.approx(expected["after"][10], abs=2e-5)
    if "bootstrap" in changes:
        assert abs(expected["after"][10] - expected["likeliest"][10]) > 1.0
    np.testing.assert_array_equal(shipped.final_obs, obs)
    np.testing.assert_array_equal(shipped.final_masks, masks.flat())
    assert set(shipped.policy_version) == {7}
    assert shipped.episode_id.startswith("run/external/")
    assert summary.episode_return == pytest.approx(sum(map(reward_of, range(10))))
    assert (summary.steps, summary.policy_lag) == (10, 0)


def test_a_client_keeps_its_session_through_a_long_step() -> None:
    with endpoint(session_timeout_s=0.6) as own, PolicyClient(own.address) as client:
        with client.episode(1) as episode:
            episode.keep_alive()  # nothing to repeat yet
            play(episode, 1)
            for _ in range(4):
                time.sleep(episode.timeout_s / 2)
                episode.keep_alive()
            play(episode, 1, first=1)
        (shipped,) = own.episodes(1)
    assert (len(shipped), shipped.terminated) == (2, True)


def test_other_spaces_than_those_of_the_run_are_refused() -> None:
    with endpoint() as own, PolicyClient(own.address) as client:
        with pytest.raises(PolicyError, match="this run learns from") as refusal:
            client.episode(1, seed_spaces(3)).__enter__()
        assert refusal.value.reason == Reason.SPACES_MISMATCH


def test_a_long_episode_ships_as_segments() -> None:
    own = dataclasses.replace(weights(3, 7), state_stride=2, burn_in=6)
    expected = oracle(from_weights(own), seed=11, steps=10)
    with endpoint(FakeWeightStore(own), max_segment_steps=4) as e, PolicyClient(e.address) as client:
        with client.episode(11, SPACES) as episode:
            play(episode, 10)
        segments = e.episodes(3)
    assert episode.summary.steps == 10
    for segment, (start, end) in zip(segments, ((0, 4), (4, 8), (8, 10)), strict=True):
        same(segment, expected, start, end)
        assert segment.telemetry["segment"] == start // 4
        assert (0 if segment.burn_in is None else len(segment.burn_in)) == min(start, 6)
    for segment, step in zip(segments, (4, 8), strict=False):
        assert (segment.truncated, segment.end_reason) == (True, EndReason.CUT)
        assert segment.bootstrap_value == pytest.approx(expected["bootstrap_values"][step], abs=2e-5)
        np.testing.assert_array_equal(segment.final_obs, expected["obs"][step])
    assert (segments[2].terminated, segments[2].bootstrap_value) == (True, 0.0)
    assert segments[2].telemetry["episode_return"] == pytest.approx(sum(map(reward_of, range(10))), abs=1e-5)


def test_a_retry_changes_nothing_and_another_reward_is_aborted() -> None:
    conflict = "ABORTED STEP_CONFLICT"
    with endpoint() as e:
        session = RawSession(e.address)
        first, second = session.step(0), session.step(1, 0.5)
        assert session.step(1, 0.5) == second
        assert refused(session.step, 1, 0.25) == refused(session.step, 1) == conflict
        assert second.exported_state == b""
        end, again = session.end(2, 1.5), session.end(2, 1.5)
        assert end == again
        assert refused(session.end, 2, 1.0) == conflict
        assert refused(session.end, 2, 1.5, terminated=False, truncated=True) == conflict
        assert refused(session.step, 2, 1.5) == "FAILED_PRECONDITION EPISODE_ENDED"
        session.close()
        (episode,) = e.episodes(1)
    np.testing.assert_array_equal(episode.rewards, [0.5, 1.5])
    np.testing.assert_array_equal(episode.actions, [list(first.action), list(second.action)])
    assert end.episode_return == 2.0


def test_bad_rewards_observations_and_ends_are_refused_and_lose_nothing() -> None:
    nan, large = float("nan"), np.full(SPACES.obs_size, 1.1e6, np.float32)
    gap, untrained = "FAILED_PRECONDITION STEP_GAP", "FAILED_PRECONDITION NOT_TRAINING"
    bad_reward, out_of_range = "INVALID_ARGUMENT REWARD_INVALID", "INVALID_ARGUMENT OUT_OF_RANGE"
    with endpoint() as e:
        session, plain = RawSession(e.address), RawSession(e.address, train=False)
        assert refused(session.end, 0, 0.0) == gap
        assert refused(session.step, 0, 1.0) == bad_reward
        assert refused(session.step, 0, obs=large) == out_of_range
        assert refused(session.step, 0, obs=large * nan) == "INVALID_ARGUMENT NOT_FINITE"
        assert refused(session.step, 0, deterministic=True) == untrained
        session.step(0)
        for reward in (nan, float("inf"), 1.1e6, -1.1e6, None):
            assert refused(session.step, 1, reward) == refused(session.end, 1, reward) == bad_reward
        # The reward of a refused step is not taken: the next request may say another.
        assert refused(session.step, 1, 5.0, obs=large) == out_of_range
        session.step(1, 6.0)
        assert refused(session.end, 1, 1.0) == gap
        assert refused(session.end, 2, 1.0, truncated=True) == out_of_range
        assert refused(session.end, 2, 1.0, terminated=False, truncated=True) == "INVALID_ARGUMENT WRONG_SHAPE"
        end = session.end(2, 10.0)
        (episode,) = e.episodes(1)
        assert end.account.refused == 10
        plain.step(0)
        assert refused(plain.step, 1, 1.0) == refused(plain.end, 1, 1.0) == untrained
    np.testing.assert_array_equal(episode.rewards, [6.0, 10.0])
    with serving() as running:
        assert refused(RawSession, running.address) == untrained


@pytest.mark.parametrize("how", ["close", "expire", "reset", "stop", "drop"])
def test_a_session_that_disappears_is_cut_or_dropped(how: str) -> None:
    own = dataclasses.replace(weights(3, 7), state_stride=2)
    expected = oracle(from_weights(own), seed=11, steps=5)
    changes: dict[str, Any] = {"expire": {"session_timeout_s": 0.3}, "drop": {"disconnected": "drop"}}.get(how, {})
    with endpoint(FakeWeightStore(own), **changes) as e:
        with PolicyClient(e.address) as client:
            episode = client.episode(11, SPACES)
            episode.__enter__()
            play(episode, 5)
            if how in ("close", "drop"):
                episode.__exit__(KeyboardInterrupt)
            elif how == "reset":
                at_once(episode.resetting(1))
            elif how == "expire":
                wait_for(lambda: not len(e.running.service.sessions))
                with pytest.raises(SessionLost):
                    play(episode, 1, first=5)
        if how == "stop":
            e.running.loop.call_soon_threadsafe(e.running.server.stop.set)
        if how == "drop":
            wait_for(lambda: e.shipper.account("").dropped_sessions == 1)
            e.episodes(0)
            return
        # The reward of step 4 never arrived, because it travels with the next step.
        (cut,) = e.episodes(1)
        account = e.shipper.account("")
    same(cut, expected, 0, 4)
    assert (cut.truncated, cut.end_reason) == (True, EndReason.CUT)
    assert cut.bootstrap_value == pytest.approx(expected["bootstrap_values"][4], abs=2e-5)
    np.testing.assert_array_equal(cut.final_obs, expected["obs"][4])
    assert (account.cut_sessions, account.dropped_sessions) == (1, 0)


def test_a_full_queue_slows_clients_and_loses_nothing() -> None:
    with endpoint(queue=QueueConfig(max_episodes=2)) as e, PolicyClient(e.address) as client:
        session = RawSession(e.address)
        first, second = session.step(0), session.step(1, 0.0)
        for number in range(3):
            with client.episode(number, SPACES) as episode:
                play(episode, 2)
        wait_for(lambda: e.shipper.retry_s() > 0)
        with pytest.raises(grpc.RpcError) as caught:
            RawSession(e.address)
        assert refused(session.step, 2, 0.0) == refused(session.end, 2, 0.0) == "RESOURCE_EXHAUSTED QUEUE_FULL"
        assert (session.step(1, 0.0), first.step_index) == (second, 0)  # what is done can be repeated
        error: Any = caught.value
        wait = RetryInfo()
        assert any(
            detail.Unpack(wait) for detail in Status.FromString(dict(error.trailing_metadata())[DETAILS_KEY]).details
        )
        assert 0 < wait.retry_delay.ToTimedelta().total_seconds() == error_of_call(error).retry_s <= 1
        hasty = PolicyClient(e.address, deadline_s=0.5)
        with pytest.raises(PolicyError, match="the learner is behind"):
            hasty.episode(9, SPACES).__enter__()
        e.transport.ack([d.entry_id for d in e.transport.take(2, 0)])
        with client.episode(3, SPACES) as episode:  # waits until the queue has room
            play(episode, 2)
        wait_for(lambda: e.transport.ledger().accepted == 4)
        assert e.shipper.account("").dropped == 0
        e.transport.ack([d.entry_id for d in e.transport.take(2, 0)])  # room for the session that is still open


def publish(e: Endpoint, store: FakeWeightStore, version: int, generation: int = 1) -> None:
    store.newest = dataclasses.replace(weights(4, version), generation=generation)
    wait_for(lambda: e.running.service.models.newest.version == version)


@pytest.mark.parametrize(
    ("published", "options", "expected"),
    [
        # The next segment takes up the newest weights, so that long episodes do not grow stale.
        ((7, 7, 8, 8, 8, 8), {"max_segment_steps": 4}, [(1, [7, 7, 7, 7]), (1, [8, 8])]),
        # What newer weights did is no part of a segment that is too old to learn from.
        ((7, 9, 10, 10), {"max_lag": 2}, [(1, [7, 7]), (1, [10, 10])]),
        # Nor is what those of another generation did.
        ((7, 7, "next", 8), {}, [(1, [7, 7]), (2, [8, 8])]),
    ],
    ids=["segment", "outdated", "generation"],
)
def test_a_segment_has_weights_of_one_version(
    published: tuple[int | str, ...], options: dict[str, Any], expected: list[tuple[int, list[int]]]
) -> None:
    store = FakeWeightStore(weights(3, 7))
    with endpoint(store, **options) as e, PolicyClient(e.address) as client:
        generation = 1
        with client.episode(1, SPACES) as episode:
            for step, version in enumerate(published):
                if version == "next":
                    generation, version = e.transport.open_generation(7, "learner").number, 8
                publish(e, store, int(version), generation)
                play(episode, 1, first=step)
        segments = e.episodes(2)
    assert [(s.generation, list(s.policy_version)) for s in segments] == expected
    assert np.concatenate([s.rewards for s in segments]).tolist() == [reward_of(step) for step in range(len(published))]
    assert segments[0].truncated
    assert episode.summary.policy_lag == 0
