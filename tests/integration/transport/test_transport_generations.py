"""Generations fence older learners, and episodes of weights that were rolled back; on every backend."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from actors.transport.base import DropReason, EpisodeHeader, Fenced, Generation, Transport
from tests.conftest import Connect
from tests.support.builders import make_episode, make_weights
from tests.support.queueing import FENCED, OK, counts, put, take_ids

pytestmark = pytest.mark.integration


def test_an_older_generation_is_refused_every_call(open_transport: Connect) -> None:
    old, new = open_transport(), open_transport()
    with pytest.raises(Fenced):
        old.take(1, 0)
    old.open_generation(-1, "learner")
    put(old, 0)
    ids = take_ids(old)
    new.open_generation(0, "learner")
    for verb in (
        lambda: old.take(1, 0),
        old.pending,
        lambda: old.begin_attempt(ids[0]),
        lambda: old.ack(ids),
        lambda: old.drop(ids, DropReason.STALE),
        lambda: old.dead_letter(ids[0], "reason"),
        lambda: old.publish(make_weights(0, generation=1)),
    ):
        with pytest.raises(Fenced):
            verb()
    assert new.ack(ids) == ids


def test_a_claim_refuses_older_generations_and_changes_nothing_else(open_transport: Connect) -> None:
    old, new = open_transport(), open_transport()
    assert old.current_generation() == 0
    old.open_generation(-1, "learner")
    old.publish(make_weights(0, generation=1))
    put(old, 0, 1, 2)
    ids = take_ids(old, 1)
    before = new.ledger()
    new.claim_generation(4)
    assert old.current_generation() == new.current_generation() == 4
    for verb in (lambda: old.ack(ids), old.pending, lambda: old.publish(make_weights(1, generation=1))):
        with pytest.raises(Fenced):
            verb()
    assert new.ledger() == before
    assert put(new, 3, version=7) == [OK]  # the version that generation 4 restores is not known yet
    assert new.open_generation(0, "learner", claimed=4) == Generation(4, 1)
    assert [d.entry_id for d in new.pending()] == ids
    assert counts(new, "accepted", "pending", "queued", "fenced") == (4, 1, 2, 1)


@pytest.mark.parametrize("number", [3, 4])
def test_a_number_is_claimed_once_and_only_the_latest_claim_is_opened(open_transport: Connect, number: int) -> None:
    slow, fast = open_transport(), open_transport()
    slow.claim_generation(4)
    with pytest.raises(Fenced):
        fast.claim_generation(number)
    fast.claim_generation(5)
    with pytest.raises(Fenced):
        slow.open_generation(-1, "learner", claimed=4)
    assert fast.open_generation(-1, "learner", claimed=5).number == 5
    assert fast.open_generation(-1, "learner", claimed=5).number == 5  # a retry, as the reply may have been lost
    put(fast, 0, generation=5)
    assert len(take_ids(fast)) == 1


def test_versions_continue_from_the_checkpoint_in_an_empty_store_that_was_claimed(transport: Transport) -> None:
    transport.claim_generation(7)
    assert transport.open_generation(40, "learner", Generation(6, 50), claimed=7) == Generation(7, 50)


def test_a_learner_that_waits_in_take_is_fenced_when_it_is_replaced(open_transport: Connect) -> None:
    old, new = open_transport(), open_transport()
    old.open_generation(-1, "learner")
    timer = threading.Timer(0.1, lambda: (new.open_generation(0, "other"), put(new, 0)))
    timer.start()
    with pytest.raises(Fenced):
        old.take(1, 5.0)
    timer.join()
    assert len(new.take(1, 0)) == 1  # the old learner took nothing


def test_episodes_of_weights_that_were_rolled_back_are_fenced(open_transport: Connect) -> None:
    old, new = open_transport(), open_transport()
    old.open_generation(-1, "learner")
    for version in range(6):
        old.publish(make_weights(version))
    for sequence, version in enumerate((2, 5, 3, 4)):
        put(old, sequence, version=version)
    taken = old.take(2, 0)
    assert new.open_generation(3, "learner") == Generation(2, 6)
    assert [d.header.newest_version for d in new.pending()] == [2]
    assert [d.header.newest_version for d in new.take(9, 0)] == [3]
    assert counts(new, "accepted", "fenced", "pending", "queued", "queued_bytes") == (4, 2, 2, 0, 0)
    assert put(new, 4, version=5) == [FENCED]
    assert put(new, 5, version=3) == [OK]
    assert put(new, 6, version=6, generation=2) == [OK]
    assert put(new, 7, version=0, generation=3) == [FENCED]  # of a run that started afresh since
    assert new.ack([d.entry_id for d in taken]) == [taken[0].entry_id]


def test_episodes_stay_fenced_in_later_generations(open_transport: Connect) -> None:
    transport = open_transport()
    for restored_version in (-1, 2, 9):
        transport.open_generation(restored_version, "learner")
    assert put(transport, 0, version=5, generation=1) == [FENCED]  # rolled back when the second generation opened
    assert put(transport, 1, version=5, generation=2) == [OK]
    assert put(transport, 2, version=2, generation=1) == [OK]


def test_an_episode_of_several_versions_is_fenced_by_its_newest(transport: Transport) -> None:
    transport.open_generation(-1, "learner")
    transport.open_generation(3, "learner")
    mixed = make_episode(steps=2, policy_version=np.array([3, 4]))
    assert transport.put(EpisodeHeader.from_episode(mixed), b"payload").status is FENCED


def test_generations_and_versions_continue_from_the_checkpoint_in_an_empty_store(transport: Transport) -> None:
    assert transport.open_generation(40, "learner", floor=Generation(6, 50)) == Generation(7, 50)
    assert put(transport, 0, generation=6, version=41) == [FENCED]
    assert put(transport, 1, generation=6, version=40) == [OK]


def test_versions_never_repeat_across_generations(open_transport: Connect) -> None:
    transport = open_transport()
    seen = []
    for restored_version in (-1, 1, 0):
        generation = transport.open_generation(restored_version, "learner")
        for version in range(generation.next_version, generation.next_version + 3):
            transport.publish(make_weights(version, generation.number))
            seen.append(version)
    assert seen == list(range(9))
