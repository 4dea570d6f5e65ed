"""Ray's worker processes as forks of one process that has imported what they need.

Each worker of Ray is a new Python, which imports Ray twice, PyTorch and Numba: seconds of a core for every actor and
the learner. The fork server imports them once, and loads the compiled kernels. It has one thread, no connection, and
has touched no GPU, so that a fork of it is as good as a new process.

Ray itself is imported at the first request: while it is imported, it reads from its environment to which raylet it
belongs.
"""

from __future__ import annotations

import gc
import json
import os
import runpy
import selectors
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from importlib.util import find_spec
from typing import NamedTuple

import numpy as np

from actors.process_environment import process_environment
from deploy.config.schema import Config
from deploy.launch import kernels
from deploy.launch.embedded_redis import socket_folder
from deploy.launch.ray.start_worker import ADDRESS, FORKED, SETUP, SIZE

BEFORE_RAY = ("actors.workers.rollout_worker", "learner.service")
WITH_RAY = ("actors.workers.ray_worker", "actors.metrics.ray", "ray._private.workers.setup_worker")
MAIN = "import sys; sys.path[:] = sys.argv[3:]; from deploy.launch.ray import fork_server; fork_server.main()"
_open: set[str] = set()  # the address of the server that this process has started


class Request(NamedTuple):
    """What starts a worker: arguments of Ray's `setup_worker.py`."""

    arguments: list[str]
    environ: dict[str, str]
    folder: str


@contextmanager
def fork_server(config: Config) -> Iterator[None]:
    """Run the server, with the kernels that a run with these settings needs, while the context is open. A context
    within another uses its server. A raylet that is started meanwhile finds the server by an environment variable."""
    if _open:  # not whether the variable is set, which processes of another run inherit
        yield
        return
    folder = socket_folder()
    package = find_spec("ray")
    assert package is not None
    assert package.origin is not None
    setup = os.path.join(os.path.dirname(package.origin), "_private", "workers", "setup_worker.py")
    os.environ |= {ADDRESS: f"{folder}/socket", SETUP: setup}
    _open.add(os.environ[ADDRESS])
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.environ[ADDRESS])
        listener.listen(64)
        command = [sys.executable, "-c", MAIN, str(listener.fileno()), ",".join(kernels.of_workers(config)), *sys.path]
        # Of a session of its own, which a terminal does not interrupt. It ends with its standard input.
        server = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            env=os.environ | process_environment(uses_gpu=True),
            pass_fds=[listener.fileno()],
            start_new_session=True,
        )
    try:
        yield
    finally:
        server.kill()
        server.communicate()
        del os.environ[ADDRESS], os.environ[SETUP]
        _open.clear()
        shutil.rmtree(folder, ignore_errors=True)


def main() -> None:
    """Import, then fork a worker for each request, until standard input is closed."""
    listener = socket.socket(fileno=int(sys.argv[1]))
    preload(BEFORE_RAY, list(filter(None, sys.argv[2].split(","))))
    request = ForkServer(listener).serve()
    if request is None:  # the launching process may have been killed
        shutil.rmtree(os.path.dirname(listener.getsockname()), ignore_errors=True)
    else:
        from ray._private.runtime_env.context import RuntimeEnvContext
        from ray._private.utils import update_envs
        from ray._private.workers import setup_worker

        os.chdir(request.folder)
        np.random.seed()  # noqa: NPY002 - that of the server is the same in all its forks
        setup, sys.argv = setup_worker.parser.parse_known_args(request.arguments)
        update_envs(RuntimeEnvContext.deserialize(setup.serialized_runtime_env_context or "{}").env_vars)
        runpy.run_path(sys.argv[0], run_name="__main__")


def preload(modules: Sequence[str], parts: Sequence[str] = ()) -> None:
    """Import modules and load kernels, whose objects no garbage collection looks at any more: that would copy their
    memory."""
    gc.disable()
    new = [import_module(module) for module in modules if module not in sys.modules]
    for part in parts:
        kernels.load(part)
    if new:
        gc.collect()
        gc.freeze()
    gc.enable()


class ForkServer:
    """Forks a worker for each connection of `start_worker`, and tells it when the worker has ended."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._woken, self._wake = socket.socketpair()  # by SIGCHLD
        self._wake.setblocking(False)
        self._workers: dict[int, socket.socket] = {}  # by PID
        self._selector = selectors.DefaultSelector()
        for file in (listener, self._woken, sys.stdin):
            self._selector.register(file, selectors.EVENT_READ)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.set_wakeup_fd(self._wake.fileno(), warn_on_full_buffer=False)

    def serve(self) -> Request | None:
        """Return None when standard input is closed, and in each worker its request."""
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is sys.stdin:
                    return None
                if key.fileobj is self._woken:
                    self._woken.recv(1024)
                    self._reap()
                elif key.fileobj is not self._listener:
                    if key.data in self._workers:  # it has not ended, but its `start_worker` was killed
                        os.kill(key.data, signal.SIGKILL)
                        self._selector.unregister(key.fileobj)
                elif (request := self._fork(self._listener.accept()[0])) is not None:
                    return request

    def _fork(self, connection: socket.socket) -> Request | None:
        size, outputs, _, _ = socket.recv_fds(connection, SIZE.size, 2)
        text = connection.recv(SIZE.unpack(size)[0], socket.MSG_WAITALL) if len(size) == SIZE.size else b""
        if not text:  # its `start_worker` was killed before it had said what to start
            connection.close()
            return None
        request = Request(*json.loads(text))
        os.environ.clear()
        os.environ.update(request.environ)
        preload(WITH_RAY)
        pid = os.fork()
        if pid:
            self._workers[pid] = connection
            self._selector.register(connection, selectors.EVENT_READ, pid)
            with suppress(OSError):  # Ray may have given up meanwhile: then the selector sees the connection's end
                connection.send(FORKED)
            for file in outputs:
                os.close(file)
            return None
        os.setpgid(0, 0)  # the raylet kills the group of a worker that has ended
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._selector.close()
        for opened in (self._listener, self._woken, self._wake, connection, *self._workers.values()):
            opened.close()
        for number, file in enumerate(outputs, 1):
            os.dup2(file, number)
            os.close(file)
        return request

    def _reap(self) -> None:
        while self._workers:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            with self._workers.pop(pid) as connection, suppress(OSError, KeyError):
                self._selector.unregister(connection)
                connection.send(bytes([os.waitstatus_to_exitcode(status) & 0xFF]))
