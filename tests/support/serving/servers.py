"""A policy server in a thread of this process, and inputs for its sessions."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actors.policy.publish import to_weights
from actors.serving.client.blocking import PolicyClient
from actors.serving.external import ExternalConfig
from actors.serving.options import ServeOptions
from actors.serving.server.server import PolicyServer, PolicySource
from actors.serving.server.training import EpisodeSink
from actors.sessions.session import PolicyError
from actors.types.actions import ActionMasks
from actors.types.spaces import Spaces
from actors.types.weights import WeightSet
from tests.support.learning.toy import SPACES, random_masks, toy_network
from tests.support.waiting import wait_for

CALL_S = 30.0


def step_inputs(seed: int, step: int, spaces: Spaces = SPACES) -> tuple[NDArray[Any], NDArray[Any], ActionMasks]:
    """Return a random observation, blueprint indices and masks, determined by `seed` and `step`."""
    rng = np.random.default_rng((seed, step))
    obs = rng.standard_normal(spaces.obs_size).astype(np.float32)
    return obs, rng.integers(-1, spaces.num_blueprints, spaces.slots), random_masks(rng, spaces.action)


def weights(seed: int = 0, version: int = 1, **changes: Any) -> WeightSet:
    return to_weights(toy_network(seed, **changes), version, 1, 8)


class FakeWeightStore:
    """A weight store in memory: a test assigns `newest`."""

    def __init__(self, first: WeightSet | None = None) -> None:
        self.newest = first

    def fetch(self, known: str) -> WeightSet | None:
        newest = self.newest
        return None if newest is None or str(newest.version) == known else replace(newest, digest=str(newest.version))


class RunningServer:
    def __init__(self, server: PolicyServer) -> None:
        self.server, self.loop = server, server.loop

    @property
    def address(self) -> str:
        return self.server.address

    @property
    def service(self) -> Any:
        return self.server.handlers.service

    def call(self, function: Callable[[], Any]) -> Any:
        async def run() -> Any:
            return function()

        return asyncio.run_coroutine_threadsafe(run(), self.loop).result(CALL_S)


@contextmanager
def serving(
    source: PolicySource | None = None,
    loaded: bool = True,
    external: ExternalConfig | None = None,
    sink: EpisodeSink | None = None,
    **options: Any,
) -> Iterator[RunningServer]:
    """Run a server in a thread during a `with` block, at whose end it is shut down gracefully. It listens when the
    block begins; with `loaded`, it also serves."""
    serve_options = ServeOptions(**({"listen": "127.0.0.1:0", "max_sessions": 64} | options))
    ready: Future[PolicyServer] = Future()

    async def main() -> None:
        server = PolicyServer(serve_options, source or weights(), external, sink)
        await server.start()
        ready.set_result(server)
        await server.run()

    def run() -> None:
        try:
            asyncio.run(main())
        except BaseException as error:
            if ready.done():
                raise
            ready.set_exception(error)

    thread = threading.Thread(target=run, name="policy-server")
    thread.start()
    running = RunningServer(ready.result(CALL_S))
    try:
        if loaded:
            wait_for(lambda: running.service is not None, CALL_S)
        yield running
    finally:
        with suppress(RuntimeError):  # the loop is closed: the server has stopped by itself
            running.loop.call_soon_threadsafe(running.server.stop.set)
        thread.join(CALL_S)


def write_file(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def connect_outcome(address: str, **options: object) -> str:
    """Take one step. Return OK, or the reason or status code of the refusal."""
    try:
        with PolicyClient(address, deadline_s=1.0, **options) as client:
            client.open(SPACES).step(*step_inputs(0, 0))
    except PolicyError as error:
        return error.reason or error.code.name
    return "OK"
