"""A policy server beside other work, in a thread of this process."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from typing import NamedTuple

from actors.serving.options import ServeOptions
from actors.serving.server.server import PolicyServer, Source

START_S = 60.0  # for the start, and again for the end


class ServerThread(NamedTuple):
    server: PolicyServer
    loop: asyncio.AbstractEventLoop  # the server's own
    thread: threading.Thread


@contextmanager
def serve_beside(options: ServeOptions, source: Source) -> Iterator[ServerThread]:
    """Listens when the block begins, and is stopped in order, as by SIGTERM, however the block ends."""
    ready: Future[tuple[PolicyServer, asyncio.AbstractEventLoop]] = Future()

    async def main() -> None:
        server = PolicyServer(options, source)
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
        server, loop = ready.result(START_S)
        yield ServerThread(server, loop, thread)
    finally:
        if ready.done() and ready.exception() is None:
            server, loop = ready.result()
            with suppress(RuntimeError):  # the loop is closed: the server has ended before the block did
                loop.call_soon_threadsafe(server.stop.set)
        thread.join(START_S)
