"""A store that comes back empty or older than the checkpoint knows it; on every backend."""

from __future__ import annotations

import pytest

from actors.transport.base import DropReason, Generation, Miscounted
from actors.transport.ledger import ActorLedger, LedgerMemory
from actors.transport.redis import Transport
from tests.support.queueing import BUSY, DUPLICATE, FENCED, OK, counts, put, report, take_ids
from tests.support.stores import Store


def remember(transport: Transport, *applied: int) -> LedgerMemory:
    """What a checkpoint records, in which it is JSON; `applied` are the sequence numbers that it trained on."""
    memory = LedgerMemory(transport.ledger(), tuple(f"run/a/0/{n}" for n in applied))
    assert LedgerMemory.from_dict(memory.to_dict()) == memory
    return memory


def test_an_empty_store_continues_from_the_checkpoint(any_store: Store) -> None:
    """Of ten accepted episodes, two are trained, two only in the checkpoint, one stale, one dead and four queued."""
    learner, empty = any_store(), any_store.freeze()
    opened = learner.open_generation(-1, "learner")
    put(learner, *range(10))
    report(learner, produced=12, accepted=10, unsent=2)
    with pytest.raises(Miscounted):  # an actor that knows the store's memory to be the same
        learner.report("a", 0, ActorLedger(12, 11, unsent=1), {}, opened.store)
    ids = take_ids(learner, 7)
    learner.ack(ids[:2])
    learner.dead_letter(ids[2], "reason")
    learner.drop([ids[3]], DropReason.STALE)
    memory = remember(learner, 4, 5)
    learner.ack(ids[4:6])
    put(learner, 10)
    empty()
    assert put(learner, 11) == [BUSY]  # until the learner opens it
    after = any_store()
    assert after.open_generation(8, "learner", Generation(4, 11), memory) == Generation(5, 11)
    assert counts(after, "accepted", "trained", "dropped_stale", "dead_lettered", "lost_with_store") == (10, 4, 1, 1, 4)
    assert counts(after, "queued", "pending", "dead_letters_evicted", "dead_bytes") == (0, 0, 1, 0)
    assert after.ledger().actors["a", 0] == ActorLedger(12, 10, unsent=2)
    assert put(after, 9, 11) == [DUPLICATE, OK]  # 9 was accepted and then lost
    report(after, produced=12, accepted=12)  # 10 had been accepted after the checkpoint
    assert counts(after, "accepted", "lost_with_store", "queued") == (12, 5, 1)
    assert after.ledger().actors["a", 0] == ActorLedger(12, 12)


def test_an_older_store_is_cleared(any_store: Store) -> None:
    """It still holds episodes that were trained since, which would otherwise be trained again."""
    learner = any_store()
    learner.open_generation(-1, "learner")
    put(learner, 0, 1)
    thaw = any_store.freeze()
    learner.ack(take_ids(learner))
    put(learner, 2)
    memory = remember(learner)
    thaw()
    after = any_store()
    after.open_generation(2, "learner", None, memory)
    assert after.take(9, 0) == []
    assert counts(after, "accepted", "trained", "lost_with_store") == (3, 2, 1)
    assert put(after, 1, 2, 3, generation=1) == [DUPLICATE, DUPLICATE, OK]
    assert put(after, 4, generation=1, version=3) == [FENCED]


def test_a_store_that_lost_only_puts_is_kept(any_store: Store) -> None:
    learner = any_store()
    learner.open_generation(-1, "learner")
    put(learner, 0, 1)
    memory, thaw = remember(learner), any_store.freeze()
    put(learner, 2)
    thaw()
    assert [d.header.sequence for d in learner.take(1, 0)] == [0]  # it remembers all turns
    after = any_store()
    after.open_generation(0, "learner", None, memory)
    report(after, produced=3, accepted=3)
    assert counts(after, "accepted", "pending", "queued", "lost_with_store") == (3, 1, 1, 1)


def test_an_episode_accepted_after_the_ledger_was_read_is_known_by_its_id(any_store: Store) -> None:
    """The store dies after the ledger was last read, and in between an episode was accepted and trained on."""
    learner, empty = any_store(), any_store.freeze()
    learner.open_generation(-1, "learner")
    put(learner, 0)
    memory = remember(learner, 0, 1)
    empty()
    after = any_store()
    after.open_generation(0, "learner", None, memory)
    assert put(after, 1) == [DUPLICATE]
    assert counts(after, "accepted", "trained", "lost_with_store") == (2, 2, 0)
