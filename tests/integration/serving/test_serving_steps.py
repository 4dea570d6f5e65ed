"""Steps are idempotent: repeats, concurrent repeats, conflicts, and sessions continued at another server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from actors.policy.publish import to_weights
from actors.serving.client.blocking import PolicyClient
from actors.serving.client.endpoint import METHODS
from actors.serving.messages import step_request
from actors.serving.server.server import FixedWeights
from actors.serving.server.sessions import Session
from actors.serving.status import error_info
from actors.sessions.local import LocalPolicy
from actors.sessions.refusal import Code, Reason, Refusal
from actors.sessions.session import PolicyError, SessionLost
from actors.wire import policy_pb2
from tests.support.learning.slow_policy import everything_legal, slow_to_act
from tests.support.learning.toy import SPACES, toy_network
from tests.support.serving.servers import FakeWeightStore, RunningServer, serving, step_inputs, weights, write_file

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with serving(max_wait_ms=5.0) as running:
        yield running


class RawClient:
    """Calls of the service without the client classes."""

    def __init__(self, address: str) -> None:
        self.channel = grpc.insecure_channel(address)

    def __call__(self, method: str, request: object, timeout: float = 10.0) -> object:
        return self.channel.unary_unary(*METHODS[method])(request, timeout=timeout)

    def open(self, **fields: object) -> str:
        request = policy_pb2.OpenSessionRequest(spaces_hash=SPACES.hash, **fields)  # type: ignore[arg-type]
        return self("OpenSession", request).session_id  # type: ignore[attr-defined]

    def step(self, session: str, index: int, inputs_of: int | None = None, **fields: bool) -> policy_pb2.StepResponse:
        options = {"deterministic": True, "export_state": False} | fields
        inputs = step_inputs(0, index if inputs_of is None else inputs_of)
        response = self("Step", step_request(session, index, *inputs, **options))
        assert isinstance(response, policy_pb2.StepResponse)
        return response


@pytest.fixture
def raw(server: RunningServer) -> Iterator[RawClient]:
    raw_service = RawClient(server.address)
    yield raw_service
    raw_service.channel.close()


def refused(call: object, *arguments: object, **fields: object) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as caught:
        call(*arguments, **fields)  # type: ignore[operator]
    return caught.value.code(), error_info(caught.value).reason


def test_a_repeated_step_returns_the_same_answer_and_does_not_advance_the_session(raw: RawClient) -> None:
    twice, once = raw.open(seed=3), raw.open(seed=3)
    for index in range(6):
        answers = [raw.step(twice, index, deterministic=False) for _ in range(3)]
        other = raw.step(once, index, deterministic=False)
        assert answers[0] == answers[1] == answers[2]
        assert answers[0].action == other.action
        np.testing.assert_allclose(answers[0].log_probs, other.log_probs, atol=1e-6)


def test_repeats_with_other_contents_and_gaps_are_refused(raw: RawClient) -> None:
    session = raw.open()
    raw.step(session, 0)
    conflict = (grpc.StatusCode.ABORTED, Reason.STEP_CONFLICT)
    gap = (grpc.StatusCode.FAILED_PRECONDITION, Reason.STEP_GAP)
    assert refused(raw.step, session, 0, inputs_of=5) == conflict
    assert refused(raw.step, session, 0, deterministic=False) == conflict
    assert refused(raw.step, session, 2) == gap
    first = raw.step(session, 1)
    assert refused(raw.step, session, 0) == gap
    assert raw.step(session, 1) == first


def test_a_repeat_joins_the_step_in_progress() -> None:
    """Four equal calls before the forward pass, of which one is cancelled, result in one step."""
    with serving() as running:
        service = running.service

        async def main() -> None:
            session = service.sessions.open(service.models.layout(SPACES.hash), 0)
            request = step_request(session.id, 0, *step_inputs(0, 0), True, False)
            calls = [service.start_step(request) for _ in range(4)]
            with pytest.raises(Refusal) as caught:
                service.start_step(step_request(session.id, 0, *step_inputs(0, 1), True, False))
            assert caught.value.reason == Reason.STEP_CONFLICT
            calls[0].cancel()
            # the next step may arrive before this one is answered
            ahead = service.start_step(step_request(session.id, 1, *step_inputs(0, 1), True, False))
            async with asyncio.timeout(10):
                answers = await asyncio.gather(*calls[1:])
                following = policy_pb2.StepResponse.FromString(await ahead)
            assert answers[0] == answers[1] == answers[2]
            assert following.step_index == 1
            assert session.next_index == 2
            assert running.server.metrics.registry.get_sample_value("tamiyo_serve_steps_total") == 2

        asyncio.run_coroutine_threadsafe(main(), running.loop).result(20)


def test_steps_sent_ahead_are_answered_in_order_and_a_gap_is_refused() -> None:
    with serving() as running:
        service = running.service

        async def main() -> None:
            session = service.sessions.open(service.models.layout(SPACES.hash), 0)

            def begin(index: int) -> asyncio.Future[bytes]:
                future: asyncio.Future[bytes] = service.start_step(
                    step_request(session.id, index, *step_inputs(0, index), True, False)
                )
                return future

            async with asyncio.timeout(10):
                answers = [policy_pb2.StepResponse.FromString(a) for a in await asyncio.gather(*map(begin, range(4)))]
                local = LocalPolicy(toy_network(), version=1).open(SPACES)
                for index, answer in enumerate(answers):
                    assert answer.step_index == index
                    assert list(answer.action) == local.step(*step_inputs(0, index)).action.tolist()
                late, gap = begin(4), begin(6)  # 5 is missing
                with pytest.raises(Refusal) as caught:
                    await gap
                assert caught.value.reason == Reason.STEP_GAP
                await late
                pending = begin(5)
                with pytest.raises(Refusal):
                    begin(1000)
                await pending
            assert session.next_index == 6

        asyncio.run_coroutine_threadsafe(main(), running.loop).result(20)


def test_a_step_that_arrives_as_an_earlier_one_completes_is_no_gap() -> None:
    """Step 2 is handled between the completion of step 0 and the calls that wait for it, while step 1 waits."""
    with serving() as running:
        service = running.service

        async def main() -> None:
            session = service.sessions.open(service.models.layout(SPACES.hash), 0)
            begun: list[asyncio.Future[bytes]] = []

            def begin(index: int) -> None:
                begun.append(service.start_step(step_request(session.id, index, *step_inputs(0, index), True, False)))

            finish = service.batcher._finish

            def finish_and_receive(*args: Any) -> None:
                service.batcher._finish = finish
                asyncio.get_running_loop().call_soon(begin, 2)
                finish(*args)

            service.batcher._finish = finish_and_receive
            begin(0)
            begin(1)
            async with asyncio.timeout(10):
                await begun[0]
                await begun[1]
                assert len(begun) == 3
                assert policy_pb2.StepResponse.FromString(await begun[2]).step_index == 2

        asyncio.run_coroutine_threadsafe(main(), running.loop).result(20)


def test_a_step_that_is_cancelled_before_its_batch_is_dropped() -> None:
    with serving() as running:
        service = running.service

        def cancelled_step() -> Session:
            session = service.sessions.open(service.models.layout(SPACES.hash), 0)
            service.start_step(step_request(session.id, 0, *step_inputs(0, 0), True, False)).cancel()
            return session

        session = running.call(cancelled_step)
        running.call(lambda: None)
        assert session.next_index == 0
        assert session.pending is None


def test_closing_waits_for_the_step_in_progress() -> None:
    """The row is not reused while the forward pass may still write to it."""
    with serving(max_sessions=1) as running:
        service = running.service

        def close_early() -> tuple[object, object]:
            session = service.sessions.open(service.models.layout(SPACES.hash), 0)
            answer = service.start_step(step_request(session.id, 0, *step_inputs(0, 0), True, False))
            service.close_session(policy_pb2.CloseSessionRequest(session_id=session.id))
            assert service.sessions.find(session.id, "") is session
            return session, answer

        session, answer = running.call(close_early)
        for _ in range(5):
            running.call(lambda: None)
        assert answer.done()  # type: ignore[attr-defined]
        assert service.sessions.find(session.id, "") is None  # type: ignore[attr-defined]
        assert service.sessions.state_table.num_free == 1


def test_an_expired_session_is_refused_as_expired_and_reopened_by_the_client() -> None:
    with serving(session_ttl_s=0.3) as running:
        raw = RawClient(running.address)
        session = raw.open()
        raw.step(session, 0)
        time.sleep(0.35)
        running.call(running.service.expire)
        with pytest.raises(grpc.RpcError) as caught:
            raw.step(session, 1)
        info = error_info(caught.value)
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
        assert (info.reason, info.metadata["import_required"]) == (Reason.SESSION_EXPIRED, "true")
        assert info.metadata["session_ttl_s"] == "0.3"
        assert refused(raw.step, "nobody", 0) == (grpc.StatusCode.NOT_FOUND, Reason.SESSION_UNKNOWN)
        # PolicyClient opens it again
        with PolicyClient(running.address) as client:
            local = LocalPolicy(toy_network(), 1).open(SPACES)
            reopened = client.open(SPACES)
            for step in range(4):
                assert (
                    reopened.step(*step_inputs(0, step)).action.tolist()
                    == local.step(*step_inputs(0, step)).action.tolist()
                )
                time.sleep(0.35)
                running.call(running.service.expire)
                assert len(running.service.sessions) == 0


def test_a_session_continues_at_another_replica(tmp_path: Path) -> None:
    """The first server is stopped in the middle; the second has newer weights, and still those of the first."""
    key = write_file(tmp_path / "key", "0123456789abcdef0123456789abcdef")
    local = LocalPolicy(toy_network(), 1).open(SPACES, seed=9)
    store = FakeWeightStore(weights())
    with serving(store, state_key_file=key) as second:
        RawClient(second.address).open()  # keeps the first version
        store.newest = weights(seed=1, version=2)
        wait_for_version(second, 2)
        with serving(state_key_file=key) as first:
            client = PolicyClient([first.address, second.address], deadline_s=20)
            session = client.open(SPACES, seed=9)
            for step in range(3):
                assert (
                    session.step(*step_inputs(0, step), False).action.tolist()
                    == local.step(*step_inputs(0, step), False)[0].tolist()
                )
        for step in range(3, 6):
            mine, served = local.step(*step_inputs(0, step), False), session.step(*step_inputs(0, step), False)
            assert served.policy_version == 1
            assert served.action.tolist() == mine.action.tolist()
            np.testing.assert_allclose(served.log_probs, mine.log_probs, atol=1e-5)
        client.close()


def test_an_imported_session_replays_its_last_answer_and_may_switch_to_newer_weights(tmp_path: Path) -> None:
    key = write_file(tmp_path / "key", "0123456789abcdef0123456789abcdef")
    with serving(state_key_file=key) as first:
        raw = RawClient(first.address)
        session = raw.open(seed=1)
        raw.step(session, 0)
        last = raw.step(session, 1, export_state=True)
    with serving(FixedWeights(weights(seed=1, version=2)), state_key_file=key) as second:
        raw = RawClient(second.address)
        gone = (grpc.StatusCode.FAILED_PRECONDITION, Reason.VERSION_GONE)
        assert refused(raw.open, exported_state=last.exported_state) == gone
        again = raw.open(exported_state=last.exported_state, other_version=True)
        assert again == session
        replayed = raw.step(session, 1)
        assert (replayed.action, replayed.policy_version) == (last.action, 1)
        assert raw.step(session, 2).policy_version == 2
        # a repeated import, like that of a client whose first attempt was lost, does not undo the step
        raw.open(exported_state=last.exported_state, other_version=True)
        assert refused(raw.step, session, 1)[1] == Reason.STEP_GAP


def test_a_forged_or_damaged_state_is_refused(server: RunningServer, raw: RawClient, tmp_path: Path) -> None:
    session = raw.open()
    sealed = raw.step(session, 0, export_state=True).exported_state
    invalid = (grpc.StatusCode.INVALID_ARGUMENT, Reason.STATE_INVALID)
    changed = bytearray(sealed)
    changed[20] ^= 1
    assert refused(raw.open, exported_state=bytes(changed)) == invalid
    assert refused(raw.open, exported_state=b"nonsense") == invalid
    with serving() as other:
        assert refused(RawClient(other.address).open, exported_state=sealed) == invalid
        with PolicyClient([server.address, other.address], deadline_s=5) as client:
            reopened = client.open(SPACES)
            reopened.step(*step_inputs(0, 0))
            client._target = 1
            with pytest.raises(SessionLost, match="cannot continue"):
                reopened.step(*step_inputs(0, 1))


def wait_for_version(running: RunningServer, version: int) -> None:
    deadline = time.monotonic() + 20
    while running.service.models.newest.version != version:
        assert time.monotonic() < deadline, "the weights were not adopted"
        time.sleep(0.01)


def test_an_unreachable_server_is_reported_within_the_deadline() -> None:
    start = time.monotonic()
    with PolicyClient("127.0.0.1:1", deadline_s=0.5) as client, pytest.raises(PolicyError) as caught:
        client.open(SPACES)
    assert caught.value.code is Code.UNAVAILABLE
    assert time.monotonic() - start < 3


def test_a_session_that_moves_to_another_server_acts_when_it_would_have(tmp_path: Path) -> None:
    """Deterministic steps act at the seventh step, since 0.9 ** 6 > 0.5 > 0.9 ** 7, wherever the steps are taken."""
    key = write_file(tmp_path / "key", "0123456789abcdef0123456789abcdef")
    slow = to_weights(slow_to_act(SPACES, wait=0.9), 1, 1, 8)
    given = np.zeros(SPACES.obs_size, np.float32), np.full(SPACES.slots, -1), everything_legal(SPACES)
    with serving(FixedWeights(slow), state_key_file=key) as first, PolicyClient(first.address) as client:
        session = client.open(SPACES)
        ops = [session.step(*given).action[0] for _ in range(4)]
        exported = session.exported
    with serving(FixedWeights(slow), state_key_file=key) as second, PolicyClient(second.address) as client:
        session = client.open(SPACES, state=exported)
        ops += [session.step(*given).action[0] for _ in range(3)]
        session.reset()
        ops += [session.step(*given).action[0] for _ in range(7)]
    assert [int(op) for op in ops] == [0, 0, 0, 0, 0, 0, 1] * 2


def test_a_session_continues_from_the_state_that_another_client_exported(server: RunningServer) -> None:
    with PolicyClient(server.address) as client, PolicyClient(server.address) as later:
        session = client.open(SPACES, seed=3)
        assert session.exported == b""
        for step in range(3):
            session.step(*step_inputs(2, step), deterministic=False)
        other = later.open(SPACES, state=session.exported)
        expected, answer = (s.step(*step_inputs(2, 3), deterministic=False) for s in (session, other))
        assert answer.step_index == expected.step_index == 3
        assert answer.action.tolist() == expected.action.tolist()
        np.testing.assert_allclose(answer.value, expected.value, rtol=1e-6)
