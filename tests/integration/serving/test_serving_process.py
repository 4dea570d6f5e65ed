"""The life of a server: health while it loads, the command, metrics and log, and a graceful shutdown."""

from __future__ import annotations

import asyncio
import json
import re
import urllib.request
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from actors.serving.client.asynchronous import AsyncPolicyClient
from actors.serving.client.blocking import PolicyClient
from actors.sessions.refusal import Reason
from actors.sessions.session import PolicyError
from learner.run.checkpoint import Checkpoint, LearnerProgress, write_checkpoint
from tests.support.launching import tamiyo
from tests.support.learning.toy import SPACES
from tests.support.ports import free_port
from tests.support.serving.servers import FakeWeightStore, connect_outcome, serving, step_inputs, weights
from tests.support.waiting import wait_for

pytestmark = pytest.mark.integration
SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


def status(address: str, service: str = "tamiyo.v1.PolicyService") -> int:
    with grpc.insecure_channel(address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        return stub.Check(health_pb2.HealthCheckRequest(service=service), timeout=5).status


def test_health_is_serving_once_weights_are_loaded() -> None:
    store = FakeWeightStore()
    with serving(store, loaded=False) as running:
        assert status(running.address) == status(running.address, "") == NOT_SERVING
        assert connect_outcome(running.address) == Reason.NOT_READY
        store.newest = weights()
        wait_for(lambda: status(running.address) == SERVING, 20)
        assert connect_outcome(running.address) == "OK"


def test_the_command_serves_a_checkpoint_exports_metrics_and_shuts_down_gracefully(tmp_path: Path) -> None:
    saved = Checkpoint(LearnerProgress(update=3, version=5), (), weights(version=5), {})
    write_checkpoint(tmp_path / "checkpoints", saved)
    port = str(free_port())
    flags = ("--checkpoint", str(tmp_path), "--listen", "127.0.0.1:0", "--metrics-port", port)
    with tamiyo(tmp_path, "serve", *flags, OMP_NUM_THREADS="1") as serve:
        serve.wait_for(lambda: serve.out.endswith("\n"), 100)
        address = serve.out.split()[-1]
        client = PolicyClient(address)
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
            async with grpc.aio.insecure_channel(address) as channel:
                statuses = aiter(health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest()))
                assert (await anext(statuses)).status == SERVING
                serve.process.terminate()
                assert (await anext(statuses)).status == NOT_SERVING

        asyncio.run(asyncio.wait_for(drain(), 20))
        assert serve.wait(20) == 0
        client.close()
        lines = [json.loads(line) for line in serve.err.splitlines()]
    events = [line["event"] for line in lines]
    assert events[0] == "listening"
    assert "serving" in events
    assert events[-2:] == ["draining", "stopped"]
    opened = next(line for line in lines if line["event"] == "session opened")
    assert re.fullmatch(r"[0-9a-f]{32}", opened["request_id"])
    assert "WRONG_SHAPE" in {line["reason"] for line in lines if line["event"] == "refused"}


def test_steps_in_progress_are_answered_before_shutdown() -> None:
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
            while len(batcher._waiting) < 3:
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
                while running.server.calls.active:
                    await asyncio.sleep(0.01)
            await streaming.close()

    with serving() as running:
        asyncio.run(main())
