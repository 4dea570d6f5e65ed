"""`RedisTransport`: the transport on Redis (6.2 or newer) or Valkey.

All state changes are atomic Lua verbs; `lua/store.lua` documents the keys. Payloads do not pass through Lua: `put` and
`publish` SET them with an expiry, and the verb in the same pipeline removes the expiry when it accepts them. `take`
reads them after the verb has returned the references.
"""

from __future__ import annotations

import json
import logging
import secrets
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from actors.codec import InvalidWeights, WeightBlob, decode_weights, encode_weights, manifest_digest, payload_hash
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
from actors.transport.health import Health, read_rows
from actors.transport.ledger import MAX_FIELDS, STORED, ActorLedger, Ledger, LedgerMemory
from actors.transport.redis_entries import decode_dead_letter, decode_ref, encode_ref, entry_time_ms, to_dict
from actors.transport.redis_exchange import Argument
from actors.transport.redis_server import NOEVICTION, RETRIES, RedisServer
from actors.transport.weight_cache import WeightCache
from actors.transport.weight_head import SharedHead
from actors.types.names import NAME_RULE, is_name
from actors.types.weights import WeightSet

log = logging.getLogger(__name__)
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
    if not config.weights_redis:
        return RedisTransport(queue, queue, config)
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
        self._queue, self._weights, self._config = queue, weights, config
        self._generation = 0
        self._turn = 0  # the ledger's `turn` after this consumer's last call
        self._consuming = threading.Lock()  # serializes the calls that count as turns
        self._head = -1  # newest weights, as of the last put
        self._memory = 0  # id of the store's memory, as of the last put
        self._room = "0-0"  # the last entry of the stream `room`, as of the last put that was refused as BUSY
        self._eviction_checked = False
        self._cache = WeightCache(weights.namespace)
        self._shared_head = SharedHead(self._cache, weights.address)
        self._unreadable: dict[str, int] = {}  # part of the store -> unreadable rows when last read

    def close(self) -> None:
        self._cache.clear()
        self._queue.close()
        self._weights.close()

    def require_noeviction(self) -> None:
        """Raise `UserError` if a server would evict keys; warn if it might, or if its policy cannot be read."""
        if not self._eviction_checked:
            for server in {self._queue, self._weights}:
                server.require_noeviction()
            self._eviction_checked = True

    def new_incarnation(self, actor: str) -> NewIncarnation:
        number, is_first = self._queue.call("new_incarnation", actor)
        return NewIncarnation(int(number), bool(is_first))

    @property
    def max_episode_bytes(self) -> int:
        return self._config.max_episode_bytes

    @property
    def turn(self) -> int:
        return self._turn

    @property
    def connections(self) -> int:
        return self._queue.connections

    def wait_for_room(self, timeout_s: float) -> None:
        block_ms = max(1, int(1000 * min(timeout_s, BLOCK_S)))
        self._queue.read("XREAD", "COUNT", 1, "BLOCK", block_ms, "STREAMS", self._queue.key("room"), self._room)

    def put(self, header: EpisodeHeader, payload: bytes) -> PutReply:
        return self.put_all([(header, payload)])[0]

    def put_all(self, episodes: Sequence[tuple[EpisodeHeader, bytes]]) -> list[PutReply]:
        replies: list[PutReply] = []
        for _ in range(1 + RETRIES):
            statuses = self._offer(episodes[len(replies) :])
            lost = statuses[-1:] == ["MISSING"]
            replies += [self._reply(PutStatus(status)) for status in statuses[: -1 if lost else None]]
            if not lost:
                return replies
        raise UserError(f"Redis repeatedly lost payloads before they were accepted: {NOEVICTION}")

    def import_episode(self, original_id: str, header: EpisodeHeader, payload: bytes) -> PutReply:
        for _ in range(1 + RETRIES):
            status = self._offer([(header, payload)], original_id)[0]
            if status != "MISSING":
                return self._reply(PutStatus(status))
        raise UserError(f"Redis repeatedly lost payloads before they were accepted: {NOEVICTION}")

    def report(
        self, actor: str, incarnation: int, totals: ActorLedger, health: Mapping[str, float], store: int = 0
    ) -> None:
        t = totals
        counts = (t.produced, t.accepted, t.dropped_backpressure, t.refused_fenced, t.unsent)
        self._queue.call("report", actor, incarnation, *counts, _encode_health(health), store)

    def current_generation(self) -> int:
        return int(self._queue.read("HGET", self._queue.key("generations"), "current") or 0)

    def claim_generation(self, number: int) -> None:
        self._queue.call("claim", _token(), number)
        if self._weights is not self._queue:
            self._weights.call("fence", number)

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
            reply = self._queue.call("open", *arguments, *limits, *known)
            number, version, self._turn, store = map(int, reply)
            self._generation = number
            if self._weights is not self._queue:
                version = max(version, 1 + int(self._weights.call("fence", number)[0]))
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
            self._queue.read("XREAD", "COUNT", 1, "BLOCK", block_ms, "STREAMS", self._queue.key("episodes"), last)

    def resize(self, max_episodes: int) -> None:
        self._consume("resize", max(max_episodes, self._config.max_episodes))

    def pending(self) -> list[Delivery]:
        return self._deliveries(self._queue.call("pending", self._generation))

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
        entries = self._queue.read("XRANGE", self._queue.key("episodes"), "-", "+", "COUNT", count)
        flat = [part for entry_id, found in entries for part in (entry_id, to_dict(found).get(b"ref", b""))]
        own = [part for pair in zip(flat[::2], flat[1::2], strict=True) if _is_ref(pair[1]) for part in pair]
        return self._deliveries(own)

    def dead_letters(self) -> list[DeadLetter]:
        entries = self._queue.read("XRANGE", self._queue.key("dead"), "-", "+")
        letters = [found for dead_id, flat in entries if (found := decode_dead_letter(dead_id, to_dict(flat)))]
        self._warn_about_unreadable("dead letters", len(entries) - len(letters))
        payloads = self._payloads([letter.header for letter in letters])
        return [replace(letter, payload=payload or b"") for letter, payload in zip(letters, payloads, strict=True)]

    def requeue(self, dead_id: str) -> PutStatus:
        status = self._queue.call("requeue", _token(), dead_id)[0].decode()
        if status == "MISSING":
            raise KeyError(f"no dead letter {dead_id} with a payload")
        return PutStatus(status)

    def report_learner(self, health: Mapping[str, float]) -> None:
        self._queue.read("HSET", self._queue.key("health"), "learner", _encode_health(health))

    def health(self) -> Health:
        key = self._queue.key
        excess = self._excess_fields("health")
        (seconds, micros), current, head, oldest, rows = self._queue.read_together(
            ("TIME",),
            ("HGET", key("generations"), "current"),
            ("HGET", key("weights"), "head"),
            ("XRANGE", key("episodes"), "-", "+", "COUNT", 1),
            ("HMGET", key("health"), "learner") if excess else ("HGETALL", key("health")),
        )
        rows = {b"learner": rows[0] or b""} if excess else to_dict(rows)
        now_s = int(seconds) + int(micros) / 1e6
        learner, actors, unreadable = read_rows(rows)
        unreadable += excess
        self._warn_about_unreadable("health", unreadable)
        age_s = max(0.0, now_s - entry_time_ms(oldest[0][0]) / 1000) if oldest else 0.0
        head = -1 if head is None else int(head)
        return Health(now_s, int(current or 0), head, age_s, learner, actors, unreadable)

    def ledger(self) -> Ledger:
        key = self._queue.key
        excess, totals = self._excess_fields("ledger"), sorted(STORED)
        rows, entries, known = self._queue.read_together(
            ("HMGET", key("ledger"), *totals) if excess else ("HGETALL", key("ledger")),
            ("XLEN", key("episodes")),
            ("HMGET", key("generations"), "store", "turn"),
        )
        fields = {k.encode(): v for k, v in zip(totals, rows, strict=True) if v} if excess else to_dict(rows)
        store, turn = (int(n or 0) for n in known)
        ledger = Ledger.from_fields(fields, stream_entries=int(entries), store=store, turn=turn, unreadable=excess)
        self._warn_about_unreadable("ledger", ledger.unreadable)
        return ledger

    def _excess_fields(self, name: str) -> int:
        """Return the number of fields in a hash if they are too many to be read, else 0. Actors may write to it."""
        found = int(self._queue.read("HLEN", self._queue.key(name)))
        return found if found > MAX_FIELDS else 0

    def publish(self, weights: WeightSet) -> None:
        blob = encode_weights(weights)
        # the key holds the generation, so that a fenced learner cannot overwrite its successor's payload
        key = self._weights.key(f"weights:{weights.generation}:{weights.version}")
        arguments = (weights.generation, weights.version, blob.manifest, key, self._config.weights_kept)
        expiry_ms = int(1000 * self._config.payload_ttl_s)
        self._cache.add(payload_hash(blob.manifest), blob.payload)
        for _ in range(1 + RETRIES):
            head, status = self._weights.store({key: blob.payload}, expiry_ms, "publish", *arguments)
            if status == b"OLD":
                raise ValueError(f"weights {weights.version} are not newer than the published {int(head)}")
            if status == b"OK":
                break
        else:
            raise UserError(f"Redis repeatedly lost {key} before it was accepted: {NOEVICTION}")
        self._shared_head.saw(weights.version, manifest_digest(blob.manifest))
        if self._weights is not self._queue:
            self._queue.call("announce", weights.generation, weights.version)

    def head(self) -> int:
        return self._read_head()[0]

    def fetch(self, known: str = "") -> WeightSet | None:
        version, digest = self._shared_head.recent() or self._read_head()
        while version >= 0 and digest != known:
            names = (f"manifest:{version}", f"payload:{version}")
            found = self._weights.read("HMGET", self._weights.key("weights"), *names)
            manifest, key = found[0] or b"", found[1]
            read = partial(self._weights.read, "GET", key) if key else lambda: None
            sha256 = payload_hash(manifest)
            payload, checked = self._cache.payload(sha256, read) if sha256 else (read(), False)
            if payload is not None:
                return decode_weights(WeightBlob(manifest, payload), checked)
            before, (version, digest) = version, self._read_head()
            if version == before:
                raise InvalidWeights(
                    f"the store lost the payload of weights {version}; the learner's next version replaces it"
                )
        return None

    def _read_head(self) -> tuple[int, str]:
        """Read the newest version and its digest; -1 and "" if there is none."""
        head, digest = self._weights.read("HMGET", self._weights.key("weights"), "head", "digest")
        found = (-1, "") if head is None else (int(head), (digest or b"").decode())
        self._shared_head.saw(*found)
        return found

    def _offer(self, episodes: Sequence[tuple[EpisodeHeader, bytes]], original_id: str = "") -> list[str]:
        """Put episodes, or import a single one. Returns their statuses."""
        verb = ["import", original_id] if original_id else ["put"]
        start = self._queue.key("payload:")
        values = {start + h.episode_id: data for h, data in episodes if self._is_sent(len(data))}
        refs = [encode_ref(header, len(payload)) for header, payload in episodes]
        try:
            expiry_ms = int(1000 * self._config.payload_ttl_s)
            head, store, room, *statuses = self._queue.store(values, expiry_ms, *verb, *refs)
        except OutOfMemory:
            return ["BUSY"]
        self._head, self._memory, self._room = int(head), int(store), room.decode() or self._room
        return [status.decode() for status in statuses]

    def _is_sent(self, size: int) -> bool:
        """Whether the queue takes a payload of this size. Its limits are those of its learner, which may differ."""
        if size <= self._config.max_episode_bytes:
            return True
        limit = self._queue.read("HGET", self._queue.key("generations"), "max_episode_bytes")
        return size <= int(limit or 0)

    def _reply(self, status: PutStatus) -> PutReply:
        return PutReply(status, BUSY_RETRY_S if status is PutStatus.BUSY else 0.0, self._head, self._memory)

    def _consume(self, verb: str, *args: Argument) -> Any:
        with self._consuming:
            reply = self._queue.call(verb, _token(), self._generation, self._turn, *args)
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
        start = self._queue.key("payload:")
        return self._queue.values([start + h.episode_id for h in headers])

    def _warn_about_unreadable(self, part: str, count: int) -> None:
        """Log a warning whenever the number of unreadable rows has grown."""
        if count > self._unreadable.get(part, 0):
            log.warning("skipped %d rows of the store's %s that Tamiyo did not write", count, part)
        self._unreadable[part] = count


def _is_ref(ref: bytes) -> bool:
    """Return whether an entry is an episode, as actors have write access to the stream."""
    try:
        decode_ref(ref)
    except ValueError:
        return False
    return True


def _token() -> str:
    """Identify a call, so that the store recognizes its repetition."""
    return secrets.token_hex(8)


def _encode_health(health: Mapping[str, float]) -> str:
    return json.dumps({**health, "reported_s": time.time()})
