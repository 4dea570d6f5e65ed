"""The life of a server, alone and as several workers on one port: health, metrics, crashes, and a graceful shutdown."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import threading
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import psutil
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from actors.config import ConfigError
from actors.errors import UserError
from actors.serving import options
from actors.serving.client.asynchronous import AsyncPolicyClient
from actors.serving.client.blocking import PolicyClient
from actors.serving.options import ServeOptions
from actors.sessions.refusal import Reason
from actors.sessions.session import Answer, PolicyError
from actors.wire import policy_pb2
from deploy.launch.supervision.server_workers import reserved_address
from learner.run.checkpoint import Checkpoint, LearnerProgress, write_checkpoint
from tests.support.launching import Command, tamiyo
from tests.support.learning.toy import SPACES
from tests.support.ports import adjacent_ports, free_port
from tests.support.serving.servers import FakeWeightStore, connect_outcome, serving, step_inputs, weights, write_file
from tests.support.waiting import wait_for

pytestmark = pytest.mark.integration
SEED, CLIENTS, AFTER = 9, 4, 10  # clients of each kind; steps after the last crash


Played = list[tuple[Answer, bytes]]  # the answers, each with the session exported after it


class Episode:
    """The inputs of one client, which plays until `AFTER` steps after the last crash, unless the episode has a length.
    Counts the steps that were answered."""

    def __init__(self, crashed: threading.Event, length: int | None = None) -> None:
        self.steps, self._crashed, self._length = 0, crashed, length

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        while self._length is None or self.steps < self._length:
            if self._length is None and self._crashed.is_set():
                self._length = self.steps + AFTER
            yield (*step_inputs(SEED, self.steps), self.steps % 3 > 0)  # some steps are sampled
            self.steps += 1


def write_run(folder: Path) -> None:
    """Write the folder of a run whose newest checkpoint has version 5."""
    saved = Checkpoint(LearnerProgress(update=3, version=5), (), weights(version=5), {})
    write_checkpoint(folder / "checkpoints", saved)


def play(address: str, episode: Episode) -> Played:
    with PolicyClient(address) as client, client.open(SPACES, seed=SEED) as session:
        return [(session.step(*inputs), session.exported) for inputs in episode]


async def play_async(address: str, episode: Episode, stream: bool) -> Played:
    async with AsyncPolicyClient(address, stream=stream) as client:
        return await play_with(client, episode)


async def play_with(client: AsyncPolicyClient, episode: Episode) -> Played:
    async with await client.open(SPACES, seed=SEED) as session:
        return [(await session.step(*inputs), session.exported) for inputs in episode]


async def play_all(address: str, episodes: list[Episode]) -> list[Played]:
    return await asyncio.gather(*(play_async(address, e, bool(i % 2)) for i, e in enumerate(episodes)))


def assert_same(played: Played, whole: Played) -> None:
    """To the bit."""
    assert len(played) <= len(whole)
    for (answer, _), (expected, _) in zip(played, whole, strict=False):
        np.testing.assert_array_equal(answer.action, expected.action)
        np.testing.assert_array_equal(answer.log_probs, expected.log_probs)
        assert answer[2:5] == expected[2:5]  # value, version and index
    mine, uninterrupted = (recurrent_state(p[len(played) - 1][1]) for p in (played, whole))
    assert mine == uninterrupted != b""


def recurrent_state(exported: bytes) -> bytes:
    state = policy_pb2.SessionState.FromString(policy_pb2.SignedState.FromString(exported).state)
    return state.state.SerializeToString(deterministic=True)


def metric(port: int, name: str) -> float:
    """0 while nobody answers."""
    try:
        page = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5).read().decode()
    except OSError:
        return 0.0
    return float(next(line.split()[1] for line in page.splitlines() if line.startswith(f"tamiyo_serve_{name} ")))


def events(serve: Command, name: str) -> list[Any]:
    lines = [json.loads(line) for line in serve.err.splitlines()]
    return [line["worker"] for line in lines if line["event"] == name]


def test_clients_of_a_killed_worker_continue_at_another_one(tmp_path: Path) -> None:
    """Both workers are killed, one after the other, while blocking, asynchronous and streaming clients step."""
    write_run(tmp_path)
    ports = adjacent_ports(2)
    flags = ("--checkpoint", str(tmp_path), "--listen", "127.0.0.1:0", "--metrics-port", str(ports[0]))
    with tamiyo(tmp_path, "serve", *flags, "--workers", "2", OMP_NUM_THREADS="1") as serve:
        serve.wait_for(lambda: "serving on" in serve.out, 100)
        address, crashed = serve.out.split()[-1], threading.Event()
        workers = sorted(psutil.Process(serve.process.pid).children(), key=psutil.Process.create_time)
        assert len(workers) == len(set(events(serve, "serving"))) == 2
        episodes = [Episode(crashed) for _ in range(3 * CLIENTS)]
        with ThreadPoolExecutor(CLIENTS + 1) as pool:
            playing = [pool.submit(play, address, episode) for episode in episodes[:CLIENTS]]
            rest = pool.submit(asyncio.run, play_all(address, episodes[CLIENTS:]))
            try:
                wait_for(lambda: all(metric(port, "sessions_opened_total") for port in ports), 30)
                for number, worker in enumerate(workers):
                    steps = [e.steps for e in episodes]
                    wait_for(lambda b=steps: all(e.steps > s + 2 for e, s in zip(episodes, b, strict=True)), 30)
                    worker.kill()
                    wait_for(lambda n=number: events(serve, "a worker ended and is restarted")[n:] == [n], 20)
                    wait_for(lambda n=number: events(serve, "serving")[2 + n :] == [n], 20)
            finally:
                crashed.set()
            played = [*(future.result(60) for future in playing), *rest.result(60)]
        assert metric(ports[0], "sessions_imported_total") >= 1
        whole = play(address, Episode(crashed, max(e.steps for e in episodes)))
        assert serve.end() == 0
        assert sorted(events(serve, "stopped")) == [0, 1]
        assert serve.out.count("serving on") == 1
    assert {answer.policy_version for answer, _ in whole} == {5}
    for one in played:
        assert_same(one, whole)


def test_a_worker_that_cannot_start_is_reported_once_and_none_outlives_its_parent(tmp_path: Path) -> None:
    ports = adjacent_ports(2)
    flags = ("--rule", "never", "--listen", "127.0.0.1:0", "--workers", "2")
    with (
        socket.create_server(("127.0.0.1", ports[1])),
        tamiyo(tmp_path, "serve", *flags, "--metrics-port", str(ports[0])) as refused,
        tamiyo(tmp_path, "serve", *flags) as killed,
    ):
        assert refused.wait() == 2
        (line,) = (line for line in refused.err.splitlines() if not line.startswith("{"))
        assert line.startswith(f"tamiyo: error: cannot serve metrics on port {ports[1]}")
        killed.wait_for(lambda: "serving on" in killed.out)
        assert len(killed.relatives()) == 3
        killed.process.kill()
        wait_for(lambda: not killed.relatives(), 20)


def test_workers_need_a_port_that_linux_shares_and_no_other_server_has(monkeypatch: pytest.MonkeyPatch) -> None:
    with reserved_address(ServeOptions(listen="127.0.0.1:0", workers=2)) as address:
        port = address.removeprefix("127.0.0.1:")
        assert int(port) > 0
        with serving(listen=address, workers=2), serving(listen=address, workers=2):
            for listen in (address, f"localhost:{port}"):
                with (
                    pytest.raises(UserError, match=f"cannot listen on {listen} .*: give --listen another address"),
                    reserved_address(ServeOptions(listen=listen, workers=2)),
                ):
                    pass
    with pytest.raises(ConfigError, match="workers is 0: it must be at least 1"):
        ServeOptions(workers=0)
    with pytest.raises(ConfigError, match="cannot share a unix socket"):
        ServeOptions(listen="unix:/tmp/a", workers=2)
    monkeypatch.delattr(socket, "SO_REUSEPORT")
    with pytest.raises(ConfigError, match="only Linux"):
        ServeOptions(workers=2)


def test_a_session_returns_to_a_server_that_has_an_older_state_of_it(tmp_path: Path) -> None:
    """Also one of the episode before, at the same step."""
    key = write_file(tmp_path / "key", "0123456789abcdef0123456789abcdef")
    with (
        serving(state_key_file=key) as first,
        serving(state_key_file=key) as second,
        PolicyClient([first.address, second.address]) as moving,
        PolicyClient(first.address) as staying,
    ):
        sessions = [client.open(SPACES, seed=SEED) for client in (moving, staying)]
        for target, step in ((0, 0), (0, 1), (1, 2), (1, 0), (1, 1), (0, 2), (0, 3), (1, 4)):
            moving._target = target
            if target and not step:
                for session in sessions:
                    session.reset(SEED + 1)
            inputs = *step_inputs(SEED + target, step), False
            there, here = (session.step(*inputs) for session in sessions)
            assert there.step_index == here.step_index == step
            np.testing.assert_array_equal(there.log_probs, here.log_probs)


def test_streams_and_new_sessions_follow_a_connection_that_has_reached_its_age(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stream is open for a minute more, when new calls already lead to another worker."""
    monkeypatch.setattr(options, "CONNECTION_AGE_S", 0.1)
    shared = {"state_key_file": write_file(tmp_path / "key", "0123456789abcdef0123456789abcdef"), "workers": 2}

    async def main(address: str) -> list[Played]:
        async with AsyncPolicyClient(address, stream=True) as client:
            return [await play_with(client, Episode(threading.Event(), 4)) for _ in range(60)]

    with serving(**shared) as first, serving(listen=first.address, **shared) as second:
        played = asyncio.run(main(first.address))
        assert all(running.service.metrics.opened._value.get() for running in (first, second))
    for one in played:
        assert_same(one, played[0])


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
    write_run(tmp_path)
    port = free_port()
    flags = ("--checkpoint", str(tmp_path), "--listen", "127.0.0.1:0", "--metrics-port", str(port))
    with tamiyo(tmp_path, "serve", *flags, OMP_NUM_THREADS="1") as serve:
        serve.wait_for(lambda: serve.out.endswith("\n"), 100)
        address = serve.out.split()[-1]
        client = PolicyClient(address)
        session = client.open(SPACES)
        assert session.step(*step_inputs(0, 0)).policy_version == 5
        with pytest.raises(PolicyError):
            client.open(SPACES.with_slots(3)).step(*step_inputs(0, 0))
        expected = {"steps_total": 1, "sessions": 2, 'refusals_total{reason="WRONG_SHAPE"}': 1, "policy_version": 5}
        assert {name: metric(port, name) for name in expected} == expected

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
    names = [line["event"] for line in lines]
    assert (names[0], names[-2:], "serving" in names) == ("listening", ["draining", "stopped"], True)
    opened = next(line for line in lines if line["event"] == "session opened")
    assert re.fullmatch(r"[0-9a-f]{32}", opened["request_id"])
    assert "WRONG_SHAPE" in {line["reason"] for line in lines if line["event"] == "refused"}


def test_steps_in_progress_are_answered_before_shutdown() -> None:
    async def main() -> None:
        async with AsyncPolicyClient(running.address, deadline_s=20) as client:
            streaming = AsyncPolicyClient(running.address, deadline_s=20, stream=True)
            sessions = [await each.open(SPACES) for each in (client, client, streaming)]
            await sessions[2].step(*step_inputs(0, 0))
            batcher = running.service.batcher
            batcher.flush = lambda: None  # delay the batch, like a slow forward pass
            tasks = [asyncio.create_task(s.step(*step_inputs(0, i // 2))) for i, s in enumerate(sessions)]
            while len(batcher._waiting) < 3:
                await asyncio.sleep(0.01)
            running.loop.call_soon_threadsafe(running.server.stop.set)
            while status(running.address) != NOT_SERVING:
                await asyncio.sleep(0.01)
            assert connect_outcome(running.address) == Reason.DRAINING
            del batcher.flush
            running.loop.call_soon_threadsafe(batcher.flush)
            assert [answer.step_index for answer in await asyncio.gather(*tasks)] == [0, 0, 1]
            async with asyncio.timeout(10):  # an open stream does not delay the shutdown
                while running.server.calls.active:
                    await asyncio.sleep(0.01)
            await streaming.close()

    with serving() as running:
        asyncio.run(main())
