"""Invalid requests and stuck connections are refused with a clear status, and other clients are not affected."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator

import grpc
import numpy as np
import pytest

from actors.serving.client.endpoint import METHODS
from actors.serving.messages import step_request
from actors.serving.status import error_info
from actors.sessions.local import LocalPolicy
from actors.sessions.refusal import Reason
from actors.wire import episode_pb2, policy_pb2
from tests.support.learning.toy import SPACES, toy_network
from tests.support.serving.servers import RunningServer, serving, step_inputs

pytestmark = pytest.mark.integration
Request = policy_pb2.StepRequest
INVALID = grpc.StatusCode.INVALID_ARGUMENT


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with serving() as running:
        yield running


@pytest.fixture
def channel(server: RunningServer) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(server.address) as open_channel:
        yield open_channel


def open_session(channel: grpc.Channel) -> str:
    request = policy_pb2.OpenSessionRequest(spaces_hash=SPACES.hash)
    return channel.unary_unary(*METHODS["OpenSession"])(request, timeout=10).session_id


def good(session: str, index: int = 0) -> Request:
    return step_request(session, index, *step_inputs(0, index), True, False)


def _short(r: Request) -> None:
    r.obs.data = r.obs.data[:-4]


def _shape(r: Request) -> None:
    r.obs.shape[0] += 1


def _rank(r: Request) -> None:
    r.mask.shape.append(1)


def _dtype(r: Request) -> None:
    r.obs.dtype = episode_pb2.DTYPE_INT32


def _absent(r: Request) -> None:
    r.ClearField("slot_mask_by_op")


def _huge_shape(r: Request) -> None:
    r.rest_mask.shape[:] = [2**31, 2**31, 2**31]


def _nan(r: Request) -> None:
    obs = np.frombuffer(r.obs.data, "<f4").copy()
    obs[3] = np.nan
    r.obs.data = obs.tobytes()


def _inf(r: Request) -> None:
    obs = np.frombuffer(r.obs.data, "<f4").copy()
    obs[0] = np.inf
    r.obs.data = obs.tobytes()


def _nothing_legal(r: Request) -> None:
    for array in (r.mask, r.slot_mask_by_op, r.rest_mask):
        array.data = bytes(len(array.data))


def _contradiction(r: Request) -> None:
    r.mask.data = bytes([r.mask.data[0] ^ 0b00010000]) + r.mask.data[1:]


def _no_slot(r: Request) -> None:
    """PLANT is legal, but no slot is."""
    mask = np.zeros(SPACES.action.flat_size, dtype=bool)
    mask[1] = True
    r.mask.data = np.packbits(mask).tobytes()
    r.slot_mask_by_op.data = bytes(len(r.slot_mask_by_op.data))


def _blueprint(r: Request) -> None:
    r.blueprint_indices.data = np.array([SPACES.num_blueprints, 0], "<i2").tobytes()


BAD: list[tuple[Callable[[Request], None], Reason]] = [
    (_short, Reason.WRONG_SHAPE),
    (_shape, Reason.WRONG_SHAPE),
    (_rank, Reason.WRONG_SHAPE),
    (_dtype, Reason.WRONG_SHAPE),
    (_absent, Reason.WRONG_SHAPE),
    (_huge_shape, Reason.WRONG_SHAPE),
    (_nan, Reason.NOT_FINITE),
    (_inf, Reason.NOT_FINITE),
    (_nothing_legal, Reason.ILLEGAL_MASK),
    (_contradiction, Reason.ILLEGAL_MASK),
    (_no_slot, Reason.ILLEGAL_MASK),
    (_blueprint, Reason.OUT_OF_RANGE),
]


@pytest.mark.parametrize(("spoil", "reason"), BAD)
def test_an_invalid_step_is_refused_and_does_not_change_its_session(
    channel: grpc.Channel, spoil: Callable[[Request], None], reason: Reason
) -> None:
    session, step = open_session(channel), channel.unary_unary(*METHODS["Step"])
    local = LocalPolicy(toy_network(), 1).open(SPACES)
    for index in range(2):
        bad = good(session, index)
        spoil(bad)
        with pytest.raises(grpc.RpcError) as caught:
            step(bad, timeout=10)
        assert (caught.value.code(), error_info(caught.value).reason) == (INVALID, reason)
        assert caught.value.details()
        answer = step(good(session, index), timeout=10)
        np.testing.assert_allclose(answer.log_probs, local.step(*step_inputs(0, index)).log_probs, atol=1e-5)


def test_invalid_steps_do_not_affect_the_others_of_their_batch_and_stream(channel: grpc.Channel) -> None:
    sessions = [open_session(channel) for _ in range(len(BAD) * 2)]
    requests = []
    for i, session in enumerate(sessions):
        request = good(session)
        if i % 2:
            BAD[i // 2][0](request)
        requests.append(policy_pb2.StepStreamRequest(step=request))
    answers = {a.session_id: a for a in channel.stream_stream(*METHODS["StepStream"])(iter(requests), timeout=20)}
    expected = LocalPolicy(toy_network(), 1).open(SPACES).step(*step_inputs(0, 0))
    for i, session in enumerate(sessions):
        if i % 2:
            assert answers[session].failure.reason == BAD[i // 2][1]
            assert answers[session].failure.code == 3
        else:
            assert list(answers[session].step.action) == expected.action.tolist()
            np.testing.assert_allclose(answers[session].step.log_probs, expected.log_probs, atol=1e-5)


def test_malformed_and_oversized_messages_are_refused(channel: grpc.Channel) -> None:
    def call(method: str, data: bytes) -> grpc.RpcError:
        with pytest.raises(grpc.RpcError) as caught:
            channel.unary_unary(METHODS[method][0])(data, timeout=10)
        return caught.value

    for method in ("Step", "OpenSession", "ResetSession", "CloseSession", "GetModel"):
        error = call(method, b"\xff\xff\xff\xffnonsense")
        assert (error.code(), error_info(error).reason) == (INVALID, Reason.MALFORMED)
    oversize = call("Step", Request(session_id="x" * (2 << 20)).SerializeToString())
    assert oversize.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "larger than max" in oversize.details()
    assert call("Step", b"").code() is grpc.StatusCode.NOT_FOUND
    assert channel.unary_unary(*METHODS["Step"])(good(open_session(channel)), timeout=10).policy_version == 1


def test_a_refusal_of_other_spaces_names_the_expected_ones(channel: grpc.Channel) -> None:
    for spaces_hash in ("", "0123456789abcdef", "x" * 10_000):
        with pytest.raises(grpc.RpcError) as caught:
            channel.unary_unary(*METHODS["OpenSession"])(
                policy_pb2.OpenSessionRequest(spaces_hash=spaces_hash), timeout=10
            )
        info = error_info(caught.value)
        assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert (info.reason, info.metadata["expected"]) == (Reason.SPACES_MISMATCH, SPACES.hash)


def churn(running: RunningServer, count: int) -> None:
    """Open `count` sessions and let them expire, in the server's event loop."""
    service = running.service
    layout = service.models.layout(SPACES.hash)

    def open_and_expire() -> None:
        for _ in range(1000):
            session = service.sessions.open(layout, 1)
            service.pins.pin(session)
            session.last_response = b"x" * 60
            session.last_used_s -= 1e6
        assert service.expire() == 1000

    for _ in range(count // 1000):
        running.call(open_and_expire)


def assert_memory_stays_flat(sessions: int) -> None:
    with serving(max_sessions=1000) as running:
        tracemalloc.start()
        try:
            churn(running, 11_000)  # by then the table of closed ids is full
            before = tracemalloc.get_traced_memory()[0]
            churn(running, sessions)
            assert tracemalloc.get_traced_memory()[0] - before < 200_000  # under two bytes a session
        finally:
            tracemalloc.stop()
        assert len(running.service.sessions) == 0
        assert running.service.pins._sessions == {}


def test_expired_sessions_leave_no_memory_behind() -> None:
    assert_memory_stays_flat(5_000)
