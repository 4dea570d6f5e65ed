"""After a crash, pending episodes are probed one at a time, and only one that crashes the probe is set aside."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from actors.codec import encode_episode
from actors.transport.base import DropReason, EpisodeHeader, PutStatus
from actors.types.episode import Episode
from learner.intake import Intake, TakenEpisode, lag_split
from tests.support.learning.toy import toy_network, toy_seed, toy_wave
from tests.support.learning.toy_learner import toy_schema
from tests.support.queueing import counts
from tests.support.stores import Store


class Killed(BaseException):
    """Stands for the end of the process."""


def intake_of(store: Store, deadly: str = "", **queue: int) -> Intake:
    transport = store(**queue)
    transport.open_generation(0, "learner")

    def probe(episode: Episode) -> None:
        if episode.episode_id == deadly:
            raise Killed

    return Intake(transport, toy_schema(), max_policy_lag=4, probe=probe)


def left_pending(store: Store, count: int) -> list[str]:
    """Let a learner die with that many episodes in hand."""
    actor = store()
    actor.open_generation(-1, "learner")
    for episode in _in_turn([toy_seed(3, truncated=False, salt=i) for i in range(count)]):
        actor.put(EpisodeHeader.from_episode(episode), encode_episode(episode))
    return [d.header.episode_id for d in actor.take(count, 0)]


def _in_turn(seeds: list[int]) -> list[Episode]:
    """Return episodes in the order in which an actor puts them."""
    return sorted(toy_wave(toy_network(), seeds), key=lambda e: int(e.episode_id.rpartition("/")[2]))


def survivor(store: Store, deadly: str) -> Intake:
    """The intake of the first learner that does not die while it recovers, which is the fourth."""
    for _ in range(3):
        with pytest.raises(Killed):
            intake_of(store, deadly).recover(())
    intake = intake_of(store, deadly)
    intake.recover(())
    return intake


def test_an_episode_that_kills_is_set_aside_after_three_probes_and_the_others_are_trained(store: Store) -> None:
    ids = left_pending(store, 4)
    intake = survivor(store, deadly=ids[1])
    taken = intake.collect(3, 0, lambda: False)
    assert taken is not None
    assert [t.episode.episode_id for t in taken] == [ids[0], *ids[2:]]
    (letter,) = intake.consumer.dead_letters()
    assert (letter.header.episode_id, letter.reason) == (ids[1], "crashed the learner 3 times")
    assert len(intake.notes) == intake.dead_lettered == 1
    intake.consumer.ack([t.entry_id for t in taken])
    assert counts(intake.consumer, "trained", "dead_lettered", "pending") == (3, 1, 0)


def test_ends_that_come_after_the_probe_are_no_episodes_fault(store: Store) -> None:
    ids = left_pending(store, 3)
    for _ in range(6):  # each of these learners dies in its update
        intake = intake_of(store)
        intake.recover(())
        assert len(intake.collect(3, 0, lambda: False) or []) == 3
    assert intake.consumer.ledger().dead_lettered == 0
    survivor(store, deadly=ids[2])


def test_episodes_of_unpublished_versions_become_dead_letters(store: Store) -> None:
    """Their lag is negative, so no limit on the lag would ever drop them."""
    intake = intake_of(store)
    waves = toy_wave(toy_network(), [toy_seed(3, truncated=False, salt=i) for i in range(3)], generation=1)
    for episode, version in zip(waves, (4, 5, 2**40), strict=True):
        episode = dataclasses.replace(episode, policy_version=np.full(len(episode), version))
        intake.consumer.put(EpisodeHeader.from_episode(episode), encode_episode(episode))
    should_stop = iter([False] * 3 + [True] * 9)
    assert intake.collect(2, 4, lambda: next(should_stop)) is None  # only one is valid
    assert [letter.reason for letter in intake.consumer.dead_letters()] == [
        f"it was acted by weights {version}, but the newest are 4" for version in (5, 2**40)
    ]
    assert intake.dead_lettered == len(intake.notes) == 2


def test_faster_actors_wait_once_half_a_batch_does(store: Store) -> None:
    """The queue of two grows with batches of 16, and a quarter more, so that it need not grow each time."""
    intake = intake_of(store, max_episodes=2)
    waiting = _in_turn([toy_seed(2, truncated=False, salt=i) for i in range(32)])[::-1]

    def fill(stop: bool = False) -> bool:
        while waiting:
            e = waiting[-1]
            if intake.consumer.put(EpisodeHeader.from_episode(e), encode_episode(e)).status is PutStatus.BUSY:
                break
            waiting.pop()
        return stop

    fill()
    assert intake.consumer.ledger().queued == 2
    assert len(intake.collect(16, 0, fill) or []) == 16
    intake.consumer.drop([d.entry_id for d in intake.consumer.take(16, 0)], DropReason.STALE)
    fill()
    assert intake.consumer.ledger().queued == 10


@pytest.mark.parametrize("size", [1, 2, 3, 4, 7])
def test_batches_of_one_size_resize_the_queue_once(store: Store, size: int) -> None:
    """Counted by the store, whose turn is the number of the learner's calls."""
    intake, turns = intake_of(store), []
    for e in _in_turn([toy_seed(2, truncated=False, salt=i) for i in range(3 * size)]):
        intake.consumer.put(EpisodeHeader.from_episode(e), encode_episode(e))
    for _ in range(3):
        before = int(store.client.hget(store.key("generations"), "turn") or 0)
        assert len(intake.collect(size, 0, lambda: False) or []) == size
        turns.append(int(store.client.hget(store.key("generations"), "turn")) - before)
    assert turns == [2, 1, 1]


def test_lag_is_split_into_the_way_to_the_queue_and_the_wait_in_it() -> None:
    """By hand: acted at 3 and put when 5 was newest, two versions passed in flight, and four in the queue until 9."""
    (episode,) = toy_wave(toy_network(), [toy_seed(2, truncated=False)])
    old = dataclasses.replace(episode, policy_version=np.array([3, 4]))
    new = dataclasses.replace(episode, policy_version=np.array([9, 9]))
    split = lag_split([TakenEpisode("1-0", old, 5), TakenEpisode("2-0", new, 9)], version=9)
    assert split == {f"policy_lag_{k}": x for k, x in (("mean", 3), ("max", 6), ("in_flight", 1), ("in_queue", 2))}
