"""Invalid requests and greedy clients: they get a clear status, others are not affected, and memory is bounded."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from actors.serving.client.blocking import PolicyClient
from actors.serving.messages import step_request
from actors.serving.methods import make_stub, method_path
from actors.serving.server.handlers import MAX_STREAM_STEPS
from actors.serving.status import error_info
from actors.sessions.local import LocalPolicy
from actors.sessions.refusal import Reason
from actors.sessions.session import PolicyError
from actors.wire import episode_pb2, policy_pb2
from tests.support.learning.toy import SPACES, toy_network
from tests.support.serving.calls import connections, half_open, outcome
from tests.support.serving.servers import RunningServer, connect_outcome, serving, step_inputs, write_file
from tests.support.waiting import wait_for

pytestmark = pytest.mark.integration
INVALID = grpc.StatusCode.INVALID_ARGUMENT
GOOD = step_request("", 0, *step_inputs(0, 0), True, False)
MASKS = ("mask", "slot_mask_by_op", "rest_mask")


def obs_with(value: float) -> bytes:
    return GOOD.obs.data[:12] + np.float32(value).tobytes() + GOOD.obs.data[16:]


def none_of(name: str) -> bytes:
    return bytes(len(getattr(GOOD, name).data))


ONLY_PLANT = np.packbits(np.arange(SPACES.action.flat_size) == 1).tobytes()  # for which no slot is legal
BAD: list[tuple[Reason, dict[str, dict[str, Any]]]] = [
    (Reason.WRONG_SHAPE, {"obs": {"data": GOOD.obs.data[:-4]}}),
    (Reason.WRONG_SHAPE, {"obs": {"shape": [SPACES.obs_size + 1]}}),
    (Reason.WRONG_SHAPE, {"obs": {"dtype": episode_pb2.DTYPE_INT32}}),
    (Reason.WRONG_SHAPE, {"mask": {"shape": [*GOOD.mask.shape, 1]}}),
    (Reason.WRONG_SHAPE, {"slot_mask_by_op": {"dtype": 0, "shape": [], "data": b""}}),  # absent
    (Reason.WRONG_SHAPE, {"rest_mask": {"shape": [2**31, 2**31, 2**31]}}),
    (Reason.NOT_FINITE, {"obs": {"data": obs_with(np.nan)}}),
    (Reason.NOT_FINITE, {"obs": {"data": obs_with(np.inf)}}),
    (Reason.ILLEGAL_MASK, {name: {"data": none_of(name)} for name in MASKS}),
    (Reason.ILLEGAL_MASK, {"mask": {"data": bytes([GOOD.mask.data[0] ^ 0b00010000]) + GOOD.mask.data[1:]}}),
    (Reason.ILLEGAL_MASK, {"mask": {"data": ONLY_PLANT}, "slot_mask_by_op": {"data": none_of("slot_mask_by_op")}}),
    (Reason.OUT_OF_RANGE, {"blueprint_indices": {"data": bytes([SPACES.num_blueprints, 0])}}),  # int8
]


def good(session: str, index: int = 0) -> policy_pb2.StepRequest:
    return step_request(session, index, *step_inputs(0, index), True, False)


def bad(session: str, index: int, changes: dict[str, dict[str, Any]]) -> policy_pb2.StepRequest:
    request = good(session, index)
    for name, changed in changes.items():
        array = getattr(request, name)
        fields = {"dtype": array.dtype, "shape": list(array.shape), "data": array.data} | changed
        array.CopyFrom(episode_pb2.Array(**fields))
    return request


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with serving() as running:
        yield running


@pytest.fixture
def stub(server: RunningServer) -> Iterator[Any]:
    with grpc.insecure_channel(server.address) as channel:
        yield make_stub(channel)


def open_session(stub: Any) -> str:
    session: str = stub.OpenSession(policy_pb2.OpenSessionRequest(spaces_hash=SPACES.hash), timeout=10).session_id
    return session


def test_invalid_steps_change_neither_their_sessions_nor_the_others_of_their_batch_and_stream(stub: Any) -> None:
    spoilt = {open_session(stub): case for case in BAD}
    fine = [open_session(stub) for _ in BAD]
    local = LocalPolicy(toy_network(), 1).open(SPACES)
    for index in range(2):
        expected = local.step(*step_inputs(0, index))
        invalid = [bad(session, index, changes) for session, (_, changes) in spoilt.items()]
        steps = [step for pair in zip(invalid, (good(f, index) for f in fine), strict=True) for step in pair]
        streamed = stub.StepStream((policy_pb2.StepStreamRequest(step=step) for step in steps), timeout=20)
        answers = {answer.session_id: answer for answer in streamed}
        for session, (reason, _) in spoilt.items():
            assert (answers[session].failure.reason, answers[session].failure.code) == (reason, INVALID.value[0])
        for answer in (*(answers[f].step for f in fine), *(stub.Step(good(s, index), timeout=10) for s in spoilt)):
            assert list(answer.action) == expected.action.tolist()
            np.testing.assert_allclose(answer.log_probs, expected.log_probs, atol=1e-5)


def test_malformed_and_oversized_messages_are_refused(server: RunningServer, stub: Any) -> None:
    def call(method: str, data: bytes) -> grpc.RpcError:
        with grpc.insecure_channel(server.address) as channel, pytest.raises(grpc.RpcError) as caught:
            channel.unary_unary(method_path(method))(data, timeout=10)
        return caught.value

    for method in ("Step", "OpenSession", "ResetSession", "CloseSession", "GetModel", "EndEpisode"):
        error = call(method, b"\xff\xff\xff\xffnonsense")
        assert (error.code(), error_info(error).reason) == (INVALID, Reason.MALFORMED)
    oversize = call("Step", policy_pb2.StepRequest(session_id="x" * (2 << 20)).SerializeToString())
    assert oversize.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "larger than max" in oversize.details()
    assert call("Step", b"").code() is grpc.StatusCode.NOT_FOUND
    assert stub.Step(good(open_session(stub)), timeout=10).policy_version == 1


pytestmark = pytest.mark.integration
STEP, STREAM = method_path("Step"), method_path("StepStream")


def test_calls_without_a_token_do_not_count_against_the_limits(tmp_path: Path) -> None:
    """They are refused before their request arrives."""
    with (
        serving(token_file=write_file(tmp_path / "tokens", "alice\n"), max_concurrent_calls=8) as running,
        connections(running.address, 4) as channels,
        half_open(channels, STEP, 60) as steps,
        half_open(channels, STREAM, 60) as streams,
    ):
        assert Counter(outcome(call) for call in (*steps, *streams)) == {Reason.TOKEN_MISSING: 120}
        assert connect_outcome(running.address, token="alice") == "OK"


def test_the_only_valid_token_may_use_everything_and_one_of_several_its_share(tmp_path: Path) -> None:
    """The share applies from the second valid token on, also if that is added while the server runs."""
    file = write_file(tmp_path / "tokens", "alice\nexpired 2020-01-01\n")
    with (
        serving(token_file=file, max_concurrent_calls=8, max_sessions=8) as running,
        connections(running.address, 1) as channels,
        PolicyClient(running.address, token="alice", deadline_s=2) as client,
    ):
        calls = running.server.calls
        sessions = [client.open(SPACES) for _ in range(8)]
        assert all(session.step(*step_inputs(0, 0)).step_index == 0 for session in sessions)
        with half_open(channels, STREAM, 8, "alice"):
            wait_for(lambda: calls.active == 8)
            assert connect_outcome(running.address, token="alice") == Reason.CALLS_FULL
            health = health_pb2_grpc.HealthStub(channels[0]).Check(health_pb2.HealthCheckRequest(), timeout=5)
            assert health.status == health_pb2.HealthCheckResponse.SERVING  # health checks are not counted
        wait_for(lambda: calls.active == 0)
        for session in sessions[2:]:
            session.close()
        write_file(tmp_path / "new", "alice\nbob\n").replace(file)
        wait_for(lambda: connect_outcome(running.address, token="bob") == "OK")
        assert [session.step(*step_inputs(0, 1)).step_index for session in sessions[:2]] == [1, 1]
        with pytest.raises(PolicyError) as caught:
            client.open(SPACES)
        assert caught.value.reason == Reason.SESSIONS_FULL
        with half_open(channels, STREAM, 6, "alice") as streams:
            wait_for(lambda: sum(call.is_active() for call in streams) == 2)  # a quarter of 8
            assert {outcome(call) for call in streams if not call.is_active()} == {Reason.CALLS_FULL}
            assert connect_outcome(running.address, token="bob") == "OK"


def test_a_stream_whose_client_does_not_read_is_not_computed_ahead() -> None:
    """Of 5,000 steps, only those are computed that fit the limit of the stream and the windows of the connection. Once
    the client reads, it receives every answer."""
    count, window = 5000, 64 * 1024
    channel_options = [("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", window)]

    def computed(running: RunningServer) -> float:
        value = running.server.metrics.registry.get_sample_value
        return (value("tamiyo_serve_steps_total") or 0.0) + (value("tamiyo_serve_replays_total") or 0.0)

    with serving() as running, grpc.insecure_channel(running.address, channel_options) as channel:
        stub = make_stub(channel)
        opened = stub.OpenSession(policy_pb2.OpenSessionRequest(spaces_hash=SPACES.hash))
        request = policy_pb2.StepStreamRequest(step=step_request(opened.session_id, 0, *step_inputs(0, 0), True, True))
        call = stub.StepStream(itertools.repeat(request, count), timeout=60)
        before = -1.0
        while (now := computed(running)) != before or not now:
            before = now
            time.sleep(0.5)
        smallest = 4 * running.service.models.state_sizes.floats  # bytes: an answer carries the state of the session
        assert now <= MAX_STREAM_STEPS + 2 * window / smallest
        answers = list(call)
    assert len(answers) == count
    assert all(answer.step == answers[0].step for answer in answers)
