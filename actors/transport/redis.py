"""`Transport`: the queue and the weights on Redis (6.2 or newer) or Valkey.

Actors put episodes and report; the learner takes and settles episodes and publishes weights; actors fetch the weights.
All calls are idempotent under retries: repeating one whose reply was lost changes nothing.

All state changes are atomic Lua verbs; `lua/store.lua` documents the keys. Payloads do not pass through Lua, which
copies strings twice: `put` and `publish` SET them with an expiry, and the verb in the same pipeline removes the expiry
when it accepts them. `take` reads them after the verb has returned the references.
"""

from __future__ import annotations

import json
import secrets
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any

from actors.config import QueueConfig
from actors.errors import UserError
from actors.transport.base import (
    DeadLetter,
    Delivery,
    DropReason,
    EpisodeHeader,
    Generation,
    NewIncarnation,
    OutOfMemory,
    PutReply,
    PutStatus,
    decode_ref,
    encode_ref,
    header_of,
    to_dict,
)
from actors.transport.ledger import ActorLedger, LedgerMemory
from actors.transport.redis_exchange import Argument
from actors.transport.redis_reports import RedisReports
from actors.transport.redis_server import NOEVICTION, RETRIES, RedisServer
from actors.transport.redis_weights import RedisWeights
from actors.types.names import NAME_RULE, is_name

BLOCK_S = 2.0  # longest blocking read, far below the socket timeout
SETTLE_BATCH = 1000  # entries per call, as Lua's stack is limited to about 8000 values


def connect(url: str, config: QueueConfig | None = None, namespace: str = "tamiyo", scripts: bool = False) -> Transport:
    """Connect to a `redis://`, `rediss://` or `unix://` URL.

    The password comes from the URL, else from the file that `TAMIYO_REDIS_PASSWORD_FILE` names, else from
    `TAMIYO_REDIS_PASSWORD`.

    Args:
        url: address of the server.
        config: limits of the queue.
        namespace: name of the run; prefixes all keys.
        scripts: use EVALSHA instead of functions, as on servers before Redis 7.

    Raises:
        UserError: the server does not answer, the login is refused, or the namespace is invalid.
    """
    if not is_name(namespace):
        raise UserError(f"{namespace!r} is not a valid run name: use {NAME_RULE}")
    return Transport(RedisServer(url, namespace, scripts), config or QueueConfig())


def require_store(url: str, config: QueueConfig, namespace: str) -> None:
    """Check that the store can be used. Raises `UserError` if it does not answer, refuses the login, or evicts keys."""
    with closing(connect(url, config, namespace)) as transport:
        transport.server.require_noeviction()


def namespaces(url: str) -> list[str]:
    """List the runs on the server that a learner opened, in alphabetical order."""
    with closing(RedisServer(url, "")) as server:
        keys = {key.decode() for key in server.client.scan_iter(match="{*}:generations", count=1000)}
    return sorted(key.removeprefix("{").removesuffix("}:generations") for key in keys)


class Transport(RedisWeights, RedisReports):
    """One process's handle on the store of a run, safe to share between threads.

    The methods of the learner raise `Fenced` before `open_generation` and after another learner's, and `StoreReset` if
    the store does not remember this learner's last call, unless they need no generation.
    """

    def __init__(self, server: RedisServer, config: QueueConfig) -> None:
        RedisWeights.__init__(self, server, config)
        RedisReports.__init__(self, server)
        self._generation = 0
        self.turn = 0  # of this learner's last call, by the count of the store: one that counts fewer has lost it
        self._consuming = threading.Lock()  # serializes the calls that count as turns
        self._head = -1  # newest weights, as of the last put
        self._memory = 0  # id of the store's memory, as of the last put
        self._room = "0-0"  # the last entry of the stream `room`, as of the last put that was refused as BUSY
        self._eviction_checked = False

    def close(self) -> None:
        """Release the connections."""
        self._cache.clear()
        self.server.close()

    # The actor's side

    def new_incarnation(self, actor: str) -> NewIncarnation:
        """Start an incarnation of this actor. Its number is unique and larger than all earlier ones."""
        number, is_first = self.server.call("new_incarnation", actor)
        return NewIncarnation(int(number), bool(is_first))

    def wait_for_room(self, timeout_s: float) -> None:
        """After a BUSY reply, wait until the queue may have room again, at most `timeout_s`."""
        self._wait("room", self._room, timeout_s)

    def put(self, header: EpisodeHeader, payload: bytes) -> PutReply:
        """Put one encoded episode. Sequence numbers must increase; an oversize payload becomes a dead letter. The
        queue's limits are those of the learner's configuration."""
        return self.put_all([(header, payload)])[0]

    def put_all(self, episodes: Sequence[tuple[EpisodeHeader, bytes]]) -> list[PutReply]:
        """Put several episodes of one incarnation in one round trip.

        Stops at the first BUSY, which preserves their order; the replies are those of the episodes tried. Raises
        `Malformed`, and puts none, if they are of several incarnations.
        """
        return self._put(episodes, "put")

    def import_episode(self, original_id: str, header: EpisodeHeader, payload: bytes) -> PutReply:
        """Put an episode that was stored as a file with the id `original_id`.

        Returns DUPLICATE if that id was imported before, by anyone, as long as the store keeps its memory.
        """
        return self._put([(header, payload)], "import", original_id)[0]

    def report(
        self, actor: str, incarnation: int, totals: ActorLedger, health: Mapping[str, float], store: int = 0
    ) -> None:
        """Send a heartbeat with the incarnation's totals and its health figures.

        Unsent episodes of earlier incarnations are counted as lost with the actor. Episodes that the actor knows to be
        accepted and the store does not are counted as lost with the store, unless `store`, the id of the memory that
        accepted them, shows that nothing was lost (0 = unknown). Raises `Miscounted` then, `Malformed` for an invalid
        report, and changes nothing.
        """
        t = totals
        counts = (t.produced, t.accepted, t.dropped_backpressure, t.refused_fenced, t.unsent)
        self.server.call("report", actor, incarnation, *counts, _encode_health(health), store)

    # The learner's side

    def current_generation(self) -> int:
        """The newest generation that was claimed or opened, 0 = none. Needs no generation."""
        return int(self.server.read("HGET", self.server.key("generations"), "current") or 0)

    def claim_generation(self, number: int) -> None:
        """Fence all older generations, and change nothing else. Raises `Fenced` if `number` or a later one was claimed
        or opened before.

        A learner claims before it loads its checkpoint, so that an older learner can no longer acknowledge episodes
        that this checkpoint lacks.
        """
        self.server.call("claim", _token(), number)

    def open_generation(
        self,
        restored_version: int,
        consumer: str,
        floor: Generation | None = None,
        memory: LedgerMemory | None = None,
        claimed: int = 0,
    ) -> Generation:
        """Take over the queue, including its pending entries, after restoring a checkpoint.

        Waiting episodes of an older generation that used a version newer than `restored_version` are dropped as fenced.
        A store that is emptier or older than `memory` is cleared, and its ledger continues from `memory`.

        Args:
            restored_version: version of the weights in the checkpoint, -1 = none.
            consumer: name of the consumer.
            floor: the generation of the checkpoint. The new number is larger. If the store has no record of versions,
                `next_version` is at least that of `floor`.
            memory: the ledger in the checkpoint.
            claimed: a number that this consumer claimed, which is then opened; 0 opens the next number.

        Raises:
            Fenced: a generation later than `claimed` was claimed or opened.
        """
        if not self._eviction_checked:
            self.server.require_noeviction()
            self._eviction_checked = True
        floor = floor or Generation(0, 0)
        known = (memory.ledger.store, memory.ledger.turn, *memory.after_loss().to_fields()) if memory else (0, 0)
        with self._consuming:
            new_store = 1 + secrets.randbelow(2**48)  # its id if it has none or lost its memory
            arguments = (_token(), restored_version, consumer, floor.number, floor.next_version, new_store, claimed)
            c = self.config
            limits = (c.max_episodes, c.max_bytes, c.max_episode_bytes, c.dead_letters_kept)
            reply = self.server.call("open", *arguments, *limits, *known)
            self._generation, version, self.turn, store = map(int, reply)
            return Generation(self._generation, version, store, self.turn)

    def take(self, count: int, timeout_s: float) -> list[Delivery]:
        """Take at most `count` entries, oldest first. Waits up to `timeout_s` for the first one."""
        deadline = time.monotonic() + timeout_s
        while True:
            last, entries = self._consume("take", count)
            remaining_s = deadline - time.monotonic()
            if entries or remaining_s <= 0:
                return self._deliveries(entries)
            self._wait("episodes", last, remaining_s)  # without consuming: the next `take` checks the generation

    def resize(self, max_episodes: int) -> None:
        """Set how many episodes may wait in the queue, which are at least as many as its configuration says."""
        self._consume("resize", max(max_episodes, self.config.max_episodes))

    def pending(self) -> list[Delivery]:
        """All entries that were taken, by this generation or an earlier one, and not settled."""
        return self._deliveries(self.server.call("pending", self._generation))

    def begin_attempt(self, entry_id: str) -> int:
        """Record that decoding a pending entry begins. Returns how many attempts began and did not end, 0 if the entry
        is not pending here. Entries that crash the learner are recognized by this count."""
        return int(self._consume("begin_attempt", entry_id)[0])

    def end_attempt(self, entry_id: str) -> None:
        """Reset the entry's attempts: the learner survived."""
        self._consume("end_attempt", entry_id)

    def ack(self, entry_ids: Sequence[str]) -> list[str]:
        """Settle entries as trained and delete them; returns those that were pending here."""
        return self._settle(entry_ids, "trained")

    def revoke(self, count: int) -> None:
        """Move that many episodes from `trained` to `trained_then_lost`: the updates that used them were abandoned."""
        self._consume("revoke", count)

    def drop(self, entry_ids: Sequence[str], reason: DropReason) -> list[str]:
        """Settle entries untrained and delete them; returns those that were pending here."""
        return self._settle(entry_ids, reason.value)

    def dead_letter(self, entry_id: str, reason: str) -> bool:
        """Move a pending entry and its payload to the dead letters; returns False if it is not pending here."""
        return bool(self._consume("dead_letter", entry_id, reason)[0])

    def waiting(self, count: int) -> list[Delivery]:
        """The oldest `count` entries that are queued or pending, which stay where they are. Needs no generation."""
        entries = self.server.read("XRANGE", self.server.key("episodes"), "-", "+", "COUNT", count)
        found = [(entry_id, to_dict(flat)) for entry_id, flat in entries]
        episodes = [(entry_id, entry[b"ref"]) for entry_id, entry in found if header_of(entry)]
        return self._deliveries([part for episode in episodes for part in episode])

    def dead_letters(self) -> list[DeadLetter]:
        """The dead letters that are kept, oldest first, without foreign entries. Needs no generation."""
        entries = self.server.read("XRANGE", self.server.key("dead"), "-", "+")
        found = [(dead_id, to_dict(flat)) for dead_id, flat in entries]
        letters = [
            (dead_id, header, entry[b"reason"])
            for dead_id, entry in found
            if b"reason" in entry and (header := header_of(entry))
        ]
        self.warn_about_unreadable("dead letters", len(entries) - len(letters))
        payloads = self._payloads([header for _, header, _ in letters])
        return [
            DeadLetter(dead_id.decode(), header, payload or b"", reason.decode(errors="replace"))
            for (dead_id, header, reason), payload in zip(letters, payloads, strict=True)
        ]

    def requeue(self, dead_id: str) -> PutStatus:
        """Queue a dead letter again, within the limits of the queue. Needs no generation.

        Returns OK; or FENCED or BUSY, which leave the letter in place. Raises `KeyError` if there is no such letter or
        its payload was not kept.
        """
        status = self.server.call("requeue", _token(), dead_id)[0].decode()
        if status == "MISSING":
            raise KeyError(f"no dead letter {dead_id} with a payload")
        return PutStatus(status)

    def report_learner(self, health: Mapping[str, float]) -> None:
        """Store the learner's health figures for `health`. Needs no generation."""
        self.server.read("HSET", self.server.key("health"), "learner", _encode_health(health))

    def _put(self, episodes: Sequence[tuple[EpisodeHeader, bytes]], *verb: str) -> list[PutReply]:
        """Put or import episodes, again if their payloads were lost on the way."""
        replies: list[PutReply] = []
        for _ in range(1 + RETRIES):
            statuses = self._offer(episodes[len(replies) :], verb)
            lost = statuses[-1:] == ["MISSING"]
            known = self._head, self._memory
            replies += [PutReply(PutStatus(status), *known) for status in statuses[: -1 if lost else None]]
            if not lost:
                return replies
        raise UserError(f"Redis repeatedly lost payloads before they were accepted: {NOEVICTION}")

    def _offer(self, episodes: Sequence[tuple[EpisodeHeader, bytes]], verb: Sequence[str]) -> list[str]:
        start = self.server.key("payload:")
        values = {start + h.episode_id: data for h, data in episodes if self._is_sent(len(data))}
        refs = [encode_ref(header, len(payload)) for header, payload in episodes]
        try:
            expiry_ms = int(1000 * self.config.payload_ttl_s)
            head, store, room, *statuses = self.server.store(values, expiry_ms, *verb, *refs)
        except OutOfMemory:
            return ["BUSY"]
        self._head, self._memory, self._room = int(head), int(store), room.decode() or self._room
        return [status.decode() for status in statuses]

    def _is_sent(self, size: int) -> bool:
        """Whether the queue takes a payload of this size. Its limits are those of its learner, which may differ."""
        if size <= self.config.max_episode_bytes:
            return True
        limit = self.server.read("HGET", self.server.key("generations"), "max_episode_bytes")
        return size <= int(limit or 0)

    def _wait(self, stream: str, last: str | bytes, timeout_s: float) -> None:
        """Wait for an entry after `last`, for at most `timeout_s` and `BLOCK_S`."""
        block_ms = max(1, int(1000 * min(timeout_s, BLOCK_S)))
        self.server.read("XREAD", "COUNT", 1, "BLOCK", block_ms, "STREAMS", self.server.key(stream), last)

    def _consume(self, verb: str, *args: Argument) -> Any:
        with self._consuming:
            reply = self.server.call(verb, _token(), self._generation, self.turn, *args)
            self.turn += 1
            return reply

    def _settle(self, entry_ids: Sequence[str], term: str) -> list[str]:
        settled: list[str] = []
        for start in range(0, len(entry_ids), SETTLE_BATCH):
            batch = entry_ids[start : start + SETTLE_BATCH]
            settled += [entry.decode() for entry in self._consume("settle", term, *batch)]
        return settled

    def _deliveries(self, flat: Sequence[bytes]) -> list[Delivery]:
        ids, headers = flat[::2], [decode_ref(ref) for ref in flat[1::2]]
        payloads = self._payloads([header for header, _ in headers])
        return [
            Delivery(entry_id.decode(), header, payload or b"", head)
            for entry_id, (header, head), payload in zip(ids, headers, payloads, strict=True)
        ]

    def _payloads(self, headers: Sequence[EpisodeHeader]) -> list[bytes | None]:
        start = self.server.key("payload:")
        return list(self.server.read("MGET", *(start + h.episode_id for h in headers))) if headers else []


def _token() -> str:
    """Identify a call, so that the store recognizes its repetition."""
    return secrets.token_hex(8)


def _encode_health(health: Mapping[str, float]) -> str:
    return json.dumps({**health, "reported_s": time.time()})
