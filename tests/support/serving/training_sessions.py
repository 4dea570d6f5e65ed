"""An endpoint whose training sessions are shipped to a queue, and sessions of bare requests."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from actors.codec import decode_episode
from actors.config import QueueConfig
from actors.serving.external import ExternalConfig
from actors.serving.messages import end_request, step_request
from actors.serving.methods import make_stub
from actors.serving.status import error_of_call
from actors.transport.redis import Transport
from actors.types.episode import Episode
from actors.wire import policy_pb2
from actors.workers.episode_shipper import EpisodeShipper
from tests.support.learning.toy import SPACES
from tests.support.serving.calls import bearer
from tests.support.serving.servers import RunningServer, serving, step_inputs
from tests.support.stores import new_transport
from tests.support.waiting import wait_for


class Endpoint:
    def __init__(self, running: RunningServer, shipper: EpisodeShipper, transport: Transport) -> None:
        self.running, self.shipper, self.transport = running, shipper, transport
        self.address = running.address

    def episodes(self, count: int) -> list[Episode]:
        """Wait for this many accepted episodes and no more, and take them."""
        wait_for(lambda: self.transport.ledger().accepted >= count)
        time.sleep(0.05)
        found = [decode_episode(d.payload) for d in self.transport.take(100, 0)]
        assert len(found) == count
        self.transport.ledger().check()
        return found


@contextmanager
def endpoint(
    source: Any = None,
    queue: QueueConfig | None = None,
    capacity: int = 64,
    tokens: Path | None = None,
    max_lag: int = 4,
    **changes: Any,
) -> Iterator[Endpoint]:
    transport = new_transport(queue)
    transport.open_generation(-1, "learner")
    shipper = EpisodeShipper(transport, "run", capacity, max_lag)
    options: dict[str, Any] = {"token_file": tokens, "session_ttl_s": changes.get("session_timeout_s")}
    options = {name: value for name, value in options.items() if value is not None}
    try:
        with serving(source, external=ExternalConfig(**changes), sink=shipper, **options) as running:
            yield Endpoint(running, shipper, transport)
    finally:
        shipper.close(10)
    transport.ledger().check()
    transport.close()


class RawSession:
    """A session by bare requests; `fields` are those of OpenSessionRequest."""

    def __init__(self, address: str, train: bool = True, token: str = "", **fields: Any) -> None:
        self.stub = make_stub(grpc.insecure_channel(address))
        self.metadata = bearer(token)
        request = policy_pb2.OpenSessionRequest(spaces_hash=SPACES.hash, train=train, **({"seed": 1} | fields))
        self.id = self.stub.OpenSession(request, metadata=self.metadata).session_id

    def step(self, index: int, reward: float | None = None, inputs_of: int | None = None, **changes: Any) -> Any:
        obs, *others = step_inputs(0, index if inputs_of is None else inputs_of)
        options = changes.get("deterministic"), changes.get("export_state", True), reward
        request = step_request(self.id, index, changes.get("obs", obs), *others, *options)
        return self.stub.Step(request, timeout=10, metadata=self.metadata)

    def end(self, index: int, reward: float | None, **changes: Any) -> Any:
        request = end_request(reward or 0.0)
        if reward is None:
            request.ClearField("reward")
        request.session_id, request.step_index = self.id, index
        for name, value in changes.items():
            setattr(request, name, value)
        return self.stub.EndEpisode(request, metadata=self.metadata)

    def reset(self) -> Any:
        return self.stub.ResetSession(policy_pb2.ResetSessionRequest(session_id=self.id), metadata=self.metadata)

    def close(self) -> None:
        self.stub.CloseSession(policy_pb2.CloseSessionRequest(session_id=self.id), metadata=self.metadata)


def refused(call: Callable[..., Any], *arguments: Any, **fields: Any) -> str:
    with pytest.raises(grpc.RpcError) as caught:
        call(*arguments, **fields)
    return f"{caught.value.code().name} {error_of_call(caught.value).reason}"
