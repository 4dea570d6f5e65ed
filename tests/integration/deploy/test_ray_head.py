"""The Ray head node: the password of GCS's Redis is on no command line."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import time
import uuid
from pathlib import Path

import psutil
import pytest
import redis

from deploy.launch.embedded_redis import find_server
from tests.support.composing import free_ports
from tests.support.launching import MARK

ADDRESS = "--node-ip-address=127.0.0.1"


def marked(mark: str) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


@pytest.mark.integration
@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(240)
def test_the_password_is_on_no_command_line(tmp_path: Path) -> None:
    password, mark = f"word-{secrets.token_hex(12)}", uuid.uuid4().hex
    store, head = free_ports(2)
    file, settings = tmp_path / "password", tmp_path / "redis.conf"
    file.write_text(password + "\n")
    settings.write_text(f'port {store}\nbind 127.0.0.1\nrequirepass {password}\nsave ""\ndir {tmp_path}\n')
    temporary = Path("/tmp") / f"h{mark[:6]}"  # short: Ray puts unix sockets there
    environment = os.environ | {
        MARK: mark,
        "RAY_REDIS_ADDRESS": f"127.0.0.1:{store}",
        "RAY_AUTH_MODE": "disabled",
        "RAY_raylet_start_wait_time_s": "120",
    }
    options = ["--head", f"--port={head}", ADDRESS, "--num-cpus=1", "--redis-username=default"]
    quiet = ["--include-dashboard=false", "--disable-usage-stats", f"--temp-dir={temporary}"]
    command = [sys.executable, "-m", "deploy.launch.ray.ray_head", str(file), *options, *quiet]
    with subprocess.Popen([str(find_server()), str(settings)], stdout=subprocess.DEVNULL) as server:
        try:
            time.sleep(0.5)
            started = subprocess.run(
                command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
            )
            assert started.returncode == 0, started.stdout + started.stderr
            task = (
                f"import ray; ray.init('127.0.0.1:{head}', _node_ip_address='127.0.0.1', log_to_driver=False);"
                "print(*ray.get(ray.remote(lambda: open('/proc/self/cmdline').read()).remote()).split())"
            )
            asked = subprocess.run(
                [sys.executable, "-c", task], env=environment, capture_output=True, text=True, check=False
            )
            assert "ray::" in asked.stdout, asked.stderr
            lines = {p.pid: " ".join(p.cmdline()) for p in marked(mark)}
            assert {"gcs_server", "raylet"} <= {
                name for name in ("gcs_server", "raylet") for line in lines.values() if name in line
            }
            written = [p.read_text(errors="replace") for p in temporary.rglob("*") if p.is_file()]
            for text in (*lines.values(), *written, started.stdout, started.stderr, asked.stdout):
                assert password not in text
            with redis.Redis(port=store, password=password) as state:
                assert state.dbsize() > 0
        finally:
            for process in marked(mark):
                process.kill()
            server.kill()
            subprocess.run(["rm", "-rf", str(temporary)], check=False)


@pytest.mark.parametrize(
    ("content", "arguments", "words"),
    [
        (None, ["--head"], "cannot read the password of GCS's Redis from"),
        ("\n", ["--head"], "is empty: it must hold the password of GCS's Redis"),
        ("x", [], "usage: python -m deploy.launch.ray.ray_head PASSWORD_FILE --head"),
    ],
)
def test_missing_arguments_are_reported_in_one_line(
    tmp_path: Path, content: str | None, arguments: list[str], words: str
) -> None:
    file = tmp_path / "password"
    if content is not None:
        file.write_text(content)
    command = [sys.executable, "-m", "deploy.launch.ray.ray_head", str(file), *arguments]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    (line,) = ended.stderr.splitlines()
    assert words in line
