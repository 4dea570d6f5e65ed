"""`RedisServer`: a connection to Redis (6.2 or newer) or Valkey. Loads our functions, retries, translates errors."""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import unquote, urlsplit

import redis
from redis import exceptions
from redis import retry as redis_retry
from redis.backoff import ExponentialWithJitterBackoff, NoBackoff
from redis.sentinel import Sentinel

from actors.errors import UserError
from actors.text_file import as_utf8
from actors.transport.base import (
    Fenced,
    LoginRefused,
    Malformed,
    Miscounted,
    NoFunctions,
    OutOfMemory,
    StoreReset,
    Unreachable,
)
from actors.transport.lua_library import FUNCTIONS, KEYS, LIBRARY, SCRIPT, SCRIPT_SHA
from actors.transport.redis_exchange import Argument, exchange
from actors.transport.retry import LOGIN_S

log = logging.getLogger(__name__)
PASSWORD_VARIABLE = "TAMIYO_REDIS_PASSWORD"
CONNECT_TIMEOUT_S = 5.0
SOCKET_TIMEOUT_S = 30.0
NOEVICTION = "set its maxmemory-policy to noeviction; actors then wait while the store is full"
CLUSTER = "a Redis Cluster, which is not supported: give a server that is in none, behind Sentinel if it may fail over"
OLDEST = (6, 2)  # Redis
RETRIES = 5  # about 5 s, enough for a server that restarts
T = TypeVar("T")

# An error's code. Scripts on Redis 6.2 and pipelines put it inside a longer message.
_CODE = re.compile(r"(?:^|: -?)([A-Z]+) ")
_NO_FUNCTIONS = re.compile("unknown command .(FCALL|FUNCTION)")
# The server fails over or is a replica: a new connection may reach the next primary.
_FAILOVER = ("READONLY", "MASTERDOWN", "TRYAGAIN", "CLUSTERDOWN")
# Also: its disk is full, too few replicas follow it, a script blocks it, or it is loading its data.
_OUTAGES = (*_FAILOVER, "MISCONF", "NOREPLICAS", "BUSY", "LOADING")
# redis-py strips the code from errors that have a class.
_CODES: dict[type[redis.RedisError], str] = {
    exceptions.ReadOnlyError: "READONLY",
    exceptions.MasterDownError: "MASTERDOWN",
    exceptions.TryAgainError: "TRYAGAIN",
    exceptions.ClusterDownError: "CLUSTERDOWN",
    exceptions.OutOfMemoryError: "OOM",
    exceptions.BusyLoadingError: "LOADING",
}
# Errors raised by our verbs.
_VERB_ERRORS: dict[str, type[Exception]] = {
    "FENCED": Fenced,
    "RESET": StoreReset,
    "MALFORMED": Malformed,
    "MISCOUNT": Miscounted,
}


def code_of(error: redis.RedisError) -> str:
    """Return the error's code, such as READONLY; empty if it has none."""
    for kind, code in _CODES.items():
        if isinstance(error, kind):
            return code
    found = _CODE.search(str(error))
    return found[1] if found else ""


class RedisServer:
    """One server, restricted to the keys of one namespace. Safe to share between threads."""

    def __init__(self, url: str, namespace: str, scripts: bool = False) -> None:
        """Connect to `url`. With `scripts`, EVALSHA is used even if the server supports functions. Raises `UserError`
        if it does not answer or refuses the login."""
        # Opened so far. Before it rises, calls are executed exactly once, and the server cannot lose its memory without
        # a new id.
        self.connections = 0
        # untyped, as the types of replies depend on its options
        self.client: Any = _client(url, self._connected)
        self.namespace = namespace
        self.address = url.rpartition("@")[2]  # without user and password
        self._tag = f"{{{namespace}}}:"
        self._scripts = scripts
        self._refused_since: float | None = None  # by the monotonic clock: the first of the last calls, all refused

    def close(self) -> None:
        self.client.close()

    def _connected(self, connection: Any) -> None:
        self.connections += 1
        connection.on_connect()

    def key(self, name: str) -> str:
        """The full name of a key of this namespace."""
        return self._tag + name

    def read(self, *command: Argument) -> Any:
        """Execute a plain, idempotent command. Its reply is not converted: a hash is a list of fields and values."""
        return self._with_retries(lambda: self._exchange([command])[0])

    def read_together(self, *commands: Sequence[Argument]) -> list[Any]:
        """Execute several such commands as one transaction and return their replies."""
        return list(self._with_retries(lambda: self._exchange([("MULTI",), *commands, ("EXEC",)])[-1]))

    def call(self, verb: str, *args: Argument) -> Any:
        """Execute a verb of the Lua library."""
        return self._with_retries(lambda: self._exchange([self._command(verb, args)])[0])

    def require_noeviction(self) -> None:
        """Raise `UserError` if the server would evict keys; warn if it might, or if its policy cannot be read."""
        try:
            memory = self._with_retries(lambda: self.client.info("memory"))
        except redis.ResponseError:  # not permitted, or the command is renamed
            memory = {}
        policy, limit = memory.get("maxmemory_policy", ""), int(memory.get("maxmemory", 0))
        if not policy:
            log.warning("this user is not permitted to read whether Redis evicts keys: %s", NOEVICTION)
        elif policy.startswith("allkeys") and limit:
            raise UserError(
                f"Redis evicts keys when its memory is full (maxmemory-policy {policy}) and would silently lose "
                f"episodes and weights: {NOEVICTION}"
            )
        elif policy != "noeviction":  # no limit is set, or only keys that expire are evicted, which are put again
            log.warning("Redis may evict keys when its memory is full (maxmemory-policy %s): %s", policy, NOEVICTION)

    def store(self, values: dict[str, bytes], expiry_ms: int, verb: str, *args: Argument) -> Any:
        """SET large values with an expiry and call the verb that accepts or refuses them, in one round trip.

        NX prevents a retry from setting an expiry on a value that was already accepted.
        """

        sets = [("SET", key, value, "PX", expiry_ms, "NX") for key, value in values.items()]
        return self._with_retries(lambda: self._exchange([*sets, self._command(verb, args)])[-1])

    def _exchange(self, commands: Sequence[Sequence[Argument]]) -> list[Any]:
        """Send commands together and return their replies. Raises the last command's error, else the first one; a
        transaction's errors are in its reply."""
        replies = exchange(self.client.connection_pool, commands, redis.ResponseError)
        within = replies[-1] if isinstance(replies[-1], list) else []
        for reply in (replies[-1], *replies, *within):
            if isinstance(reply, redis.RedisError):
                raise reply
        return replies

    def _command(self, verb: str, args: Sequence[Argument]) -> list[Argument]:
        keys = [self.key(name) for name in KEYS[verb].split()]
        if self._scripts:
            return ["EVALSHA", SCRIPT_SHA, len(keys), *keys, verb, *args]
        return ["FCALL", f"{LIBRARY}_{verb}", len(keys), *keys, *args]

    def _with_retries(self, run: Callable[[], T]) -> T:
        """Return `run()`. Retries while the server fails over or lacks our functions; translates its errors."""
        for attempt in range(RETRIES):
            try:
                result = run()
                self._refused_since = None
                return result
            except redis.ResponseError as error:
                if (code := code_of(error)) in _OUTAGES:
                    if code in _FAILOVER:
                        self.client.connection_pool.disconnect()
                    time.sleep(0.1 * 2**attempt)
                else:
                    self._recover(error)
            except redis.AuthenticationError as error:
                now = time.monotonic()
                self._refused_since = self._refused_since or now
                if now - self._refused_since < LOGIN_S:
                    raise LoginRefused(f"Redis refuses the login ({error}), its password may be renewed") from error
                raise UserError(
                    f"Redis at {self.address} has refused the login for {now - self._refused_since:.0f} s ({error}): "
                    f"write the new password to the file that {PASSWORD_VARIABLE}_FILE names, or restart with the new "
                    "one"
                ) from error
            except (redis.ConnectionError, redis.TimeoutError) as error:
                self._refused_since = None
                raise Unreachable(f"Redis does not answer: {error}") from error
        try:
            return run()
        except redis.RedisError as error:
            raise Unreachable(f"Redis cannot serve requests: {error}") from error

    def _recover(self, error: redis.ResponseError) -> None:
        """Load our functions if the server lacks them, for example after a restart; raise any other error."""
        message, code = str(error), code_of(error)
        if isinstance(error, exceptions.AskError):  # or MOVED
            raise UserError(f"{self.address} is in {CLUSTER}") from error
        if kind := _VERB_ERRORS.get(code):
            raise kind(message.removeprefix(f"{code} ")) from error
        if code == "OOM":
            raise OutOfMemory(message) from error
        if _NO_FUNCTIONS.search(message):  # before Redis 7
            self._scripts = True
            return
        if not isinstance(error, exceptions.NoScriptError) and "Function not found" not in message:
            raise error
        try:
            if self._scripts:
                self.client.script_load(SCRIPT)
            else:
                self.client.function_load(FUNCTIONS)
        except exceptions.NoPermissionError as refusal:
            raise NoFunctions("the server lacks Tamiyo's functions, which only the learner may load") from refusal
        except redis.ResponseError as failure:
            if code_of(failure) == "OOM":
                raise OutOfMemory(
                    "Redis has reached its memory limit and cannot load Tamiyo's functions: raise its maxmemory, or "
                    "delete data that is not needed"
                ) from failure
            if code_of(failure) in _OUTAGES:
                raise Unreachable(f"Redis cannot serve requests: {failure}") from failure
            if "already exists" not in str(failure):  # another process loaded them first
                raise


def _client(url: str, connected: Callable[[Any], None]) -> redis.Redis:
    try:
        parts = urlsplit(url)
        shown = parts._replace(netloc=parts.netloc.rpartition("@")[2], query="").geturl()
        client = _open(
            url,
            socket_timeout=SOCKET_TIMEOUT_S,
            socket_connect_timeout=CONNECT_TIMEOUT_S,
            health_check_interval=30,
            retry=redis_retry.Retry(NoBackoff(), 0),  # reports a wrong address or password at once
            protocol=2,
            redis_connect_func=connected,
        )
        options = client.connection_pool.connection_kwargs
        login = _Login(options.pop("username", None), options.pop("password", None))
        options["credential_provider"] = login if any(login.get_credentials()) else None
    except ValueError as error:
        raise UserError(
            f"invalid Redis URL ({error}): give redis://host:port/0, rediss://..., unix:///path or "
            "redis+sentinel://host:port/NAME"
        ) from error
    try:
        client.ping()
        _require_supported(client, shown)
    except exceptions.NoPermissionError:
        pass  # the server answers, and PING is not needed otherwise
    except (redis.AuthenticationError, redis.ResponseError, exceptions.BusyLoadingError) as error:
        refused = isinstance(error, redis.AuthenticationError)
        if code_of(error) in _OUTAGES:
            raise UserError(
                f"Redis at {shown} answers but cannot serve requests ({error}): fix the cause it names, or wait until "
                "it has recovered"
            ) from Unreachable(str(error))
        raise UserError(
            f"Redis at {shown} refused the login ({error}): give user and password in the URL, the password in "
            f"{PASSWORD_VARIABLE}, or the path of a file that holds it in {PASSWORD_VARIABLE}_FILE"
        ) from (LoginRefused(f"Redis refuses the login ({error})") if refused else error)
    except (redis.RedisError, OSError, TypeError) as error:
        raise UserError(
            f"no Redis answers at {shown} ({error}): start one there, or leave the URL empty for an embedded server"
        ) from Unreachable(str(error))
    client.set_retry(redis_retry.Retry(ExponentialWithJitterBackoff(base=0.1, cap=2.0), RETRIES))
    return client


def _open(url: str, **options: Any) -> redis.Redis:
    """Create a client. `redis+sentinel://HOST:26379,HOST:26379/NAME/DB` asks Sentinels for the primary called NAME,
    again with each new connection. Raises `ValueError`."""
    parts = urlsplit(url)
    if parts.scheme != "redis+sentinel":
        client: redis.Redis = redis.Redis.from_url(url, **options)
        return client
    name, _, database = parts.path.strip("/").partition("/")
    hosts = [urlsplit(f"//{host}") for host in parts.netloc.rpartition("@")[2].split(",")]
    asked = {"socket_timeout": CONNECT_TIMEOUT_S, "protocol": options["protocol"]}
    addresses = [(host.hostname, host.port or 26379) for host in hosts]
    sentinel: Any = Sentinel(addresses, sentinel_kwargs=asked)  # type: ignore[no-untyped-call]
    password = unquote(parts.password) if parts.password else None
    options |= {"db": int(database or 0), "username": parts.username, "password": password}
    primary: redis.Redis = sentinel.master_for(name, **options)
    return primary


def _require_supported(client: redis.Redis, shown: str) -> None:
    """Raise `UserError` for a server of another kind or an old version. Users that may not ask are not refused."""
    try:
        info: Any = client.info("server")
    except redis.ResponseError:
        return
    mode = info.get("redis_mode") or info.get("server_mode")
    if mode == "sentinel":
        raise UserError(f"{shown} is a Sentinel: give redis+sentinel://HOST:26379/NAME, with the name of its primary")
    if mode == "cluster":
        raise UserError(f"{shown} is in {CLUSTER}")
    version = str(info.get("redis_version", "")).split(".")
    if all(part.isdigit() for part in version) and tuple(map(int, version[:2])) < OLDEST:
        raise UserError(f"Redis at {shown} has version {'.'.join(version)}: use 6.2 or newer, or Valkey")


class _Login(redis.CredentialProvider):
    """The user, and the password in the URL or from the environment, which is read again for each new connection."""

    def __init__(self, user: str | None, password: str | None) -> None:
        self._user, self._given = user, password
        self._known = password or password_from(PASSWORD_VARIABLE)

    def get_credentials(self) -> tuple[str] | tuple[str, str]:
        if not self._given:
            with suppress(UserError):  # the file is being replaced: the server refuses the old password, if it must
                self._known = password_from(PASSWORD_VARIABLE)
        return (self._user, self._known or "") if self._user else (self._known or "",)


def password_from(variable: str) -> str | None:
    """Read the password from the file that `VARIABLE_FILE` names, else from the variable itself; None if neither is
    set. Raises `UserError` if the file cannot be read."""
    if path := os.environ.get(f"{variable}_FILE"):
        try:
            return as_utf8(Path(path).read_bytes()).decode().strip()
        except OSError as error:
            raise UserError(f"cannot read {path}, named by {variable}_FILE ({error.strerror})") from error
        except UnicodeDecodeError as error:
            raise UserError(f"{path}, named by {variable}_FILE, is not a text in UTF-8: write it again") from error
    return os.environ.get(variable)
