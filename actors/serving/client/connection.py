"""`Connection`: the addresses and credentials of a client, its channels, and calls that are repeated.

What clients do is written once, as coroutines. The I/O of `PolicyClient` blocks, so that its coroutines never wait and
`at_once` returns their results.
"""

from __future__ import annotations

import random
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import grpc
from google.protobuf.message import Message

from actors.errors import UserError
from actors.serving.methods import make_stub
from actors.serving.options import client_channel_options
from actors.sessions.session import PolicyError
from actors.text_file import as_utf8
from actors.types.spaces import Spaces
from actors.wire import policy_pb2

INITIAL_BACKOFF_S, MAX_BACKOFF_S = 0.05, 2.0
T = TypeVar("T")
P = ParamSpec("P")


def at_once(coroutine: Coroutine[Any, Any, T]) -> T:
    """Return the result of a coroutine whose I/O blocks."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    raise AssertionError("a coroutine whose I/O blocks never waits")


def blocking(method: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T]:
    """Return a method of an object whose I/O blocks as a function."""

    @wraps(method)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        return at_once(method(*args, **kwargs))

    return call


class Connection(ABC):
    """The connection of a client to one or more replicas; see `PolicyClient` for the arguments.

    TLS is used if `tls`, `root_certificates` or `client_cert` is given. Raises `UserError` without an address.
    """

    _grpc: Any = grpc  # the module that makes channels: `grpc` or `grpc.aio`

    def __init__(
        self,
        target: str | Sequence[str],
        *,
        token: str = "",
        token_file: str | Path | None = None,
        tls: bool = False,
        root_certificates: str | Path | None = None,
        client_cert: str | Path | None = None,
        client_key: str | Path | None = None,
        deadline_s: float = 30.0,
        attempt_s: float = 10.0,
    ) -> None:
        given = target.split(",") if isinstance(target, str) else list(target)
        self._targets = [t.strip() for t in given if t.strip()]
        if not self._targets:
            raise UserError("no address of a policy server: give host:port")
        self.deadline_s, self._attempt_s = deadline_s, attempt_s
        self.spaces: Spaces | None = None  # of the server, once they are known
        self._token, self._token_file = token, token_file
        self._tls = tls or bool(root_certificates or client_cert)
        self._pem_files = (root_certificates, client_key, client_cert)
        self._target = 0  # index of the address that was tried last
        self._lock = threading.Lock()
        self._channels: dict[int, tuple[Any, Any]] = {}  # by address, with their stubs

    @abstractmethod
    async def _pause(self, seconds: float) -> None: ...

    @abstractmethod
    async def _send(self, stub: Any, method: str, request: Message, timeout_s: float) -> Any:
        """Make one attempt of a call. Raises `PolicyError`."""

    async def call(self, method: str, request: Message, deadline_s: float | None = None) -> Any:
        """Repeat a call, after a failure at the next address, until it succeeds, fails with an error that is not
        transient, or reaches the deadline, a time of `time.monotonic`. Raises `PolicyError`."""
        deadline_s = time.monotonic() + self.deadline_s if deadline_s is None else deadline_s
        attempt = 0
        server_error: PolicyError | None = None  # says more than the DEADLINE_EXCEEDED that may follow it
        while True:
            timeout_s = max(min(self._attempt_s, deadline_s - time.monotonic()), 0.001)
            try:
                return await self._send(self._select(attempt > 0), method, request, timeout_s)
            except PolicyError as error:
                server_error = error if error.reason else server_error
                backoff_s = min(MAX_BACKOFF_S, INITIAL_BACKOFF_S * 2**attempt) * random.uniform(0.5, 1.0)
                attempt, pause_s = attempt + 1, max(backoff_s, error.retry_s)
                if not error.transient:
                    raise
                if time.monotonic() + pause_s >= deadline_s:
                    raise (server_error or error) from error
            await self._pause(pause_s)

    async def describe(self) -> policy_pb2.GetModelResponse:
        """Ask for the served version, spaces and limits. Raises `PolicyError`."""
        response: policy_pb2.GetModelResponse = await self.call("GetModel", policy_pb2.GetModelRequest())
        return response

    async def known_spaces(self, spaces: Any) -> Spaces:
        """Return `spaces` or, for None, those of the server. Raises `UserError` for anything else."""
        if isinstance(spaces, Spaces):
            return spaces
        if spaces is not None:
            given = type(spaces).__name__
            raise UserError(f"open() takes tamiyo.Spaces, not a {given}: leave it out for the server's own")
        if self.spaces is None:
            self.spaces = Spaces.from_json((await self.describe()).spaces_json)
        return self.spaces

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Return the metadata of a call. The token file is read each time, as the token may be replaced. Raises
        `UserError`."""
        token = self._token if self._token_file is None else _first_token(Path(self._token_file))
        return (("authorization", f"Bearer {token}"),) if token else ()

    def _select(self, next_address: bool) -> Any:
        """Return the stub of the address that was tried last, or of the next one."""
        self._target = index = (self._target + next_address) % len(self._targets)
        with self._lock:
            if index not in self._channels:
                target, options = self._targets[index], client_channel_options(self._targets[index])
                if self._tls:
                    parts = [Path(p).read_bytes() if p else None for p in self._pem_files]
                    channel = self._grpc.secure_channel(target, grpc.ssl_channel_credentials(*parts), options)
                else:
                    channel = self._grpc.insecure_channel(target, options)
                self._channels[index] = channel, make_stub(channel)
            return self._channels[index][1]

    def _forget_channels(self) -> list[Any]:
        """Return all channels, to be closed."""
        with self._lock:
            forgotten, self._channels = self._channels, {}
        return [channel for channel, _ in forgotten.values()]


def _first_token(path: Path) -> str:
    """Return the first token of a file, which may be that of the server, with comments. Raises `UserError`."""
    try:
        text = as_utf8(path.read_bytes()).decode(errors="replace")
    except OSError as error:
        raise UserError(f"cannot read the token file {path} ({error.strerror})") from error
    words = [word for line in text.splitlines() for word in line.partition("#")[0].split()[:1]]
    if not words or not words[0].isascii():
        raise UserError(f"{path} does not begin with a token: write one of ASCII characters into its first line")
    return words[0]
