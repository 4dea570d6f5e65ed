"""`PolicyClient`: ask a served policy from ordinary code. Safe to share between threads; a session belongs to one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import grpc
import numpy as np
from numpy.typing import NDArray

from actors.serving.client.endpoint import METHODS, Endpoint
from actors.serving.client.session import Answer, PolicyError
from actors.serving.client.session_protocol import Call, RetryBudget, SessionProtocol, Talk, call
from actors.types.actions import ActionMasks
from actors.types.spaces import Spaces
from actors.wire import policy_pb2


class PolicyClient:
    """
    with PolicyClient("127.0.0.1:50051") as client, client.open(spaces) as session:
        answer = session.step(obs, blueprint_indices, masks)

    Steps are repeated until `deadline_s`, at the next of several addresses where one does not answer; a session that
    its server lost goes on from the state that came with the last answer.
    """

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
        self.endpoint = Endpoint.of(
            target, token=token, token_file=token_file, tls=tls, root_certificates=root_certificates,
            client_cert=client_cert, client_key=client_key,
        )  # fmt: skip
        self.patience = RetryBudget(deadline_s, attempt_s)
        self._lock = threading.Lock()
        self._channels: dict[int, grpc.Channel] = {}
        self._methods: dict[tuple[int, str], Callable[..., Any]] = {}
        self._target = 0  # the one that answered last

    def __enter__(self) -> PolicyClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def model(self) -> policy_pb2.GetModelResponse:
        """What is served."""
        response: policy_pb2.GetModelResponse = self.say(call("GetModel", policy_pb2.GetModelRequest(), self.patience))
        return response

    def open(self, spaces: Spaces, seed: int = 0, latest: bool = False, state: bytes = b"") -> ClientSession:
        """Raises `PolicyError`."""
        conversation = SessionProtocol(spaces, seed, latest, self.patience, state)
        self.say(conversation.open())
        return ClientSession(self, conversation)

    def close(self) -> None:
        with self._lock:
            for channel in self._channels.values():
                channel.close()
            self._channels.clear()
            self._methods.clear()

    def say(self, talk: Talk) -> Any:
        """Hold a conversation to its end."""
        try:
            wanted = next(talk)
            while True:
                try:
                    response = self._ask(wanted)
                except PolicyError as error:
                    wanted = talk.throw(error)
                else:
                    wanted = talk.send(response)
        except StopIteration as end:
            return end.value

    def _ask(self, wanted: Call) -> Any:
        time.sleep(wanted.pause_s)
        index = (self._target + (1 if wanted.attempt else 0)) % len(self.endpoint.targets)
        try:
            response = self._method(index, wanted.method)(
                wanted.request, timeout=wanted.timeout_s, metadata=self.endpoint.metadata()
            )
        except grpc.RpcError as error:
            self._target = index
            raise PolicyError.of(error) from error
        self._target = index
        return response

    def _method(self, index: int, name: str) -> Callable[..., Any]:
        with self._lock:
            if (index, name) not in self._methods:
                if index not in self._channels:
                    self._channels[index] = self.endpoint.channel(index)
                self._methods[index, name] = self._channels[index].unary_unary(*METHODS[name])
            return self._methods[index, name]


class ClientSession:
    """See `PolicySession`."""

    def __init__(self, client: PolicyClient, conversation: SessionProtocol) -> None:
        self._client, self._conversation = client, conversation

    def __enter__(self) -> ClientSession:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def policy_version(self) -> int:
        return self._conversation.policy_version

    @property
    def exported(self) -> bytes:
        return self._conversation.exported

    def step(
        self,
        obs: NDArray[np.float32],
        blueprint_indices: NDArray[np.int64],
        masks: ActionMasks,
        deterministic: bool = True,
    ) -> Answer:
        answer: Answer = self._client.say(self._conversation.step(obs, blueprint_indices, masks, deterministic))
        return answer

    def reset(self, seed: int = 0) -> None:
        self._client.say(self._conversation.reset(seed))

    def close(self) -> None:
        self._client.say(self._conversation.close())
