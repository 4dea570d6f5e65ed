"""Random histories of the queue: Redis and a simple model agree, and the ledger is exact after every step."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from actors.transport.base import DropReason, Fenced, Generation, PutStatus, StoreReset
from actors.transport.ledger import ActorLedger, Ledger, LedgerMemory
from actors.transport.redis import Transport, connect
from tests.conftest import SERVERS
from tests.support.builders import make_weights
from tests.support.queue_model import ModelStore, QueueModel
from tests.support.queueing import header
from tests.support.stores import SmallQueue

RUNS = itertools.count()
CONFIG = SmallQueue(max_episodes=4, max_bytes=18, max_episode_bytes=20, dead_letters_kept=2, weights_kept=2)
Both = tuple[QueueModel, Transport]


class QueueMachine(RuleBasedStateMachine):
    """Makes the same calls on both stores, through a current and a fenced handle each, and compares the replies."""

    url: str
    scripts: bool

    def __init__(self) -> None:
        super().__init__()
        self.namespace, self.store = f"machine{next(RUNS)}", ModelStore()
        self.current = self.open_both()
        self.replaced: Both | None = None
        self.every: list[QueueModel | Transport] = [*self.current]
        self.generation, self.published = 0, -1
        self.taken: list[tuple[str, str]] = []  # entry ids of one episode in both stores
        self.produced: dict[tuple[str, int], int] = {}
        self.first = 0  # incarnation; a server that loses its memory forgets the rows of those that were retired
        self.counted: Counter[str] = Counter()  # according to the replies alone
        self.remembered: tuple[list[LedgerMemory], Counter[str]] | None = None

    def open_both(self) -> Both:
        return QueueModel(CONFIG, self.store), connect(self.url, CONFIG, self.namespace, self.scripts)

    def teardown(self) -> None:
        for transport in self.every:
            transport.close()

    @rule(actor=st.sampled_from("ab"), number=st.integers(0, 5), step=st.integers(0, 2), age=st.integers(0, 3))
    def put(self, actor: str, number: int, step: int, age: int) -> None:
        incarnation = self.first + number
        sequence = self.produced.get((actor, incarnation), -1) + step  # step 0 repeats
        if sequence < 0:
            return
        self.produced[actor, incarnation] = sequence
        generation, version = max(0, self.generation - age // 2), max(0, self.published - age)
        size = 1 + (7 * sequence + 3 * age) % 23  # some are oversize
        own = header(sequence, generation, version, actor, incarnation)
        first, second = (transport.put(own, b"x" * size) for transport in self.current)
        assert first == second
        self.counted["accepted"] += first.status is PutStatus.OK

    @rule(actor=st.sampled_from("ab"), count=st.integers(2, 6))
    def put_several(self, actor: str, count: int) -> None:
        """Episodes after a BUSY keep their sequence numbers, and are put again later."""
        incarnation = self.first + 1
        start = self.produced.get((actor, incarnation), -1) + 1
        version, generation = max(0, self.published), self.generation
        headers = [header(n, generation, version, actor, incarnation) for n in range(start, start + count)]
        first, second = (t.put_all([(h, b"several") for h in headers]) for t in self.current)
        assert first == second
        statuses = [reply.status for reply in first]
        done = len(statuses) - (statuses[-1] is PutStatus.BUSY)
        assert PutStatus.BUSY not in statuses[:-1]
        assert done == count or statuses[-1] is PutStatus.BUSY
        self.counted["accepted"] += statuses.count(PutStatus.OK)
        self.produced[actor, incarnation] = start + done - 1

    @rule(actor=st.sampled_from("ab"), number=st.integers(0, 5), unsent=st.integers(0, 2), dropped=st.integers(0, 1))
    def report(self, actor: str, number: int, unsent: int, dropped: int) -> None:
        incarnation = self.first + number
        known = self.current[0].ledger().actors.get((actor, incarnation), ActorLedger())  # which has all rows
        accepted, refused = known.accepted, known.refused_fenced
        totals = ActorLedger(accepted + refused + unsent + dropped, accepted, refused, dropped, unsent)
        for transport in self.current:
            transport.report(actor, incarnation, totals, {})

    @rule(back=st.integers(0, 3))
    def open_generation(self, back: int) -> None:
        self.replaced, self.current = self.current, self.open_both()
        self.every += self.current
        restored_version = max(-1, self.published - back)
        first, second = (t.open_generation(restored_version, f"learner{self.generation % 2}") for t in self.current)
        assert first == second
        assert first.next_version > self.published
        self.generation = first.number
        pending = [transport.pending() for transport in self.current]
        assert [(d.header, d.payload) for d in pending[0]] == [(d.header, d.payload) for d in pending[1]]
        self.taken = [(a.entry_id, b.entry_id) for a, b in zip(*pending, strict=True)]

    @precondition(lambda self: self.generation > 0)
    @rule()
    def remember(self) -> None:
        """Record what a checkpoint records."""
        self.remembered = [LedgerMemory(transport.ledger(), ()) for transport in self.current], self.counted.copy()

    @precondition(lambda self: self.remembered is not None)
    @rule()
    def lose_the_store(self) -> None:
        """Empty both stores, and open them again from the recorded checkpoint."""
        assert self.remembered is not None
        self.store.lose_memory()
        client: Any = redis.Redis.from_url(self.url)
        client.delete(*client.keys(f"{{{self.namespace}}}:*"))
        client.close()
        for transport in self.current:
            with pytest.raises(StoreReset):
                transport.take(1, 0)
        self.replaced, self.current = None, self.open_both()
        self.every += self.current
        memories, self.counted = self.remembered[0], self.remembered[1].copy()
        floor = Generation(self.generation, self.published + 1)
        first, second = (
            t.open_generation(self.published, "learner", floor, memory)
            for t, memory in zip(self.current, memories, strict=True)
        )
        assert first == second == Generation(self.generation + 1, self.published + 1)
        for transport, memory in zip(self.current, memories, strict=True):
            ledger = transport.ledger()
            lost = memory.ledger.queued + memory.ledger.pending
            assert ledger.lost_with_store == memory.ledger.lost_with_store + lost
        self.generation, self.taken, self.remembered = first.number, [], None
        self.first += 6

    @precondition(lambda self: self.generation > 0)
    @rule()
    def publish(self) -> None:
        self.published = max(self.published, self.current[0].head()) + 1
        for transport in self.current:
            transport.publish(make_weights(self.published, self.generation))
        assert self.current[0].head() == self.current[1].head() == self.published

    @precondition(lambda self: self.generation > 0)
    @rule(count=st.integers(1, 5))
    def take(self, count: int) -> None:
        first, second = (transport.take(count, 0) for transport in self.current)
        assert [(d.header, d.payload) for d in first] == [(d.header, d.payload) for d in second]
        self.taken += [(a.entry_id, b.entry_id) for a, b in zip(first, second, strict=True)]

    @precondition(lambda self: self.taken)
    @rule(data=st.data(), verb=st.sampled_from(["ack", "stale", "fenced"]))
    def settle(self, data: st.DataObject, verb: str) -> None:
        chosen = data.draw(st.lists(st.sampled_from(self.taken), max_size=4))
        for side, transport in enumerate(self.current):
            ids = [pair[side] for pair in chosen]
            reason = DropReason.STALE if verb == "stale" else DropReason.FENCED
            settled = transport.ack(ids) if verb == "ack" else transport.drop(ids, reason)
            assert settled == list(dict.fromkeys(ids))
        self.counted[verb] += len(set(chosen))
        self.taken = [pair for pair in self.taken if pair not in chosen]

    @precondition(lambda self: self.current[0].ledger().trained)
    @rule(data=st.data())
    def revoke(self, data: st.DataObject) -> None:
        revoked = data.draw(st.integers(1, self.current[0].ledger().trained))
        for transport in self.current:
            transport.revoke(revoked)

    @precondition(lambda self: self.taken)
    @rule(data=st.data())
    def attempt_and_dead_letter(self, data: st.DataObject) -> None:
        pair = data.draw(st.sampled_from(self.taken))
        first, second = (t.begin_attempt(entry_id) for t, entry_id in zip(self.current, pair, strict=True))
        assert first == second > 0
        assert all(t.dead_letter(entry_id, "reason") for t, entry_id in zip(self.current, pair, strict=True))
        self.taken.remove(pair)

    @rule(index=st.integers(0, 1))
    def requeue(self, index: int) -> None:
        letters = [transport.dead_letters() for transport in self.current]
        views = [[(letter.header, letter.payload, letter.reason) for letter in side] for side in letters]
        assert views[0] == views[1]
        if index >= len(letters[0]):
            return
        if letters[0][index].payload:
            first, second = (t.requeue(side[index].dead_id) for t, side in zip(self.current, letters, strict=True))
            assert first == second
        else:
            for transport, side in zip(self.current, letters, strict=True):
                with pytest.raises(KeyError):
                    transport.requeue(side[index].dead_id)

    @precondition(lambda self: self.replaced is not None)
    @rule()
    def replaced_handles_are_fenced(self) -> None:
        for side, transport in enumerate(self.replaced or ()):
            with pytest.raises(Fenced):
                transport.take(5, 0)
            with pytest.raises(Fenced):
                transport.ack([pair[side] for pair in self.taken] or ["1-1"])

    @invariant()
    def ledgers_are_exact_and_agree(self) -> None:
        ledgers: list[Ledger] = [transport.ledger() for transport in self.current]
        for ledger in ledgers:
            ledger.check()
            assert ledger.accepted == self.counted["accepted"]
            assert ledger.trained + ledger.trained_then_lost == self.counted["ack"]
            assert ledger.dropped_stale == self.counted["stale"]
        apart = {"actors": None, "store": None}
        assert {**vars(ledgers[0]), **apart} == {**vars(ledgers[1]), **apart}
        newest = {actor: max(n for name, n in ledgers[1].actors if name == actor) for actor, _ in ledgers[1].actors}
        for actor, number in newest.items():
            assert ledgers[0].actors[actor, number] == ledgers[1].actors[actor, number]
            assert summed(ledgers[0], actor) == summed(ledgers[1], actor)


def summed(ledger: Ledger, actor: str) -> ActorLedger:
    """The sums over an actor's incarnations, old ones of which share a row on a server."""
    total = ActorLedger()
    for (name, _), row in ledger.actors.items():
        total = total.plus(row) if name == actor else total
    return total


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("more", [1, pytest.param(100, marks=pytest.mark.long)])
@pytest.mark.parametrize("server", SERVERS)
def test_servers_agree_with_the_model(server_urls: dict[str, str], server: str, more: int) -> None:
    scripts = server.endswith("scripts")
    machine = type("Machine", (QueueMachine,), {"url": server_urls[server], "scripts": scripts})
    chosen: dict[str, Any] = {
        "max_examples": more * (30 if server == "valkey" else 10),
        "suppress_health_check": list(HealthCheck),
    }
    run_state_machine_as_test(machine, settings=settings(stateful_step_count=40, deadline=None, **chosen))
