"""What the queue promises beyond the random histories in tests/property, on every kind of server."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from actors.transport.base import DropReason, EpisodeHeader, Fenced, Generation, Miscounted
from actors.transport.ledger import RETIRED, ROWS_KEPT, ActorLedger, LedgerMemory
from actors.transport.redis import Transport
from tests.conftest import FIRST_SERVER
from tests.support.builders import make_weights
from tests.support.queueing import BUSY, DUPLICATE, FENCED, OK, counts, header, put, report, take_ids
from tests.support.stores import Store


@pytest.fixture
def learner(any_store: Store) -> Transport:
    """A handle that has opened the first generation."""
    transport = any_store()
    transport.open_generation(-1, "learner")
    return transport


def in_threads(*calls: Callable[[], object]) -> None:
    with ThreadPoolExecutor(len(calls)) as pool:
        for done in [pool.submit(call) for call in calls]:
            done.result()


def test_names_of_every_valid_kind_are_kept(learner: Transport) -> None:
    names = ("0", "my_run.v2-x", "_", "A" * 100, "1719-run")
    headers = [EpisodeHeader(f"{name}/{name}/7/3", 1, 0, 0) for name in names]
    assert [learner.put(own, b"payload").status for own in headers] == [OK] * 5
    assert [d.header for d in learner.take(9, 0)] == headers
    assert {actor for actor, _ in learner.ledger().actors} == set(names)


@pytest.mark.parametrize("any_store", FIRST_SERVER, indirect=True)
def test_take_waits_for_a_put(learner: Transport, any_store: Store) -> None:
    timer = threading.Timer(0.15, put, [any_store(), 0])
    timer.start()
    started = time.monotonic()
    assert len(learner.take(5, 5.0)) == 1
    assert 0.1 < time.monotonic() - started < 2.0
    timer.join()
    started = time.monotonic()
    assert learner.take(5, 0.2) == []
    assert 0.15 < time.monotonic() - started < 1.0


def test_an_older_generation_is_refused_every_call_from_the_claim_on(any_store: Store) -> None:
    old, new = any_store(), any_store()
    assert old.current_generation() == 0
    with pytest.raises(Fenced):
        old.take(1, 0)
    old.open_generation(-1, "learner")
    old.publish(make_weights(0, generation=1))
    put(old, 0, 1, 2)
    ids, before = take_ids(old, 1), new.ledger()
    new.claim_generation(4)
    assert old.current_generation() == new.current_generation() == 4
    for verb in (
        lambda: old.take(1, 0),
        old.pending,
        lambda: old.begin_attempt(ids[0]),
        lambda: old.ack(ids),
        lambda: old.drop(ids, DropReason.STALE),
        lambda: old.dead_letter(ids[0], "reason"),
        lambda: old.revoke(1),
        lambda: old.publish(make_weights(1, generation=1)),
    ):
        with pytest.raises(Fenced):
            verb()
    assert new.ledger() == before  # the claim changed nothing else
    assert put(new, 3, version=7) == [OK]  # the version that generation 4 restores is not known yet
    assert new.open_generation(0, "learner", claimed=4) == Generation(4, 1)
    assert [d.entry_id for d in new.pending()] == ids
    assert counts(new, "accepted", "pending", "queued", "fenced") == (4, 1, 2, 1)


@pytest.mark.parametrize("number", [3, 4])
def test_a_number_is_claimed_once_and_only_the_latest_claim_is_opened(any_store: Store, number: int) -> None:
    slow, fast = any_store(), any_store()
    slow.claim_generation(4)
    with pytest.raises(Fenced):
        fast.claim_generation(number)
    fast.claim_generation(5)
    with pytest.raises(Fenced):
        slow.open_generation(-1, "learner", claimed=4)
    for _ in range(2):  # the second is a retry, as the reply may have been lost
        assert fast.open_generation(-1, "learner", claimed=5).number == 5
    put(fast, 0, generation=5)
    assert len(take_ids(fast)) == 1


@pytest.mark.parametrize("any_store", FIRST_SERVER, indirect=True)
def test_a_learner_that_waits_in_take_is_fenced_when_it_is_replaced(learner: Transport, any_store: Store) -> None:
    new = any_store()
    timer = threading.Timer(0.1, lambda: (new.open_generation(0, "other"), put(new, 0)))
    timer.start()
    with pytest.raises(Fenced):
        learner.take(1, 5.0)
    timer.join()
    assert len(new.take(1, 0)) == 1  # the old learner took nothing


def test_an_episode_is_fenced_by_its_newest_version(learner: Transport) -> None:
    learner.open_generation(3, "learner")
    mixed = [EpisodeHeader(f"run/a/0/{n}", 1, 3, newest) for n, newest in enumerate((4, 3))]
    assert [learner.put(own, b"payload").status for own in mixed] == [FENCED, OK]


def test_weights_are_published_and_fetched_and_old_versions_deleted(any_store: Store) -> None:
    learner, actor = any_store(weights_kept=2), any_store()
    assert actor.head() == -1
    assert actor.fetch() is None
    learner.open_generation(-1, "learner")
    for version in (0, 1, 2, 3, 3):  # repeating one changes nothing
        learner.publish(make_weights(version))
    for repeated in (make_weights(3, tensors={}), make_weights(1)):
        with pytest.raises(ValueError, match="not newer"):
            learner.publish(repeated)
    assert actor.head() == 3
    weights, expected = actor.fetch("of other weights"), make_weights(3)
    assert actor.fetch(weights.digest) is None
    assert (weights.version, weights.architecture, weights.burn_in) == (3, expected.architecture, expected.burn_in)
    assert all(np.array_equal(weights.tensors[name], tensor) for name, tensor in expected.tensors.items())
    assert actor.put(header(1), b"x").head_version == 3


def test_weights_of_a_store_that_started_afresh_are_followed(any_store: Store) -> None:
    """Also if it happens to have reached the same version again."""
    learner, actor, empty = any_store(), any_store(), any_store.freeze()
    known = ""
    for version, tensors in ((5, {}), (1, {}), (1, make_weights().tensors)):
        learner.open_generation(-1, "learner")
        learner.publish(make_weights(version, tensors=tensors))
        weights = actor.fetch(known)
        assert weights.version == version
        known = weights.digest
        empty()


def test_the_ledger_is_exact_under_concurrent_calls(any_store: Store) -> None:
    learner, watcher = any_store(max_episodes=4), any_store()
    learner.open_generation(-1, "learner")
    episodes = 60  # per actor
    trained: list[str] = []

    def produce(actor: str) -> None:
        transport = any_store(max_episodes=4)
        for sequence in range(episodes):
            while transport.put(header(sequence, actor=actor), b"payload").status is BUSY:
                time.sleep(0.001)

    def learn() -> None:
        deadline = time.monotonic() + 20
        while len(trained) < 2 * episodes and time.monotonic() < deadline:
            watcher.ledger().check()
            deliveries = learner.take(7, 0.05)
            watcher.ledger().check()
            learner.ack([d.entry_id for d in deliveries])
            trained.extend(d.header.episode_id for d in deliveries)

    in_threads(lambda: produce("a"), lambda: produce("b"), learn)
    assert sorted(trained) == sorted(f"run/{actor}/0/{n}" for actor in "ab" for n in range(episodes))
    assert counts(watcher, "accepted", "trained") == (2 * episodes, 2 * episodes)


def test_incarnation_numbers_are_times_and_unique_under_concurrent_calls(any_store: Store) -> None:
    """Actors may start in the same millisecond."""
    handles = [any_store() for _ in range(6)]
    handles[0].open_generation(-1, "learner")
    started: list[tuple[str, int, bool]] = []

    def start_incarnations(transport: Transport) -> None:
        for actor in "ab" * 5:
            new = transport.new_incarnation(actor)
            started.append((actor, new.number, new.is_first))

    now = time.time_ns() // 1_000_000
    in_threads(*(lambda t=transport: start_incarnations(t) for transport in handles))
    assert len({(actor, number) for actor, number, _ in started}) == len(started) == 60
    first = [(actor, number) for actor, number, is_first in started if is_first]
    assert sorted(first) == [(actor, min(n for a, n, _ in started if a == actor)) for actor in "ab"]
    assert all(abs(number - now) < 60_000 for _, number, _ in started)
    ahead = now + 600_000  # from a machine whose clock is ahead
    assert put(handles[0], 0, incarnation=ahead) == [OK]
    assert handles[0].new_incarnation("a").number == ahead + 1


def test_old_incarnations_share_one_row_so_that_the_ledger_does_not_grow(any_store: Store) -> None:
    """Each produces 6 episodes: 2 accepted, 1 dropped, 1 refused, and 2 unsent when its successor starts."""
    transport, count, ended = any_store(max_episodes=1000), 12, ActorLedger(6, 2, 1, 1, 0, 2)
    transport.open_generation(-1, "learner")

    def run_incarnations(first: int, end: int) -> int:
        for n in range(first, end):
            put(transport, 0, 1, incarnation=n)
            report(transport, n, produced=6, accepted=2, dropped_backpressure=1, refused_fenced=1, unsent=2)
        transport.ledger().check()
        return int(any_store.client.hlen(any_store.key("ledger")))

    fields = run_incarnations(0, count)
    kept = {("a", n): ended for n in range(count - ROWS_KEPT, count - 1)}
    retired, newest = ActorLedger(*((count - ROWS_KEPT) * n for n in (6, 2, 1, 1, 0, 2))), ActorLedger(6, 2, 1, 1, 2)
    assert transport.ledger().actors == {("a", RETIRED): retired, **kept, ("a", count - 1): newest}
    assert run_incarnations(count, 200) == fields


# A store that comes back empty or older than the checkpoint knows it


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


def test_an_older_store_is_cleared(learner: Transport, any_store: Store) -> None:
    """It still holds episodes that were trained since, which would otherwise be trained again."""
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


def test_a_store_that_lost_only_puts_is_kept(learner: Transport, any_store: Store) -> None:
    put(learner, 0, 1)
    memory, thaw = remember(learner), any_store.freeze()
    put(learner, 2)
    thaw()
    assert [d.header.sequence for d in learner.take(1, 0)] == [0]  # it remembers all turns
    after = any_store()
    after.open_generation(0, "learner", None, memory)
    report(after, produced=3, accepted=3)
    assert counts(after, "accepted", "pending", "queued", "lost_with_store") == (3, 1, 1, 1)


def test_an_episode_accepted_after_the_ledger_was_read_is_known_by_its_id(learner: Transport, any_store: Store) -> None:
    """The store dies after the ledger was last read, and in between an episode was accepted and trained on."""
    put(learner, 0)
    memory = remember(learner, 0, 1)
    any_store.empty()
    after = any_store()
    after.open_generation(0, "learner", None, memory)
    assert put(after, 1) == [DUPLICATE]
    assert counts(after, "accepted", "trained", "lost_with_store") == (2, 2, 0)
