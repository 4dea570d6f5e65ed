"""`RedisTransport`: the transport on Redis (6.2 or newer) or Valkey.

All state changes are atomic Lua verbs; `lua/store.lua` documents the keys. Payloads do not pass through Lua: `put` and
`publish` SET them with an expiry, and the verb in the same pipeline removes the expiry when it accepts them. `take`
reads them after the verb has returned the references.
"""

from __future__ import annotations

import json
import secrets
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from actors.config import QueueConfig
from actors.errors import UserError
from actors.transport.base import (
    BUSY_RETRY_S,
    DeadLetter,
    Delivery,
    DropReason,
    EpisodeHeader,
    Generation,
    NewIncarnation,
    OutOfMemory,
    PutReply,
    PutStatus,
)
from actors.transport.health import Health
from actors.transport.ledger import ActorLedger, Ledger, LedgerMemory
from actors.transport.redis_entries import decode_dead_letter, decode_ref, encode_ref, entry_time_ms, is_ref, to_dict
from actors.transport.redis_exchange import Argument
from actors.transport.redis_reports import RedisReports
from actors.transport.redis_server import NOEVICTION, RETRIES, RedisServer
from actors.transport.redis_weights import RedisWeights
from actors.types.names import NAME_RULE, is_name
from actors.types.weights import WeightSet

PASSWORD_VARIABLE = "TAMIYO_REDIS_PASSWORD"
WEIGHTS_PASSWORD_VARIABLE = "TAMIYO_WEIGHTS_REDIS_PASSWORD"
BLOCK_S = 2.0  # longest blocking read, far below the socket timeout
SETTLE_BATCH = 1000  # entries per call, as Lua's stack is limited to about 8000 values


def connect(
    url: str, config: QueueConfig | None = None, namespace: str = "tamiyo", scripts: bool = False
) -> RedisTransport:
    """Connect to a `redis://`, `rediss://` or `unix://` URL.

    The password comes from the URL, else from the file that `TAMIYO_REDIS_PASSWORD_FILE` names, else from
    `TAMIYO_REDIS_PASSWORD`.

    Args:
        url: address of the server.
        config: limits of the queue, and the address of a separate server for weights.
        namespace: name of the run; prefixes all keys.
        scripts: use EVALSHA instead of functions, as on servers before Redis 7.

    Raises:
        UserError: the server does not answer, the login is refused, or the namespace is invalid.
    """
    if not is_name(namespace):
        raise UserError(f"{namespace!r} is not a valid run name: use {NAME_RULE}")
    config = config or QueueConfig()
    queue = RedisServer(url, namespace, PASSWORD_VARIABLE, scripts)
    weights = queue
    if config.weights_redis:
        weights = RedisServer(config.weights_redis, namespace, WEIGHTS_PASSWORD_VARIABLE, scripts)
    return RedisTransport(queue, weights, config)


def require_store(url: str, config: QueueConfig, namespace: str) -> None:
    """Check that the store can be used. Raises `UserError` if it does not answer, refuses the login, or evicts keys."""
    transport = connect(url, config, namespace)
    try:
        transport.require_noeviction()
    finally:
        transport.close()


def namespaces(url: str) -> list[str]:
    """List the runs on the server that a learner opened, in alphabetical order."""
    server = RedisServer(url, "", PASSWORD_VARIABLE)
    try:
        keys = {key.decode() for key in server.client.scan_iter(match="{*}:generations", count=1000)}
    finally:
        server.close()
    return sorted(key.removeprefix("{").removesuffix("}:generations") for key in keys)


class RedisTransport:
    """All three sides of the transport; see `actors.transport.base`. One per process, safe to share between threads."""

    def __init__(self, queue: RedisServer, weights: RedisServer, config: QueueConfig) -> None:
        self.queue, self._config = queue, config
        self._weights, self._reports = RedisWeights(weights, config), RedisReports(queue)
        self._generation = 0
        self._turn = 0  # the ledger's `turn` after this consumer's last call
        self._consuming = threading.Lock()  # serializes the calls that count as turns
        self._head = -1  # newest weights, as of the last put
        self._memory = 0  # id of the store's memory, as of the last put
        self._room = "0-0"  # the last entry of the stream `room`, as of the last put that was refused as BUSY
        self._eviction_checked = False

    def close(self) -> None:
        self.queue.close()
        self._weights.close()

    def require_noeviction(self) -> None:
        """Raise `UserError` if a server would evict keys; warn if it might, or if its policy cannot be read."""
        if not self._eviction_checked:
            for server in {self.queue, self._weights.server}:
                server.require_noeviction()
            self._eviction_checked = True

    def new_incarnation(self, actor: str) -> NewIncarnation:
        number, is_first = self.queue.call("new_incarnation", actor)
        return NewIncarnation(int(number), bool(is_first))

    @property
    def max_episode_bytes(self) -> int:
        return self._config.max_episode_bytes

    @property
    def turn(self) -> int:
        return self._turn

    @property
    def connections(self) -> int:
        return self.queue.connections

    def wait_for_room(self, timeout_s: float) -> None:
        block_ms = max(1, int(1000 * min(timeout_s, BLOCK_S)))
        self.queue.read("XREAD", "COUNT", 1, "BLOCK", block_ms, "STREAMS", self.queue.key("room"), self._room)

    def put(self, header: EpisodeHeader, payload: bytes) -> PutReply:
        return self.put_all([(header, payload)])[0]

    def put_all(self, episodes: Sequence[tuple[EpisodeHeader, bytes]]) -> list[PutReply]:
        return self._put(episodes)

    def import_episode(self, original_id: str, header: EpisodeHeader, payload: bytes) -> PutReply:
        return self._put([(header, payload)], original_id)[0]

    def report(
        self, actor: str, incarnation: int, totals: ActorLedger, health: Mapping[str, float], store: int = 0
    ) -> None:
        t = totals
        counts = (t.produced, t.accepted, t.dropped_backpressure, t.refused_fenced, t.unsent)
        self.queue.call("report", actor, incarnation, *counts, _encode_health(health), store)

    def current_generation(self) -> int:
        return int(self.queue.read("HGET", self.queue.key("generations"), "current") or 0)

    def claim_generation(self, number: int) -> None:
        self.queue.call("claim", _token(), number)
        if self._weights.server is not self.queue:
            self._weights.fence(number)

    def open_generation(
        self,
        restored_version: int,
        consumer: str,
        floor: Generation | None = None,
        memory: LedgerMemory | None = None,
        claimed: int = 0,
    ) -> Generation:
        self.require_noeviction()
        floor = floor or Generation(0, 0)
        known = (memory.ledger.store, memory.ledger.turn, *memory.after_loss().to_fields()) if memory else (0, 0)
        with self._consuming:
            new_store = 1 + secrets.randbelow(2**48)  # its id if it has none or lost its memory
            arguments = (_token(), restored_version, consumer, floor.number, floor.next_version, new_store, claimed)
            c = self._config
            limits = (c.max_episodes, c.max_bytes, c.max_episode_bytes, c.dead_letters_kept)
            reply = self.queue.call("open", *arguments, *limits, *known)
            number, version, self._turn, store = map(int, reply)
            self._generation = number
            if self._weights.server is not self.queue:
                version = max(version, 1 + self._weights.fence(number))
            return Generation(number, version, store, self._turn)

    def take(self, count: int, timeout_s: float) -> list[Delivery]:
        deadline = time.monotonic() + timeout_s
        while True:
            last, entries = self._consume("take", count)
            remaining_s = deadline - time.monotonic()
            if entries or remaining_s <= 0:
                return self._deliveries(entries)
            # XREAD waits without consuming: the next `take` checks the generation
            block_ms = max(1, int(1000 * min(remaining_s, BLOCK_S)))
            self.queue.read("XREAD", "COUNT", 1, "BLOCK", block_ms, "STREAMS", self.queue.key("episodes"), last)

    def resize(self, max_episodes: int) -> None:
        self._consume("resize", max(max_episodes, self._config.max_episodes))

    def pending(self) -> list[Delivery]:
        return self._deliveries(self.queue.call("pending", self._generation))

    def begin_attempt(self, entry_id: str) -> int:
        return int(self._consume("begin_attempt", entry_id)[0])

    def end_attempt(self, entry_id: str) -> None:
        self._consume("end_attempt", entry_id)

    def ack(self, entry_ids: Sequence[str]) -> list[str]:
        return self._settle(entry_ids, "trained")

    def revoke(self, count: int) -> None:
        self._consume("revoke", count)

    def drop(self, entry_ids: Sequence[str], reason: DropReason) -> list[str]:
        return self._settle(entry_ids, reason.value)

    def dead_letter(self, entry_id: str, reason: str) -> bool:
        return bool(self._consume("dead_letter", entry_id, reason)[0])

    def waiting(self, count: int) -> list[Delivery]:
        entries = self.queue.read("XRANGE", self.queue.key("episodes"), "-", "+", "COUNT", count)
        refs = [(entry_id, to_dict(found).get(b"ref", b"")) for entry_id, found in entries]
        return self._deliveries([part for entry_id, ref in refs if is_ref(ref) for part in (entry_id, ref)])

    def dead_letters(self) -> list[DeadLetter]:
        entries = self.queue.read("XRANGE", self.queue.key("dead"), "-", "+")
        letters = [found for dead_id, flat in entries if (found := decode_dead_letter(dead_id, to_dict(flat)))]
        self._reports.warn_about_unreadable("dead letters", len(entries) - len(letters))
        payloads = self._payloads([letter.header for letter in letters])
        return [replace(letter, payload=payload or b"") for letter, payload in zip(letters, payloads, strict=True)]

    def requeue(self, dead_id: str) -> PutStatus:
        status = self.queue.call("requeue", _token(), dead_id)[0].decode()
        if status == "MISSING":
            raise KeyError(f"no dead letter {dead_id} with a payload")
        return PutStatus(status)

    def report_learner(self, health: Mapping[str, float]) -> None:
        self.queue.read("HSET", self.queue.key("health"), "learner", _encode_health(health))

    def health(self) -> Health:
        return self._reports.health()

    def ledger(self) -> Ledger:
        return self._reports.ledger()

    def publish(self, weights: WeightSet) -> None:
        self._weights.publish(weights)
        if self._weights.server is not self.queue:
            self.queue.call("announce", weights.generation, weights.version)

    def head(self) -> int:
        return self._weights.head()

    def fetch(self, known: str = "") -> WeightSet | None:
        return self._weights.fetch(known)

    def _put(self, episodes: Sequence[tuple[EpisodeHeader, bytes]], original_id: str = "") -> list[PutReply]:
        """Put episodes, or import a single one, again if their payloads were lost on the way."""
        replies: list[PutReply] = []
        for _ in range(1 + RETRIES):
            statuses = self._offer(episodes[len(replies) :], original_id)
            lost = statuses[-1:] == ["MISSING"]
            replies += [self._reply(PutStatus(status)) for status in statuses[: -1 if lost else None]]
            if not lost:
                return replies
        raise UserError(f"Redis repeatedly lost payloads before they were accepted: {NOEVICTION}")

    def _offer(self, episodes: Sequence[tuple[EpisodeHeader, bytes]], original_id: str) -> list[str]:
        """Put episodes, or import a single one. Returns their statuses."""
        verb = ["import", original_id] if original_id else ["put"]
        start = self.queue.key("payload:")
        values = {start + h.episode_id: data for h, data in episodes if self._is_sent(len(data))}
        refs = [encode_ref(header, len(payload)) for header, payload in episodes]
        try:
            expiry_ms = int(1000 * self._config.payload_ttl_s)
            head, store, room, *statuses = self.queue.store(values, expiry_ms, *verb, *refs)
        except OutOfMemory:
            return ["BUSY"]
        self._head, self._memory, self._room = int(head), int(store), room.decode() or self._room
        return [status.decode() for status in statuses]

    def _is_sent(self, size: int) -> bool:
        """Whether the queue takes a payload of this size. Its limits are those of its learner, which may differ."""
        if size <= self._config.max_episode_bytes:
            return True
        limit = self.queue.read("HGET", self.queue.key("generations"), "max_episode_bytes")
        return size <= int(limit or 0)

    def _reply(self, status: PutStatus) -> PutReply:
        return PutReply(status, BUSY_RETRY_S if status is PutStatus.BUSY else 0.0, self._head, self._memory)

    def _consume(self, verb: str, *args: Argument) -> Any:
        with self._consuming:
            reply = self.queue.call(verb, _token(), self._generation, self._turn, *args)
            self._turn += 1
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
            Delivery(entry_id.decode(), header, payload or b"", entry_time_ms(entry_id), head)
            for entry_id, (header, head), payload in zip(ids, headers, payloads, strict=True)
        ]

    def _payloads(self, headers: Sequence[EpisodeHeader]) -> list[bytes | None]:
        start = self.queue.key("payload:")
        return self.queue.values([start + h.episode_id for h in headers])


def _token() -> str:
    """Identify a call, so that the store recognizes its repetition."""
    return secrets.token_hex(8)


def _encode_health(health: Mapping[str, float]) -> str:
    return json.dumps({**health, "reported_s": time.time()})
