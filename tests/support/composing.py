"""Read docker-compose.yml and run the commands of its services as plain processes."""

from __future__ import annotations

import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psutil
import yaml

from tests.support.launching import MARK, command_line

ROOT = Path(__file__).parents[2]
IMAGE_ENTRYPOINT = ["tamiyo"]  # of deploy/Dockerfile


def project() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    return loaded


def interpolated(text: str, settings: Mapping[str, str]) -> str:
    """Expand `${NAME:-default}`, `${NAME:+replacement}` and `$$` like Compose."""
    filled = re.sub(r"\$\{(\w+):-([^}]*)\}", lambda m: settings.get(m[1]) or m[2], text)
    filled = re.sub(r"\$\{(\w+):\+([^}]*)\}", lambda m: m[2] if settings.get(m[1]) else "", filled)
    assert "${" not in filled, filled
    return filled.replace("$$", "$")


def command_of(service: dict[str, Any], settings: Mapping[str, str]) -> list[str]:
    """The command of the container, including the entrypoint."""
    command = service.get("command", [])
    if isinstance(command, str):
        words = shlex.split(interpolated(command, settings))
    else:
        words = [interpolated(word, settings) for word in command]
    own = service["image"].startswith("tamiyo:")
    return [*service.get("entrypoint", IMAGE_ENTRYPOINT if own else []), *words]


class Service:
    """The command of one service as a process."""

    def __init__(self, name: str, command: list[str], environment: Mapping[str, str], folder: Path) -> None:
        self.name, self._mark, self._log = name, uuid.uuid4().hex, folder / f"{name}.log"
        temporary = Path("/tmp") / f"c{self._mark[:6]}"  # short: Ray puts unix sockets there
        temporary.mkdir()
        self._temporary = temporary
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        own = {"PATH": path, MARK: self._mark, "TMPDIR": str(temporary), "OMP_NUM_THREADS": "1"}
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                command,
                env={**os.environ, **environment, **own},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    @property
    def said(self) -> str:
        return self._log.read_text(errors="replace")

    def wait_for(self, condition: Callable[[], bool], timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while not condition():
            assert self.process.poll() is None, f"{self.name} ended:\n{self.said}"
            assert time.monotonic() < deadline, f"{self.name} timed out:\n{self.said}"
            time.sleep(0.2)

    def terminate(self, timeout_s: float = 20.0) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout_s)

    def clean(self) -> None:
        """Kill all processes of the service, like stopping a container."""
        self.process.kill()
        for process in psutil.process_iter():
            try:
                if process.environ().get(MARK) == self._mark and command_line(process):
                    process.kill()
            except psutil.Error:  # it has ended, or belongs to another user
                continue
        self.process.wait(10)
        subprocess.run(["rm", "-rf", str(self._temporary)], check=False)


def free_ports(count: int) -> list[int]:
    probes = [socket.socket() for _ in range(count)]
    for probe in probes:
        probe.bind(("127.0.0.1", 0))
    ports = [int(probe.getsockname()[1]) for probe in probes]
    for probe in probes:
        probe.close()
    return ports
