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
from actors.serving.status import error_of_call
from actors.transport.redis import Transport
from actors.types.episode import Episode
from actors.wire import policy_pb2, policy_pb2_grpc
from actors.workers.episode_shipper import EpisodeShipper
from tests.support.learning.toy import SPACES
from tests.support.serving.servers import RunningServer, serving, step_inputs
from tests.support.stores import new_transport


class Endpoint:
    """A server whose training sessions are shipped to a queue."""

    def __init__(self, running: RunningServer, shipper: EpisodeShipper, transport: Transport) -> None:
        self.running, self.shipper, self.transport = running, shipper, transport
        self.address = running.address

    def wait_for(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 10
        while not condition():
            assert time.monotonic() < deadline, self.transport.ledger()
            time.sleep(0.01)

    def episodes(self, count: int) -> list[Episode]:
        """Wait for this many accepted episodes and no more, and take them."""
        self.wait_for(lambda: self.transport.ledger().accepted >= count)
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
    try:
        options = {} if tokens is None else {"token_file": tokens}
        if "session_timeout_s" in changes:
            options |= {"session_ttl_s": changes["session_timeout_s"]}
        with serving(source, external=ExternalConfig(**changes), sink=shipper, **options) as running:
            yield Endpoint(running, shipper, transport)
    finally:
        shipper.close(10)
    transport.ledger().check()
    transport.close()


class RawSession:
    """A training session by bare requests."""

    def __init__(self, address: str, train: bool = True, token: str = "", seed: int = 1) -> None:
        self.stub: Any = policy_pb2_grpc.PolicyServiceStub(grpc.insecure_channel(address))  # type: ignore[no-untyped-call]
        self.metadata = (("authorization", f"Bearer {token}"),) if token else ()
        request = policy_pb2.OpenSessionRequest(spaces_hash=SPACES.hash, seed=seed, train=train)
        self.id = self.stub.OpenSession(request, metadata=self.metadata).session_id

    def step(self, index: int, reward: float | None = None, **changes: Any) -> Any:
        obs, blueprints, masks = step_inputs(0, index)
        obs = changes.get("obs", obs)
        request = step_request(self.id, index, obs, blueprints, masks, changes.get("deterministic"), True, reward)
        return self.stub.Step(request, metadata=self.metadata)

    def end(self, index: int, reward: float | None, **changes: Any) -> Any:
        request = end_request(reward or 0.0)
        if reward is None:
            request.ClearField("reward")
        request.session_id, request.step_index = self.id, index
        for name, value in changes.items():
            setattr(request, name, value)
        return self.stub.EndEpisode(request, metadata=self.metadata)


def refused(call: Callable[[], Any]) -> str:
    with pytest.raises(grpc.RpcError) as caught:
        call()
    reason = error_of_call(caught.value).reason
    return f"{caught.value.code().name} {reason}"  # type: ignore[attr-defined]
