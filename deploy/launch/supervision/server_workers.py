"""`ServerWorkers`: policy servers that share a port, as forks of one process, which restarts those that end.

Linux spreads connections over the processes that listen on a port with SO_REUSEPORT. What was loaded before the forks,
such as PyTorch, weights and kernels, is in memory once, and a worker is replaced within tenths of a second.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import mmap
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import structlog

from actors.errors import UserError
from actors.serving.options import ServeOptions
from actors.serving.server.server import PolicyServer, PolicySource, serve
from actors.sessions.session_state import read_key
from actors.transport.retry import Backoff
from deploy.launch.signals import stop_on_signal

POLL_S = 0.1
STEADY_S = 60.0  # after which a worker that ends is restarted without the delay that earlier failures earned
KILL_S = 5.0  # beyond `drain_s`, after which a worker that has not stopped is killed
PR_SET_PDEATHSIG = 1


def run_workers(
    options: ServeOptions, source: Callable[[], PolicySource], started: Callable[[PolicyServer], None]
) -> None:
    """Serve with several workers, each of which calls `source`. They share the key that signs exported sessions, so
    that a session continues at any of them. `started` is called once, by the first worker that listens.

    Returns in each worker after it has stopped, and raises `SystemExit` in this process, which supervises them. Raises
    `UserError`.
    """
    key, workers = read_key(options.state_key_file), ServerWorkers(options)
    with reserved_address(options) as address:
        number = workers.supervise(address)

        def first_started(server: PolicyServer) -> None:
            if number == 0 and not workers.serving:
                started(server)

        def loaded(server: PolicyServer) -> None:
            workers.loaded[number] = 1

        port = options.metrics_port and options.metrics_port + number
        own = replace(options, listen=address, metrics_port=port)
        asyncio.run(serve(own, source(), first_started, loaded=loaded, key=key))


@contextmanager
def reserved_address(options: ServeOptions) -> Iterator[str]:
    """Yield the address to listen on, with a free port in the place of port 0. Only forks of this process can listen
    there while the context is open. Raises `UserError` if a server does already."""
    host, _, port = options.listen.rpartition(":")
    with socket.socket(socket.AF_INET6 if ":" in options.host else socket.AF_INET) as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            holder.bind((options.host, int(port)))
        except OSError as error:
            raise UserError(f"cannot listen on {options.listen} ({error}): give --listen another address") from error
        # Only now: with this option, the socket could be bound beside workers of another server.
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        yield f"{host}:{holder.getsockname()[1]}"


@dataclass
class _Worker:
    pid: int = 0  # 0 while it does not run
    began_s: float = 0.0
    backoff: Backoff = field(default_factory=Backoff)

    def ended(self) -> int | None:
        """Return its exit status if it has just ended; the number of a signal is negative."""
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        if not pid:
            return None
        self.pid = 0
        return os.waitstatus_to_exitcode(status)


class ServerWorkers:
    """The workers of a server, numbered from 0."""

    def __init__(self, options: ServeOptions) -> None:
        self._stop_s = options.drain_s + KILL_S
        self._workers = [_Worker() for _ in range(options.workers)]
        self.loaded = mmap.mmap(-1, options.workers)  # shared with the workers: 1 for each that has weights
        self._log = structlog.get_logger("tamiyo.serving")
        self.serving = False  # whether all workers have had weights

    def supervise(self, address: str) -> int:
        """Return the number of the worker in each worker. In this process, print the address when all have weights,
        restart those that end, and stop them on SIGTERM or SIGINT. Raises `SystemExit` then, and if one cannot start.
        """
        gc.freeze()  # a collection would copy the memory that is shared
        parent, number = os.getpid(), None
        with stop_on_signal() as stop:
            while number is None and not stop.wait(POLL_S):
                number = self._tend(address)
            if number is None:
                self._stop()
                raise SystemExit(0)
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if stop.is_set() or os.getppid() != parent:  # before this worker could notice
            raise SystemExit(0)
        structlog.contextvars.bind_contextvars(worker=number)
        return number

    def _tend(self, address: str) -> int | None:
        """Start the workers that do not run: at first one after the other, so that kernels are compiled once, and what
        is wrong is said once. Returns its number in a worker that has started, else None."""
        for number, worker in enumerate(self._workers):
            if worker.pid and (status := worker.ended()) is not None:
                self._handle_end(number, worker, status)
            if not worker.pid and worker.backoff.due and (self.serving or all(self.loaded[:number])):
                worker.began_s = time.monotonic()
                worker.pid = os.fork()
                if not worker.pid:
                    return number
        if not self.serving and all(self.loaded[:]):
            self.serving = True
            print(f"serving on {address}", flush=True)
        return None

    def _handle_end(self, number: int, worker: _Worker, status: int) -> None:
        self.loaded[number] = 0
        if status > 0 and not self.serving:  # it has said why
            self._stop()
            raise SystemExit(status)
        if time.monotonic() - worker.began_s > STEADY_S:
            worker.backoff.succeed()
        delay_s = worker.backoff.fail()
        self._log.error("a worker ended and is restarted", worker=number, status=status, delay_s=delay_s)

    def _stop(self) -> None:
        """Let the workers drain. Kill those that take too long, or at once if a second signal interrupts this."""
        running = [worker for worker in self._workers if worker.pid]
        for worker in running:
            os.kill(worker.pid, signal.SIGTERM)
        deadline_s = time.monotonic() + self._stop_s
        try:
            while (running := [w for w in running if w.ended() is None]) and time.monotonic() < deadline_s:
                time.sleep(POLL_S)
        finally:
            for worker in running:
                os.kill(worker.pid, signal.SIGKILL)
