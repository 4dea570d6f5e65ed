"""Limits that keep one client from exhausting the server: calls, streams, sessions and memory."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from actors.serving.client.blocking import PolicyClient
from actors.serving.messages import step_request
from actors.serving.methods import make_stub, method_path
from actors.serving.server.handlers import MAX_STREAM_STEPS
from actors.sessions.refusal import Reason
from actors.sessions.session import PolicyError
from actors.wire import policy_pb2
from tests.support.learning.toy import SPACES
from tests.support.serving.calls import connections, half_open, outcome
from tests.support.serving.servers import RunningServer, connect_outcome, serving, step_inputs, write_file
from tests.support.waiting import wait_for

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
        registry = running.server.metrics.registry
        return sum(registry.get_sample_value(f"tamiyo_serve_{name}_total") or 0.0 for name in ("steps", "replays"))

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
