"""`PolicyClient`: the blocking client of a policy server."""

from __future__ import annotations

import time
from typing import Any

import grpc
from google.protobuf.message import Message

from actors.serving.client.connection import Connection, at_once, blocking
from actors.serving.client.episode import ClientEpisode
from actors.serving.client.session_protocol import SessionProtocol
from actors.serving.status import error_of_call
from actors.sessions.session import Closable
from actors.types.spaces import Spaces
from actors.wire import policy_pb2


class PolicyClient(Connection, Closable):
    """Query a policy server.

        with tamiyo.PolicyClient("127.0.0.1:50051") as client:
            with client.open() as session:
                answer = session.step(obs)

    Failed steps are retried until `deadline_s`, at the next address if there are several. If the server has lost the
    session, the client reopens it from the state that came with the last answer. A client can be shared between
    threads; a session cannot.

    Args:
        target: Address of the server, host:port, or the addresses of several replicas: a list, or a string separated
            by commas. If one does not answer, the client tries the next.
        token: Bearer token.
        token_file: File with the bearer token; it is read at every call, so that the token can be replaced.
        tls: Connect with TLS and trust the default certificate authorities of gRPC.
        root_certificates: Connect with TLS and trust the certificates in this file (PEM).
        client_cert: Certificate of the client for mutual TLS (PEM).
        client_key: Private key of `client_cert` (PEM).
        deadline_s: Timeout of a step or open in seconds, retries included.
        attempt_s: Timeout of each attempt in seconds.
    """

    def model(self) -> policy_pb2.GetModelResponse:
        """Return the served version, spaces and limits. Raises `PolicyError`."""
        return at_once(self.describe())

    def open(
        self, spaces: Spaces | None = None, seed: int = 0, latest: bool = False, state: bytes = b""
    ) -> ClientSession:
        """Open a session. Raises `PolicyError`.

        Args:
            spaces: Spaces of the environment; None takes those of the server.
            seed: Seed of sampled actions.
            latest: Switch to new weights during the session, instead of keeping those of its start.
            state: `PolicySession.exported` of another session, which this one continues. `seed` and `latest` of that
                session then apply.
        """
        session = ClientSession(self, spaces, seed, latest, state)
        at_once(session.opening())
        return session

    def episode(self, seed: int | None = None, spaces: Spaces | None = None) -> ClientEpisode:
        """Begin an episode of your own environment that the server learns from; see `ClientEpisode`.

        Args:
            seed: Seed of the sampled actions, different for each episode; None draws one.
            spaces: Spaces of the environment; None takes those of the server. Raises `PolicyError` if they differ.
        """
        return ClientEpisode(self, seed, spaces)

    def close(self) -> None:
        """Close all connections. Open sessions expire at the server."""
        for channel in self._forget_channels():
            channel.close()

    async def _pause(self, seconds: float) -> None:
        time.sleep(seconds)

    async def _send(self, stub: Any, method: str, request: Message, timeout_s: float) -> Any:
        try:
            return getattr(stub, method)(request, timeout=timeout_s, metadata=self.metadata())
        except grpc.RpcError as error:
            raise error_of_call(error) from error


class ClientSession(SessionProtocol, Closable):
    """A session of `PolicyClient`; see `PolicySession`."""

    step = blocking(SessionProtocol.stepping)
    reset = blocking(SessionProtocol.resetting)
    close = blocking(SessionProtocol.closing)
