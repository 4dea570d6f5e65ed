"""The transport on Redis (6.2 or newer) or Valkey. Keys are documented in `functions.lua`, which changes all of them.

Large values never pass through Lua: `put` and `publish` SET them with an expiry, which the function lifts when it
accepts them, in one pipeline; `take` reads them after the function has handed out the references.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import time
from collections.abc import Iterable, Sequence
from importlib.resources import files
from typing import Any
from urllib.parse import urlsplit

import redis
from redis.backoff import ExponentialWithJitterBackoff, NoBackoff
from redis.retry import Retry

from actors.codec import WeightBlob, decode_weights, encode_weights
from actors.config import QueueConfig
from actors.errors import UserError
from actors.transport.base import (
    BUSY_RETRY_S,
    DeadLetter,
    Delivery,
    DropReason,
    EpisodeHeader,
    Fenced,
    Generation,
    PutReply,
    PutStatus,
    Unreachable,
)
from actors.transport.ledger import ActorLedger, Ledger
from actors.weights import WeightSet

PASSWORD_VARIABLE = "TAMIYO_REDIS_PASSWORD"
CONNECT_TIMEOUT_S = 5.0
SOCKET_TIMEOUT_S = 30.0
BLOCK_S = 2.0  # longest single wait on the server, far below the socket timeout
RETRIES = 5  # about 5 s of a server that restarts

_LUA = files("actors.transport").joinpath("functions.lua").read_text("utf-8")
_LIBRARY = f"tamiyo_{hashlib.sha256(_LUA.encode()).hexdigest()[:12]}"  # versions of Tamiyo can share a server
_FUNCTIONS = f"#!lua name={_LIBRARY}\n{_LUA}" + "".join(  # a loop in Lua fails: loading has no standard library
    f"redis.register_function('{_LIBRARY}_{verb}', "
    f"function(keys, args) return verbs.{verb}(name_keys(keys), args) end)\n"
    for verb in re.findall(r"^function verbs\.(\w+)", _LUA, re.MULTILINE)
)
_SCRIPT = _LUA + "\nreturn verbs[ARGV[1]](name_keys(KEYS), {unpack(ARGV, 2)})\n"


class _Client(redis.Redis):
    """Tells callers, who know nothing of Redis, that it is gone."""

    def execute_command(self, *args: Any, **options: Any) -> Any:
        try:
            return super().execute_command(*args, **options)  # type: ignore[no-untyped-call]
        except (redis.ConnectionError, redis.TimeoutError) as error:
            raise Unreachable(f"Redis does not answer: {error}") from error


def connect(
    url: str, config: QueueConfig | None = None, namespace: str = "tamiyo", scripts: bool = False
) -> RedisTransport:
    """Connect to `redis://`, `rediss://` or `unix://`, with the password of the url, else of TAMIYO_REDIS_PASSWORD.

    `namespace` keeps runs apart on one server. `scripts` avoids functions on a server that has them. Raises
    `UserError`, one line, when nothing answers or the password is refused.
    """
    try:
        parts = urlsplit(url)
        shown = parts._replace(netloc=parts.netloc.rpartition("@")[2], query="").geturl()
        options: dict[str, Any] = {}
        if not parts.password and os.environ.get(PASSWORD_VARIABLE):
            options["password"] = os.environ[PASSWORD_VARIABLE]
        client = _Client.from_url(
            url,
            socket_timeout=SOCKET_TIMEOUT_S,
            socket_connect_timeout=CONNECT_TIMEOUT_S,
            health_check_interval=30,
            retry=Retry(NoBackoff(), 0),  # a wrong address or password is told at once
            protocol=2,
            **options,
        )
    except ValueError as error:
        raise UserError(f"bad Redis url ({error}): give redis://host:port/0, rediss://... or unix:///path") from error
    try:
        client.ping()
    except (Unreachable, redis.ResponseError) as error:
        reason = error.__cause__ or error
        if isinstance(reason, (redis.AuthenticationError, redis.ResponseError)):
            raise UserError(
                f"Redis at {shown} refused the login ({reason}): give the password in the url or in {PASSWORD_VARIABLE}"
            ) from error
        raise UserError(
            f"no Redis answers at {shown} ({reason}): start one there, or leave the url empty for an embedded server"
        ) from error
    client.set_retry(Retry(ExponentialWithJitterBackoff(base=0.1, cap=2.0), RETRIES))
    return RedisTransport(client, config or QueueConfig(), namespace, scripts)


class RedisTransport:
    """All three sides; see `actors.transport.base`. One per process, safe to share between threads."""

    def __init__(self, client: redis.Redis, config: QueueConfig, namespace: str, scripts: bool = False) -> None:
        self._client: Any = client  # whose replies depend on options that its types do not know
        self._config = config
        self._tag = f"{{{namespace}}}:"
        names = ("episodes", "ledger", "generations", "weights", "dead", "attempts", "replies", "payload:")
        self._keys = tuple(self._tag + name for name in names)
        self._scripts = scripts
        self._generation = 0

    def close(self) -> None:
        self._client.close()

    def put(self, header: EpisodeHeader, payload: bytes) -> PutReply:
        limits = (
            self._config.max_episodes,
            self._config.max_bytes,
            self._config.max_episode_bytes,
            self._config.dead_letters_kept,
        )
        oversize = len(payload) > self._config.max_episode_bytes
        key = None if oversize else self._key("payload:") + header.episode_id
        status, head = self._store(key, payload, "put", *_fields(header), len(payload), *limits)
        verdict = PutStatus(status.decode())
        return PutReply(verdict, BUSY_RETRY_S if verdict is PutStatus.BUSY else 0.0, int(head))

    def report(
        self, actor: str, incarnation: int, produced: int, dropped_backpressure: int, refused_fenced: int, unsent: int
    ) -> None:
        self._call("report", actor, incarnation, produced, dropped_backpressure, refused_fenced, unsent)

    def open_generation(self, went_back_to: int, consumer: str, floor: Generation | None = None) -> Generation:
        floor = floor or Generation(0, 0)
        reply = self._call("open", _token(), went_back_to, consumer, floor.number, floor.next_version)
        generation = Generation(int(reply[0]), int(reply[1]))
        self._generation = generation.number
        return generation

    def take(self, count: int, timeout_s: float) -> list[Delivery]:
        deadline = time.monotonic() + timeout_s
        while True:
            last, entries = self._call("take", _token(), self._generation, count)
            remaining_s = deadline - time.monotonic()
            if entries or remaining_s <= 0:
                return self._deliveries(entries)
            # waits without consuming: the function that then takes is the one that checks the generation
            block_ms = max(1, int(1000 * min(remaining_s, BLOCK_S)))
            self._client.xread({self._key("episodes"): last}, count=1, block=block_ms)

    def pending(self) -> list[Delivery]:
        return self._deliveries(self._call("pending", self._generation))

    def begin_attempt(self, entry_id: str) -> int:
        return int(self._call("begin_attempt", _token(), self._generation, entry_id)[0])

    def ack(self, entry_ids: Sequence[str]) -> list[str]:
        return self._settle(entry_ids, "trained")

    def drop(self, entry_ids: Sequence[str], reason: DropReason) -> list[str]:
        return self._settle(entry_ids, reason.value)

    def dead_letter(self, entry_id: str, reason: str) -> bool:
        limits = (self._config.dead_letters_kept, self._config.max_bytes)
        return bool(self._call("dead_letter", _token(), self._generation, entry_id, reason, *limits)[0])

    def dead_letters(self) -> list[DeadLetter]:
        entries = self._client.xrange(self._key("dead"))
        headers = [_header(fields) for _, fields in entries]
        return [
            DeadLetter(dead_id.decode(), header, payload or b"", fields[b"reason"].decode(errors="replace"))
            for (dead_id, fields), header, payload in zip(entries, headers, self._payloads(headers), strict=True)
        ]

    def requeue(self, dead_id: str) -> PutStatus:
        status = self._call("requeue", _token(), dead_id, self._config.max_episodes, self._config.max_bytes)[0].decode()
        if status == "MISSING":
            raise KeyError(f"no dead letter {dead_id} with a payload")
        return PutStatus(status)

    def ledger(self) -> Ledger:
        flat, entries = self._call("ledger")
        counts = {field.decode(): int(value) for field, value in _pairs(flat)}
        actors: dict[tuple[str, int], dict[str, int]] = {}
        for field, value in counts.items():
            owner, _, term = field.removeprefix("actor:").rpartition(":")
            actor, slash, incarnation = owner.rpartition("/")
            if field.startswith("actor:") and slash and term != "sequence":
                actors.setdefault((actor, int(incarnation)), {})[term] = value
        totals = {field: value for field, value in counts.items() if not field.startswith("actor:")}
        return Ledger(
            stream_entries=int(entries), actors={who: ActorLedger(**terms) for who, terms in actors.items()}, **totals
        )

    def publish(self, weights: WeightSet) -> None:
        blob = encode_weights(weights)
        # the generation in the key keeps a fenced learner from overwriting the payload of its successor
        key = f"{self._tag}weights:{weights.generation}:{weights.version}"
        arguments = (weights.generation, weights.version, blob.manifest, key, self._config.weights_kept)
        status, head = self._store(key, blob.payload, "publish", *arguments)
        if status == b"OLD":
            raise ValueError(f"weights {weights.version} are not newer than the published {int(head)}")

    def head(self) -> int:
        head = self._client.hget(self._key("weights"), "head")
        return -1 if head is None else int(head)

    def fetch(self, newer_than: int) -> WeightSet | None:
        while (version := self.head()) > newer_than:
            names = [f"manifest:{version}", f"payload:{version}"]
            found = self._client.hmget(self._key("weights"), names)
            payload = self._client.get(found[1]) if found[1] else None
            if payload is not None:
                return decode_weights(WeightBlob(found[0], payload))
            if self.head() == version:
                raise RuntimeError(f"the store lost the payload of weights {version}: publish them again")
        return None

    def _settle(self, entry_ids: Sequence[str], term: str) -> list[str]:
        if not entry_ids:
            return []
        return [entry.decode() for entry in self._call("settle", _token(), self._generation, term, *entry_ids)]

    def _deliveries(self, entries: Sequence[tuple[bytes, list[bytes]]]) -> list[Delivery]:
        headers = [_header(dict(_pairs(fields))) for _, fields in entries]
        return [
            Delivery(entry_id.decode(), header, payload or b"", int(entry_id.partition(b"-")[0]))
            for (entry_id, _), header, payload in zip(entries, headers, self._payloads(headers), strict=True)
        ]

    def _payloads(self, headers: Sequence[EpisodeHeader]) -> list[bytes | None]:
        if not headers:
            return []
        payloads = self._client.mget([self._key("payload:") + header.episode_id for header in headers])
        return list(payloads)

    def _key(self, name: str) -> str:
        return self._tag + name

    def _store(self, key: str | None, value: bytes, verb: str, *args: bytes | str | int) -> list[Any]:
        """SET a large value and call the function that accepts or refuses it, in one round trip.

        NX keeps a repetition from putting an expiry on a value that was already accepted.
        """
        expiry_ms = int(1000 * self._config.payload_ttl_s)
        for _ in range(1 + RETRIES):
            pipeline = self._client.pipeline(transaction=False)
            if key is not None:
                pipeline.set(key, value, px=expiry_ms, nx=True)
            pipeline.execute_command(*self._command(verb, args))
            try:
                replies = pipeline.execute(raise_on_error=False)
            except (redis.ConnectionError, redis.TimeoutError) as error:
                raise Unreachable(f"Redis does not answer: {error}") from error
            if key is not None and isinstance(replies[0], redis.RedisError):
                raise replies[0]
            reply: Any = replies[-1]
            if isinstance(reply, redis.ResponseError):
                self._recover(reply)
                reply = self._call(verb, *args)
            if reply[0] != b"MISSING":
                return list(reply)
        raise RuntimeError(f"Redis keeps losing {key} before it is accepted: is it evicting keys?")

    def _call(self, verb: str, *args: bytes | str | int) -> Any:
        try:
            return self._client.execute_command(*self._command(verb, args))
        except redis.ResponseError as error:
            self._recover(error)
        try:
            return self._client.execute_command(*self._command(verb, args))
        except redis.ResponseError as error:
            self._recover(error)
            raise

    def _command(self, verb: str, args: Iterable[bytes | str | int]) -> list[bytes | str | int]:
        if self._scripts:
            sha = hashlib.sha1(_SCRIPT.encode(), usedforsecurity=False).hexdigest()
            return ["EVALSHA", sha, len(self._keys), *self._keys, verb, *args]
        return ["FCALL", f"{_LIBRARY}_{verb}", len(self._keys), *self._keys, *args]

    def _recover(self, error: redis.ResponseError) -> None:
        """Load what the server lacks, as after its restart; raise any other error."""
        message = str(error)
        if message.startswith("FENCED"):
            raise Fenced(message.removeprefix("FENCED ")) from error
        if isinstance(error, redis.exceptions.NoScriptError):
            self._client.script_load(_SCRIPT)
        elif "unknown command" in message and not self._scripts:  # before Redis 7
            self._scripts = True
            self._client.script_load(_SCRIPT)
        elif "Function not found" in message:
            try:
                self._client.function_load(_FUNCTIONS)
            except redis.ResponseError as failure:
                if "already exists" not in str(failure):  # another process was faster
                    raise
        else:
            raise error


def _token() -> str:
    return secrets.token_hex(8)


def _fields(header: EpisodeHeader) -> tuple[str | int, ...]:
    """In the order of FIELDS in `functions.lua`, all but `bytes`."""
    h = header
    return h.episode_id, h.actor, h.incarnation, h.sequence, h.generation, h.oldest_version, h.newest_version


def _header(fields: dict[bytes, bytes]) -> EpisodeHeader:
    return EpisodeHeader(
        episode_id=fields[b"episode"].decode(),
        actor=fields[b"actor"].decode(),
        incarnation=int(fields[b"incarnation"]),
        sequence=int(fields[b"sequence"]),
        generation=int(fields[b"generation"]),
        oldest_version=int(fields[b"oldest"]),
        newest_version=int(fields[b"newest"]),
    )


def _pairs(flat: Sequence[bytes]) -> list[tuple[bytes, bytes]]:
    return list(zip(flat[::2], flat[1::2], strict=True))
