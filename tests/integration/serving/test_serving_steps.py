"""Steps are idempotent: repeats, concurrent repeats, conflicts, and sessions continued at another server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import grpc
import numpy as np
import pytest

from actors.policy.publish import to_weights
from actors.serving.client.blocking import PolicyClient
from actors.serving.messages import step_request
from actors.serving.server import service
from actors.serving.status import error_info
from actors.sessions.local import LocalPolicy
from actors.sessions.refusal import Code, Reason, Refusal
from actors.sessions.session import PolicyError, SessionLost
from actors.wire import policy_pb2
from tests.support.learning.slow_policy import everything_legal, slow_to_act
from tests.support.learning.toy import SPACES, toy_network
from tests.support.serving.servers import FakeWeightStore, RunningServer, serving, step_inputs, weights, write_file
from tests.support.serving.training_sessions import RawSession, refused
from tests.support.waiting import wait_for

pytestmark = pytest.mark.integration
CONFLICT, GAP, INVALID = "ABORTED STEP_CONFLICT", "FAILED_PRECONDITION STEP_GAP", "INVALID_ARGUMENT STATE_INVALID"


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with serving() as running:
        yield running


@pytest.fixture
def key(tmp_path: Path) -> Path:
    return write_file(tmp_path / "key", "0123456789abcdef0123456789abcdef")


def open_raw(running: RunningServer, **fields: object) -> RawSession:
    return RawSession(running.address, train=False, **fields)


def test_a_repeated_step_returns_the_same_answer_and_does_not_advance_the_session(server: RunningServer) -> None:
    twice, once = open_raw(server, seed=3), open_raw(server, seed=3)
    for index in range(6):
        answers = [twice.step(index, deterministic=False, export_state=False) for _ in range(3)]
        other = once.step(index, deterministic=False)
        assert answers[0] == answers[1] == answers[2]
        assert answers[0].action == other.action
        np.testing.assert_allclose(answers[0].log_probs, other.log_probs, atol=1e-6)


def test_repeats_with_other_contents_and_gaps_are_refused(server: RunningServer) -> None:
    session = open_raw(server)
    session.step(0)
    assert refused(session.step, 0, inputs_of=5) == refused(session.step, 0, deterministic=False) == CONFLICT
    assert refused(session.step, 2) == GAP
    first = session.step(1, export_state=False)
    assert refused(session.step, 0) == GAP
    assert session.step(1, export_state=False) == session.step(1, export_state=False, deterministic=True) == first
    assert session.step(1, export_state=True).exported_state


def test_an_error_after_the_decision_is_sent_without_its_text_and_a_repeat_gets_the_answer(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = open_raw(server)
    with monkeypatch.context() as patch:
        patch.setattr(service, "seal", Mock(side_effect=MemoryError("a secret")))
        with pytest.raises(grpc.RpcError) as caught:
            session.step(0)
    assert (caught.value.code(), error_info(caught.value).reason) == (grpc.StatusCode.INTERNAL, Reason.INTERNAL)
    assert caught.value.details().startswith("internal error: see request")
    assert "secret" not in str(caught.value)
    assert [session.step(index).step_index for index in (0, 1)] == [0, 1]


def test_a_repeat_joins_the_step_in_progress_and_closing_waits_for_it() -> None:
    """Four equal calls before the forward pass, of which one is cancelled, result in one step. The row is not reused
    while the forward pass may still write to it."""
    with serving() as running:
        service = running.service

        async def main() -> None:
            session = service.sessions.open(service.models.layout(SPACES.hash), 0)
            request = step_request(session.id, 0, *step_inputs(0, 0), True, False)
            calls = [running.loop.create_future() for _ in range(4)]
            for call in calls:
                service.start_step(request, call)
            for index, reason in ((0, Reason.STEP_CONFLICT), (1, Reason.STEP_GAP)):
                other = step_request(session.id, index, *step_inputs(0, 1), True, False)
                with pytest.raises(Refusal) as caught:
                    service.start_step(other, running.loop.create_future())
                assert caught.value.reason == reason
            calls[0].cancel()
            service.close_session(policy_pb2.CloseSessionRequest(session_id=session.id))
            assert service.sessions.find(session.id, "") is session
            async with asyncio.timeout(10):
                answers = await asyncio.gather(*calls[1:])
            assert answers[0] == answers[1] == answers[2]
            assert session.next_index == 1
            assert running.server.metrics.registry.get_sample_value("tamiyo_serve_steps_total") == 1
            assert service.sessions.find(session.id, "") is None

        asyncio.run_coroutine_threadsafe(main(), running.loop).result(20)


def test_an_expired_session_is_refused_and_reopened_by_the_client() -> None:
    with serving(session_ttl_s=0.3) as running:
        session = open_raw(running)
        session.step(0)
        time.sleep(0.35)
        running.call(running.service.expire)
        with pytest.raises(grpc.RpcError) as caught:
            session.step(1)
        assert caught.value.code() is grpc.StatusCode.NOT_FOUND
        assert error_info(caught.value).metadata["import_required"] == "true"
        with PolicyClient(running.address) as client:
            local, reopened = LocalPolicy(toy_network(), 1).open(SPACES), client.open(SPACES)
            for step in range(2):
                inputs = step_inputs(0, step)
                assert reopened.step(*inputs).action.tolist() == local.step(*inputs).action.tolist()
                wait_for(lambda: not running.call(lambda: running.service.expire() or len(running.service.sessions)))


def test_a_session_continues_at_another_replica(key: Path) -> None:
    """The first server is stopped in the middle; the second has newer weights, and still those of the first."""
    local = LocalPolicy(toy_network(), 1).open(SPACES, seed=9)
    store = FakeWeightStore(weights())
    with serving(store, state_key_file=key) as second:
        open_raw(second)  # keeps the first version
        store.newest = weights(seed=1, version=2)
        wait_for(lambda: second.service.models.newest.version == 2, 20)
        with serving(state_key_file=key) as first:
            client = PolicyClient([first.address, second.address], deadline_s=20)
            session = client.open(SPACES, seed=9)
            for step in range(3):
                mine, served = (each.step(*step_inputs(0, step), False) for each in (local, session))
                assert served.action.tolist() == mine.action.tolist()
        for step in range(3, 6):
            mine, served = (each.step(*step_inputs(0, step), False) for each in (local, session))
            assert served.policy_version == 1
            assert served.action.tolist() == mine.action.tolist()
            np.testing.assert_allclose(served.log_probs, mine.log_probs, atol=1e-5)
        client.close()


def test_an_imported_session_replays_its_last_answer_and_goes_on_with_newer_weights(key: Path) -> None:
    with serving(state_key_file=key) as first:
        session = open_raw(first)
        session.step(0)
        last = session.step(1)
    with serving(weights(seed=1, version=2), state_key_file=key) as second:
        again = open_raw(second, exported_state=last.exported_state)
        replayed = again.step(1)
        assert (replayed.action, replayed.policy_version) == (last.action, 1)
        assert replayed.session_id == again.id != session.id
        assert again.step(2).policy_version == 2
        # a repeated import, like that of a client whose first attempt was lost, does not undo the step
        open_raw(second, exported_state=last.exported_state)
        assert refused(again.step, 1) == GAP


def test_a_forged_or_damaged_state_is_refused(server: RunningServer) -> None:
    sealed = open_raw(server).step(0).exported_state
    changed = bytearray(sealed)
    changed[20] ^= 1
    for state in (bytes(changed), b"nonsense"):
        assert refused(open_raw, server, exported_state=state) == INVALID
    with serving() as other:
        assert refused(open_raw, other, exported_state=sealed) == INVALID
        with PolicyClient([server.address, other.address], deadline_s=5) as client:
            reopened = client.open(SPACES)
            reopened.step(*step_inputs(0, 0))
            client._target = 1
            with pytest.raises(SessionLost, match="cannot continue"):
                reopened.step(*step_inputs(0, 1))


def test_an_unreachable_server_is_reported_within_the_deadline() -> None:
    start = time.monotonic()
    with PolicyClient("127.0.0.1:1", deadline_s=0.5) as client, pytest.raises(PolicyError) as caught:
        client.open(SPACES)
    assert caught.value.code is Code.UNAVAILABLE
    assert time.monotonic() - start < 3


def test_a_session_that_moves_to_another_server_acts_when_it_would_have(key: Path) -> None:
    """Deterministic steps act at the seventh step, since 0.9 ** 6 > 0.5 > 0.9 ** 7, wherever the steps are taken."""
    slow = to_weights(slow_to_act(SPACES, wait=0.9), 1, 1, 8)
    given = np.zeros(SPACES.obs_size, np.float32), np.full(SPACES.slots, -1), everything_legal(SPACES)
    with serving(slow, state_key_file=key) as first, PolicyClient(first.address) as client:
        session = client.open(SPACES)
        ops = [session.step(*given).action[0] for _ in range(4)]
        exported = session.exported
    with serving(slow, state_key_file=key) as second, PolicyClient(second.address) as client:
        session = client.open(SPACES, state=exported)
        ops += [session.step(*given).action[0] for _ in range(3)]
        session.reset()
        ops += [session.step(*given).action[0] for _ in range(7)]
    assert [int(op) for op in ops] == [0, 0, 0, 0, 0, 0, 1] * 2
