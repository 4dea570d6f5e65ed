"""The Ray head node: the password of GCS's Redis is on no command line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import redis

from tests.support.launching import running
from tests.support.ports import free_port
from tests.support.stores import PASSWORD, server_with_password


@pytest.mark.integration
@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(240)
def test_the_password_is_on_no_command_line(tmp_path: Path) -> None:
    file, head = tmp_path / "password", free_port()
    file.write_text(PASSWORD + "\n")
    environment = {"RAY_AUTH_MODE": "disabled", "RAY_raylet_start_wait_time_s": "120"}
    options = ["--head", f"--port={head}", "--node-ip-address=127.0.0.1", "--num-cpus=1", "--redis-username=default"]
    quiet = ["--include-dashboard=false", "--disable-usage-stats"]
    command = [sys.executable, "-m", "deploy.launch.ray.ray_head", str(file), *options, *quiet]
    task = (
        f"import ray; ray.init('127.0.0.1:{head}', _node_ip_address='127.0.0.1', log_to_driver=False);"
        "print(*ray.get(ray.remote(lambda: open('/proc/self/cmdline').read()).remote()).split())"
    )
    with (
        server_with_password(tmp_path) as store,
        running(tmp_path, command, environment | {"RAY_REDIS_ADDRESS": store}) as started,
    ):
        assert started.wait() == 0, started.out + started.err
        with running(tmp_path, [sys.executable, "-c", task], environment) as asked:
            assert asked.wait() == 0, asked.err
        assert "ray::" in asked.out
        lines = [" ".join(p.cmdline()) for p in started.relatives()]
        assert all(any(name in line for line in lines) for name in ("gcs_server", "raylet"))
        written = [p.read_text(errors="replace") for p in started.temporary.rglob("*") if p.is_file()]
        for text in (*lines, *written, started.out, started.err, asked.out):
            assert PASSWORD not in text
        with redis.Redis.from_url(f"redis://:{PASSWORD}@{store}") as state:
            assert state.dbsize() > 0


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
