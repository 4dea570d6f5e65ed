"""TLS, tokens, health, reflection, metrics and graceful shutdown of the policy server."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from actors.config import ConfigError
from actors.serving.client.asynchronous import AsyncPolicyClient
from actors.serving.client.blocking import PolicyClient
from actors.serving.messages import step_request
from actors.serving.options import ServeOptions
from actors.serving.server.server import FixedWeights
from actors.sessions.refusal import Reason
from actors.sessions.session import PolicyError
from learner.run.checkpoint import LearnerProgress, save_checkpoint
from tests.support.learning.toy import SPACES, toy_network
from tests.support.serving.certificates import Authority
from tests.support.serving.servers import FakeWeightStore, connect_outcome, serving, step_inputs, weights, write_file

pytestmark = pytest.mark.integration
ROOT = Path(__file__).parents[3]
SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


def status(address: str, service: str = "tamiyo.v1.PolicyService") -> int:
    with grpc.insecure_channel(address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        return stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=5).status


def test_non_loopback_addresses_require_tls_and_tokens() -> None:
    here = Path(__file__)
    for listen in ("0.0.0.0:1", "[::]:1", "example.org:50051", "192.168.1.1:0", ":50051"):
        with pytest.raises(ConfigError, match="--tls-cert and --tls-key, --token-file"):
            ServeOptions(listen=listen)
        with pytest.raises(ConfigError, match="give --token-file"):
            ServeOptions(listen=listen, tls_cert=here, tls_key=here)
        with pytest.raises(ConfigError, match="give --tls-cert"):
            ServeOptions(listen=listen, token_file=here)
        ServeOptions(listen=listen, insecure=True)
        ServeOptions(listen=listen, tls_cert=here, tls_key=here, token_file=here)
    for listen in ("127.0.0.1:1", "[::1]:1", "localhost:1", "unix:/tmp/a"):
        ServeOptions(listen=listen)


def test_tokens_are_required_expire_and_can_be_replaced(tmp_path: Path) -> None:
    old = (datetime.now(UTC) - timedelta(minutes=1)).isoformat()
    file = write_file(tmp_path / "tokens", f"good # ours\nstale {old}\n")
    with serving(token_file=file) as running:
        assert connect_outcome(running.address, token="good") == "OK"
        assert connect_outcome(running.address) == Reason.TOKEN_MISSING
        assert connect_outcome(running.address, token="wrong") == Reason.TOKEN_INVALID
        assert connect_outcome(running.address, token="stale") == Reason.TOKEN_EXPIRED
        assert status(running.address) == SERVING  # health needs no token
        write_file(file, "fresh\n")
        os.utime(file, ns=(1, 1))
        time.sleep(1.1)
        assert connect_outcome(running.address, token="fresh") == "OK"
        assert connect_outcome(running.address, token="good") == Reason.TOKEN_INVALID
        assert connect_outcome(running.address, token_file=file) == "OK"


def test_a_stream_ends_when_its_token_expires(tmp_path: Path) -> None:
    soon = (datetime.now(UTC) + timedelta(seconds=1.5)).isoformat()
    with serving(token_file=write_file(tmp_path / "tokens", f"brief {soon}\n")) as running:

        async def main() -> None:
            async with AsyncPolicyClient(running.address, token="brief", stream=True, deadline_s=3) as client:
                session = await client.open(SPACES)
                await session.step(*step_inputs(0, 0))
                await asyncio.sleep(1.6)
                with pytest.raises(PolicyError) as caught:
                    await session.step(*step_inputs(0, 1))
                assert caught.value.reason == Reason.TOKEN_EXPIRED

        asyncio.run(main())


def test_tls_and_client_certificates(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    (tmp_path / "other").mkdir()
    stranger = Authority(tmp_path / "other")
    cert, key = authority.issue("server")
    mine, secret = authority.issue("client")
    forged, forged_key = stranger.issue("client")
    ca = authority.certificate
    with serving(tls_cert=cert, tls_key=key) as running:
        assert connect_outcome(running.address, root_certificates=ca) == "OK"
        assert connect_outcome(running.address) in ("UNAVAILABLE", "DEADLINE_EXCEEDED")  # plaintext
        assert connect_outcome(running.address, root_certificates=stranger.certificate) in (
            "UNAVAILABLE",
            "DEADLINE_EXCEEDED",
        )
        assert connect_outcome(running.address, root_certificates=ca) == "OK"
    with serving(tls_cert=cert, tls_key=key, tls_client_ca=ca) as running:
        assert connect_outcome(running.address, root_certificates=ca, client_cert=mine, client_key=secret) == "OK"
        assert connect_outcome(running.address, root_certificates=ca) in ("UNAVAILABLE", "DEADLINE_EXCEEDED")
        assert connect_outcome(running.address, root_certificates=ca, client_cert=forged, client_key=forged_key) in (
            "UNAVAILABLE",
            "DEADLINE_EXCEEDED",
        )


def test_health_is_serving_once_weights_are_loaded() -> None:
    store = FakeWeightStore()
    with serving(store, loaded=False) as running:
        assert status(running.address) == status(running.address, "") == NOT_SERVING
        assert connect_outcome(running.address) == Reason.NOT_READY
        store.newest = weights()
        deadline = time.monotonic() + 20
        while status(running.address) != SERVING:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert connect_outcome(running.address) == "OK"


@contextmanager
def command(tmp_path: Path, *flags: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run `tamiyo serve --checkpoint`, and yield the process and the address that it prints."""
    network = toy_network()
    optimizer = __import__("torch").optim.AdamW(network.parameters())
    save_checkpoint(tmp_path / "checkpoints", network, optimizer, LearnerProgress(update=3, version=5), (), 8, 1)
    process = subprocess.Popen(
        [sys.executable, "-m", "deploy.cli", "serve", "--checkpoint", str(tmp_path), "--listen", "127.0.0.1:0", *flags],
        cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=(tmp_path / "log").open("w"),
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    try:
        assert process.stdout is not None
        yield process, process.stdout.readline().split()[-1]
    finally:
        process.kill()
        process.wait()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


def test_the_command_serves_a_checkpoint_exports_metrics_and_shuts_down_gracefully(tmp_path: Path) -> None:
    port = free_port()
    flags = ("--metrics-port", str(port))
    with command(tmp_path, *flags) as (process, address), PolicyClient(address, deadline_s=30) as client:
        session = client.open(SPACES)
        assert session.step(*step_inputs(0, 0)).policy_version == 5
        with pytest.raises(PolicyError):
            client.open(SPACES.with_slots(3)).step(*step_inputs(0, 0))
        page = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5).read().decode()
        assert "tamiyo_serve_steps_total 1.0" in page
        assert "tamiyo_serve_sessions 2.0" in page
        assert 'tamiyo_serve_refusals_total{reason="WRONG_SHAPE"} 1.0' in page
        assert "tamiyo_serve_policy_version 5.0" in page

        async def drain() -> None:
            """Health changes to NOT_SERVING on SIGTERM."""
            async with grpc.aio.insecure_channel(address) as channel:
                from actors.serving.client.endpoint import METHODS

                watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
                statuses = aiter(watch)
                assert (await anext(statuses)).status == SERVING
                step = channel.unary_unary(*METHODS["Step"])
                request = step_request(session._protocol.session_id, 1, *step_inputs(0, 1), True, False)
                await step(request)
                process.send_signal(signal.SIGTERM)
                assert (await anext(statuses)).status == NOT_SERVING

        asyncio.run(asyncio.wait_for(drain(), 20))
        assert process.wait(20) == 0
    lines = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    events = [line["event"] for line in lines]
    assert events[0] == "listening"
    assert "serving" in events
    assert events[-2:] == ["draining", "stopped"]
    opened = next(line for line in lines if line["event"] == "session opened")
    assert re.fullmatch(r"[0-9a-f]{32}", opened["request_id"])
    assert "WRONG_SHAPE" in {line["reason"] for line in lines if line["event"] == "refused"}


def test_steps_in_progress_are_answered_before_shutdown() -> None:
    """Unary steps and steps on a stream, while new work is refused."""

    async def main() -> None:
        async with AsyncPolicyClient(running.address, deadline_s=20) as client:
            sessions = [await client.open(SPACES) for _ in range(2)]
            streaming = AsyncPolicyClient(running.address, deadline_s=20, stream=True)
            third = await streaming.open(SPACES)
            await third.step(*step_inputs(0, 0))
            batcher = running.service.batcher
            batcher.flush = lambda: None  # delay the batch, like a slow forward pass
            tasks = [asyncio.create_task(s.step(*step_inputs(0, 0))) for s in sessions]
            tasks.append(asyncio.create_task(third.step(*step_inputs(0, 1))))
            while len(batcher) < 3:
                await asyncio.sleep(0.01)
            running.loop.call_soon_threadsafe(running.server.stop.set)
            while status(running.address) != NOT_SERVING:
                await asyncio.sleep(0.01)
            assert connect_outcome(running.address) == Reason.DRAINING
            del batcher.flush
            running.loop.call_soon_threadsafe(batcher.flush)
            answers = await asyncio.gather(*tasks)
            assert [a.step_index for a in answers] == [0, 0, 1]
            async with asyncio.timeout(10):  # an open stream does not delay the shutdown
                while running.server.handlers.calls:
                    await asyncio.sleep(0.01)
            await streaming.close()

    with serving(FixedWeights(weights())) as running:
        asyncio.run(main())
