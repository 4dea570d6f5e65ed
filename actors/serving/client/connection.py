"""`Connection`: the addresses and credentials with which a client connects, and its channels."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grpc

from actors.errors import UserError
from actors.serving.client.operation import Call, Operation, RetryBudget
from actors.serving.methods import make_stub
from actors.serving.options import client_channel_options
from actors.text_file import as_utf8
from actors.types.spaces import Spaces


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
        self.retry_budget = RetryBudget(deadline_s, attempt_s)
        self.spaces: Spaces | None = None  # of the server, once they are known
        self._token, self._token_file = token, token_file
        self._tls = tls or bool(root_certificates or client_cert)
        self._pem_files = (root_certificates, client_key, client_cert)
        self._target = 0  # index of the address that was tried last
        self._lock = threading.Lock()
        self._channels: dict[int, Any] = {}  # by address
        self._stubs: dict[int, Any] = {}

    @abstractmethod
    def _perform(self, operation: Operation) -> Any:
        """Perform the calls of `operation`. Returns its result, or a coroutine that returns it."""

    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Return the metadata of a call. The token file is read each time, as the token may be replaced. Raises
        `UserError`."""
        token = self._token if self._token_file is None else _first_token(Path(self._token_file))
        return (("authorization", f"Bearer {token}"),) if token else ()

    def _select(self, call: Call) -> Any:
        """Select the address of a call: after a failure, the next one. Returns its stub."""
        self._target = index = (self._target + (1 if call.attempt else 0)) % len(self._targets)
        with self._lock:
            if index not in self._stubs:
                self._channels[index] = self._open_channel(self._targets[index])
                self._stubs[index] = make_stub(self._channels[index])
            return self._stubs[index]

    def _open_channel(self, target: str) -> Any:
        options = client_channel_options(target)
        if not self._tls:
            return self._grpc.insecure_channel(target, options)
        parts = [Path(p).read_bytes() if p else None for p in self._pem_files]
        return self._grpc.secure_channel(target, grpc.ssl_channel_credentials(*parts), options)

    def _forget_channels(self) -> list[Any]:
        """Return all channels, to be closed."""
        with self._lock:
            channels = list(self._channels.values())
            self._channels.clear()
            self._stubs.clear()
        return channels


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
