"""Run a policy server in a thread of this process."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from typing import NamedTuple

from actors.serving.external import ExternalConfig
from actors.serving.options import ServeOptions
from actors.serving.server.server import PolicyServer, PolicySource
from actors.serving.server.training import EpisodeSink

TIMEOUT_S = 60.0  # of the start, and of the shutdown


class ServerThread(NamedTuple):
    """A running server, its event loop and its thread."""

    server: PolicyServer
    loop: asyncio.AbstractEventLoop
    thread: threading.Thread


@contextmanager
def serve_in_thread(
    options: ServeOptions,
    source: PolicySource,
    external: ExternalConfig | None = None,
    sink: EpisodeSink | None = None,
) -> Iterator[ServerThread]:
    """Run a server during a `with` block. It listens when the block begins, and is shut down gracefully at its end."""
    ready: Future[tuple[PolicyServer, asyncio.AbstractEventLoop]] = Future()

    async def main() -> None:
        server = PolicyServer(options, source, external, sink)
        await server.start()
        ready.set_result((server, asyncio.get_running_loop()))
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
    try:
        server, loop = ready.result(TIMEOUT_S)
        yield ServerThread(server, loop, thread)
    finally:
        if ready.done() and ready.exception() is None:
            server, loop = ready.result()
            with suppress(RuntimeError):  # the loop is closed: the server has stopped by itself
                loop.call_soon_threadsafe(server.stop.set)
        thread.join(TIMEOUT_S)
