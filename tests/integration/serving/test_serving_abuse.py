"""Invalid requests are refused with a clear status, other clients are not affected, and no memory is left behind."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import pytest

from actors.serving.messages import step_request
from actors.serving.methods import make_stub, method_path
from actors.serving.status import error_info
from actors.sessions.local import LocalPolicy
from actors.sessions.refusal import Reason
from actors.wire import episode_pb2, policy_pb2
from tests.support.learning.toy import SPACES, toy_network
from tests.support.serving.servers import RunningServer, serving, step_inputs

pytestmark = pytest.mark.integration
INVALID = grpc.StatusCode.INVALID_ARGUMENT
GOOD = step_request("", 0, *step_inputs(0, 0), True, False)
MASKS = ("mask", "slot_mask_by_op", "rest_mask")


def obs_with(value: float) -> bytes:
    obs = np.frombuffer(GOOD.obs.data, "<f4").copy()
    obs[3] = value
    return obs.tobytes()


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
