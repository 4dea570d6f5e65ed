"""`Store`: the keys of one run on a server; a server of this process, and servers other than the bundled one."""

from __future__ import annotations

import atexit
import itertools
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import redis

from actors.config import QueueConfig
from actors.transport.redis import Transport, connect
from deploy.launch.embedded_redis import EmbeddedRedis, find_server
from tests.support.ports import free_port

NUMBERS = itertools.count()
PASSWORD = "a-word-for-tests"


@dataclass(frozen=True)
class SmallQueue(QueueConfig):
    """A queue that may keep less than those of runs: the constants of `QueueConfig` as fields."""

    payload_ttl_s: float = QueueConfig.payload_ttl_s
    weights_kept: int = QueueConfig.weights_kept
    dead_letters_kept: int = QueueConfig.dead_letters_kept


@cache
def own_server() -> EmbeddedRedis:
    """The server of this process, which starts at the first call and ends with the process."""
    server = EmbeddedRedis()
    server.start()
    atexit.register(server.stop)
    return server


def new_transport(config: QueueConfig | None = None) -> Transport:
    """A handle on an empty store of `own_server`."""
    return connect(own_server().url, config, f"store{next(NUMBERS)}")


class OtherServer(EmbeddedRedis):
    """An embedded server that runs the given binary."""

    def __init__(self, binary: Path) -> None:
        super().__init__()
        self._binary = binary


class Store:
    """The keys of one run on the server at `url`."""

    def __init__(self, url: str, namespace: str, scripts: bool = False) -> None:
        self.url, self.namespace, self.scripts = url, namespace, scripts
        self._opened: list[Transport] = []

    def __call__(self, **fields: Any) -> Transport:
        """Open another handle, with these fields of `SmallQueue`."""
        transport = connect(self.url, SmallQueue(**fields), self.namespace, self.scripts)
        self._opened.append(transport)
        return transport

    @cached_property
    def client(self) -> Any:
        return redis.Redis.from_url(self.url)

    def key(self, name: str) -> str:
        return f"{{{self.namespace}}}:{name}"

    def keys(self, pattern: str = "*") -> list[str]:
        return sorted(key.decode().partition(":")[2] for key in self.client.keys(self.key(pattern)))

    def freeze(self) -> Callable[[], None]:
        """Copy the state of the store at once; the result brings it back at once when called."""
        names, pipeline = self.client.keys(self.key("*")), self.client.pipeline()
        for name in names:
            pipeline.pttl(name)
            pipeline.dump(name)
        replies = pipeline.execute()
        dumped = list(zip(names, replies[::2], replies[1::2], strict=True))

        def thaw() -> None:
            pipeline = self.client.pipeline()
            pipeline.delete("", *self.client.keys(self.key("*")))  # at least one key
            for name, ttl_ms, value in dumped:
                if value is not None:  # it was deleted meanwhile
                    pipeline.restore(name, max(0, ttl_ms), value, replace=True)
            pipeline.execute()

        return thaw

    def empty(self) -> None:
        self.client.delete("", *self.client.keys(self.key("*")))  # at least one key

    def close(self) -> None:
        for transport in self._opened:
            transport.close()
        if "client" in vars(self):
            self.client.close()


@contextmanager
def running(folder: Path, *options: str | Path, binary: Path | None = None) -> Iterator[Any]:
    """Run a server with these options, and yield a client on its socket in `folder`."""
    socket = folder / "socket"
    command = [binary or find_server(), *options, "--save", "", "--unixsocket", socket, "--dir", folder]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        client = redis.Redis(unix_socket_path=str(socket))
        try:
            deadline = time.monotonic() + 10
            while not socket.exists():
                assert process.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.01)
            yield client
        finally:
            client.close()
            process.kill()
            process.wait()
            socket.unlink(missing_ok=True)


@contextmanager
def server_with_password(folder: Path) -> Iterator[str]:
    """Run a server that asks for `PASSWORD`, and yield its HOST:PORT."""
    port = str(free_port())
    with running(folder, "--port", port, "--bind", "127.0.0.1", "--requirepass", PASSWORD):
        yield f"127.0.0.1:{port}"
