"""A network between learners and their store that can be cut: Unix sockets forwarded by a separate process."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from types import TracebackType

OPEN, HELD, MUTE, CUT = "open", "held", "mute", "cut"
"""Held: nothing passes. Mute: requests pass but replies do not. Cut: connections break and new ones are refused."""


class Network:
    """A number of sockets that lead to `target`, each of which can be cut separately."""

    def __init__(self, target: Path, folder: Path, cables: int) -> None:
        self.paths = [folder / f"cable{n}" for n in range(cables)]
        self.state = [OPEN] * cables
        reader, self._orders = os.pipe()
        ready, ready_writer = os.pipe()
        self._process = os.fork()
        if self._process == 0:
            try:
                os.close(self._orders)
                asyncio.run(_forward(target, self.paths, reader, ready_writer))
            finally:
                os._exit(0)
        os.close(reader)
        os.close(ready_writer)
        os.read(ready, 1)
        os.close(ready)

    def set(self, cable: int, state: str) -> None:
        """Put one of the sockets into a state."""
        self.state[cable] = state
        os.write(self._orders, f"{cable} {state}\n".encode())

    def __enter__(self) -> Network:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        os.kill(self._process, signal.SIGKILL)
        os.waitpid(self._process, 0)
        os.close(self._orders)


class _Cable:
    def __init__(self, target: Path) -> None:
        self.target, self.state = target, OPEN
        self.changed = asyncio.Event()
        self.ends: set[asyncio.StreamWriter] = set()

    def set(self, state: str) -> None:
        self.state = state
        self.changed.set()
        self.changed = asyncio.Event()
        if state == CUT:
            for end in list(self.ends):
                end.transport.abort()

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.state == CUT:
            writer.transport.abort()
            return
        store_reader, store_writer = await asyncio.open_unix_connection(str(self.target))
        self.ends |= {writer, store_writer}
        await asyncio.gather(self._pump(reader, store_writer, (HELD,)), self._pump(store_reader, writer, (HELD, MUTE)))
        self.ends -= {writer, store_writer}

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, stopped: tuple[str, ...]) -> None:
        with suppress(ConnectionError, RuntimeError):
            while data := await source.read(65536):
                while self.state in stopped:
                    await self.changed.wait()
                sink.write(data)
                await sink.drain()
        sink.close()


async def _forward(target: Path, paths: list[Path], orders: int, ready: int) -> None:
    cables = [_Cable(target) for _ in paths]
    for cable, path in zip(cables, paths, strict=True):
        await asyncio.start_unix_server(cable.accept, str(path))
    lines = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), os.fdopen(orders, "rb"))
    os.write(ready, b"!")
    while line := await lines.readline():
        number, state = line.decode().split()
        cables[int(number)].set(state)
    sys.exit(0)
