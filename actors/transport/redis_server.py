"""`RedisServer`: one Redis (6.2 or newer) or Valkey, our functions on it, and its errors told in our words."""

from __future__ import annotations

import hashlib
import logging
import os
import re
import time
from collections.abc import Callable, Sequence
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import redis
from redis import exceptions
from redis.backoff import ExponentialWithJitterBackoff, NoBackoff
from redis.retry import Retry

from actors.errors import UserError
from actors.transport.base import Fenced, Malformed, NoFunctions, OutOfMemory, StoreReset, Unreachable

log = logging.getLogger(__name__)
CONNECT_TIMEOUT_S = 5.0
SOCKET_TIMEOUT_S = 30.0
NOEVICTION = "set its maxmemory-policy to noeviction, with which a full store makes actors wait"
RETRIES = 5  # about 5 s of a server that restarts
Argument = bytes | str | int
T = TypeVar("T")

_LUA = "".join(
    files("actors.transport").joinpath("lua", f"{name}.lua").read_text("utf-8")
    for name in ("store", "incarnations", "producer", "consumer", "weights")
)
_VERBS = re.findall(r"^function verbs\.(\w+)", _LUA, re.MULTILINE)
_LIBRARY = f"tamiyo_{hashlib.sha256(_LUA.encode()).hexdigest()[:12]}"  # versions of Tamiyo can share a server
# What frees memory must work when there is none left; a put may not. A loop in Lua fails: loading has no library.
_FUNCTIONS = f"#!lua name={_LIBRARY}\n{_LUA}" + "".join(
    f"redis.register_function{{function_name='{_LIBRARY}_{verb}', "
    f"callback=function(keys, args) return verbs.{verb}(name_keys(keys), args) end"
    + ("}\n" if verb in ("put", "publish") else ", flags={'allow-oom'}}\n")
    for verb in _VERBS
)
# A script may write in want of memory once it has made a write that takes none.
_SCRIPT = (
    _LUA
    + """
local k = name_keys(KEYS)
if ARGV[1] ~= 'put' and ARGV[1] ~= 'publish' then redis.call('HDEL', k.ledger or k.weights, '') end
return verbs[ARGV[1]](k, {unpack(ARGV, 2)})
"""
)
_SHA = hashlib.sha1(_SCRIPT.encode(), usedforsecurity=False).hexdigest()

_KEYS = {
    "new_incarnation": "ledger health retired",
    "put": "episodes ledger generations weights dead health retired payload:",
    "report": "ledger health retired",
    "claim": "generations weights replies",
    "open": "episodes ledger generations made weights dead attempts replies health retired payload:",
    "take": "episodes ledger generations replies",
    "pending": "episodes ledger generations",
    "begin_attempt": "episodes ledger generations attempts replies",
    "end_attempt": "episodes ledger generations attempts replies",
    "settle": "episodes ledger generations made attempts replies payload:",
    "dead_letter": "episodes ledger generations dead attempts replies payload:",
    "requeue": "episodes ledger generations dead replies payload:",
    "fence": "weights",
    "publish": "weights",
    "announce": "weights",
}

# The code of an error: where scripts of Redis 6.2 or a pipeline raised it, within a message of theirs.
_CODE = re.compile(r"(?:^|: -?)([A-Z]+) ")
_NO_FUNCTIONS = re.compile("unknown command .(FCALL|FUNCTION)")
# A server that fails over, or is a replica for now: another attempt may find the next primary.
_ELSEWHERE = ("READONLY", "MASTERDOWN", "TRYAGAIN", "CLUSTERDOWN")
# Its disk is full, too few replicas follow it, a script keeps it busy, or it reads its file.
_OUTAGES = (*_ELSEWHERE, "MISCONF", "NOREPLICAS", "BUSY", "LOADING")


# Errors that have a class have lost their code.
_KINDS: dict[type[redis.RedisError], str] = {
    exceptions.ReadOnlyError: "READONLY",
    exceptions.MasterDownError: "MASTERDOWN",
    exceptions.TryAgainError: "TRYAGAIN",
    exceptions.ClusterDownError: "CLUSTERDOWN",
    exceptions.OutOfMemoryError: "OOM",
    exceptions.BusyLoadingError: "LOADING",
}
# Errors that our own verbs reply with.
_OURS: dict[str, type[Exception]] = {"FENCED": Fenced, "RESET": StoreReset, "MALFORMED": Malformed}


def code_of(error: redis.RedisError) -> str:
    """The word that says what kind of error it is; empty where there is none."""
    for kind, code in _KINDS.items():
        if isinstance(error, kind):
            return code
    found = _CODE.search(str(error))
    return found[1] if found else ""


class RedisServer:
    """Keys of one namespace on one server. Safe to share between threads."""

    def __init__(self, url: str, namespace: str, variable: str, scripts: bool = False) -> None:
        """`variable` names the environment variable that may hold the password. Raises `UserError`, one line, when
        nothing answers or the login is refused. `scripts` avoids functions on a server that has them."""
        self.client: Any = _client(url, variable)  # whose replies depend on options that its types do not know
        self._tag = f"{{{namespace}}}:"
        self._scripts = scripts

    def close(self) -> None:
        self.client.close()

    def key(self, name: str) -> str:
        return self._tag + name

    def read(self, *command: Argument) -> Any:
        return self._patiently(lambda: self.client.execute_command(*command))

    def read_together(self, *commands: Sequence[Argument]) -> list[Any]:
        """The replies of several commands, of one moment."""

        def run() -> list[Any]:
            pipeline = self.client.pipeline(transaction=True)
            for command in commands:
                pipeline.execute_command(*command)
            return list(pipeline.execute())

        return self._patiently(run)

    def call(self, verb: str, *args: Argument) -> Any:
        return self._patiently(lambda: self.client.execute_command(*self._command(verb, args)))

    def require_noeviction(self) -> None:
        """Raises `UserError` where the server evicts what it should keep; warns where it may, or does not say."""
        policy, limit = self._eviction()
        if not policy:
            log.warning("Redis does not let this user see whether it evicts keys: %s", NOEVICTION)
        elif policy.startswith("allkeys") and limit:
            raise UserError(
                f"Redis evicts keys when its memory is full (maxmemory-policy {policy}), and so would lose episodes "
                f"and weights without a word: {NOEVICTION}"
            )
        elif policy != "noeviction":  # without a limit, or only what it has not accepted yet, which is put again
            log.warning("Redis may evict keys when its memory is full (maxmemory-policy %s): %s", policy, NOEVICTION)

    def _eviction(self) -> tuple[str, int]:
        """Policy and limit in bytes (0 = none); an empty policy where the server tells neither."""
        for command in (("INFO", "memory"), ("CONFIG", "GET", "maxmemory*")):
            try:
                told = self.read(*command)
            except redis.ResponseError:  # not permitted, or renamed
                continue
            if isinstance(told, list):
                told = dict(zip(told[::2], told[1::2], strict=True))
            said = {_text(name).replace("-", "_"): _text(value) for name, value in told.items()}
            if "maxmemory_policy" in said:
                return said["maxmemory_policy"], int(said.get("maxmemory", 0))
        return "", 0

    def store(self, values: dict[str, bytes], expiry_ms: int, verb: str, *args: Argument) -> Any:
        """SET large values and call the verb that accepts or refuses them, in one round trip.

        NX keeps a repetition from putting an expiry on a value that was already accepted.
        """

        def run() -> Any:
            pipeline = self.client.pipeline(transaction=False)
            for key, value in values.items():
                pipeline.execute_command("SET", key, value, "PX", expiry_ms, "NX")
            pipeline.execute_command(*self._command(verb, args))
            replies = pipeline.execute(raise_on_error=False)
            for reply in (*replies[-1:], *replies):
                if isinstance(reply, redis.RedisError):
                    raise reply
            return replies[-1]

        return self._patiently(run)

    def _command(self, verb: str, args: Sequence[Argument]) -> list[Argument]:
        keys = [self.key(name) for name in _KEYS[verb].split()]
        if self._scripts:
            return ["EVALSHA", _SHA, len(keys), *keys, verb, *args]
        return ["FCALL", f"{_LIBRARY}_{verb}", len(keys), *keys, *args]

    def _patiently(self, run: Callable[[], T]) -> T:
        """`run`, again where the server lacked our functions or is about to be another; its errors in our words."""
        for attempt in range(RETRIES):
            try:
                return run()
            except redis.ResponseError as error:
                if (code := code_of(error)) in _OUTAGES:
                    if code in _ELSEWHERE:
                        self.client.connection_pool.disconnect()
                    time.sleep(0.1 * 2**attempt)
                else:
                    self._mend(error)
            except (redis.ConnectionError, redis.TimeoutError) as error:
                raise Unreachable(f"Redis does not answer: {error}") from error
        try:
            return run()
        except redis.RedisError as error:
            raise Unreachable(f"Redis does not serve: {error}") from error

    def _mend(self, error: redis.ResponseError) -> None:
        """Load what the server lacks, as after its restart; raise any other error."""
        message, code = str(error), code_of(error)
        if kind := _OURS.get(code):
            raise kind(message.removeprefix(f"{code} ")) from error
        if code == "OOM":
            raise OutOfMemory(message) from error
        load: Callable[[], object] | None = None
        if isinstance(error, exceptions.NoScriptError):
            load = partial(self.client.script_load, _SCRIPT)
        elif _NO_FUNCTIONS.search(message) and not self._scripts:  # before Redis 7
            self._scripts = True
        elif "Function not found" in message:
            load = partial(self.client.function_load, _FUNCTIONS)
        else:
            raise error
        try:
            if load is not None:
                load()
        except exceptions.NoPermissionError as refusal:
            raise NoFunctions("the server lacks Tamiyo's functions, which its learner will load") from refusal
        except redis.ResponseError as failure:
            if code_of(failure) in _OUTAGES:
                raise Unreachable(f"Redis does not serve: {failure}") from failure
            if "already exists" not in str(failure):  # another process was faster
                raise


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def _client(url: str, variable: str) -> redis.Redis:
    try:
        parts = urlsplit(url)
        shown = parts._replace(netloc=parts.netloc.rpartition("@")[2], query="").geturl()
        options: dict[str, Any] = {}
        if not parts.password and (password := password_from(variable)):
            options["password"] = password
        client = redis.Redis.from_url(
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
    except exceptions.NoPermissionError:
        pass  # it answers
    except (redis.AuthenticationError, redis.ResponseError, exceptions.BusyLoadingError) as error:
        if code_of(error) in _OUTAGES:
            raise UserError(
                f"Redis at {shown} answers, but does not serve ({error}): mend what it names, or wait until it is over"
            ) from Unreachable(str(error))
        raise UserError(
            f"Redis at {shown} refused the login ({error}): give user and password in the url, or the password in "
            f"{variable}, or a file that holds it in {variable}_FILE"
        ) from error
    except (redis.RedisError, OSError, TypeError) as error:
        raise UserError(
            f"no Redis answers at {shown} ({error}): start one there, or leave the url empty for an embedded server"
        ) from Unreachable(str(error))
    client.set_retry(Retry(ExponentialWithJitterBackoff(base=0.1, cap=2.0), RETRIES))
    return client


def password_from(variable: str) -> str | None:
    """Of the file that `VARIABLE_FILE` names, else of the variable itself. Raises `UserError`."""
    if path := os.environ.get(f"{variable}_FILE"):
        try:
            return Path(path).read_text("utf-8").strip()
        except OSError as error:
            raise UserError(f"{variable}_FILE names {path}, which cannot be read ({error.strerror})") from error
    return os.environ.get(variable)
