"""Passwords and tokens come from the environment or a file, and appear in no process list, log or file."""

from __future__ import annotations

import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import redis

from tests.support.launching import Command, rows, running, small, tamiyo
from tests.support.ports import free_port
from tests.support.stores import PASSWORD, server_with_password

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(400)]
TOKEN = secrets.token_hex(32)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with server_with_password(tmp_path_factory.mktemp("server")) as place:
        yield place


def written(command: Command, *folders: Path) -> dict[str, bytes]:
    """Every file below: the run's own, Ray's logs and session among them."""
    found = {}
    for path in (p for folder in (command.temporary, *folders) for p in folder.rglob("*") if p.is_file()):
        with suppress(FileNotFoundError):  # a checkpoint that has just got its final name
            found[str(path)] = path.read_bytes()
    return found


def look(command: Command, folder: Path, place: str, extra: dict[str, str]) -> None:
    command.wait_for(lambda: len(rows(folder / "metrics.jsonl")) >= 2, 200.0)
    others = [p for p in command.relatives() if p.pid != command.process.pid]
    seen = {f"process {p.pid}": " ".join(p.info["cmdline"] or ()).encode() for p in others}  # as `ps` shows them
    assert len(seen) >= 5
    seen |= written(command, folder)
    assert command.end(30, signal.SIGINT) == 130, command.err
    seen |= written(command, folder)
    seen |= {"what it printed": (command.out + command.err).encode()}
    assert any("session" in name and "log" in name for name in seen)  # Ray's
    assert any(name.endswith("config.yaml") for name in seen)
    assert place.encode() in seen[str(folder / "config.yaml")]
    for secret in (PASSWORD, TOKEN):
        assert [name for name, content in seen.items() if secret.encode() in content] == []
    with tamiyo(folder.parent, "report", str(folder), **extra) as report:
        assert report.wait(60) == 0, report.err
    assert PASSWORD.encode() not in b"".join(written(report, folder).values())


@pytest.mark.long
@pytest.mark.parametrize("way", ["file", "url"])
def test_password_and_token_of_a_run_appear_nowhere(tmp_path: Path, place: str, way: str) -> None:
    """A password in a URL on the command line is visible there, but nowhere else."""
    file = tmp_path / "password"
    file.write_text(PASSWORD + "\n")
    secret = {"TAMIYO_REDIS_PASSWORD_FILE": str(file)} if way == "file" else {}
    root, name = tmp_path / "runs", f"secret-{way}"
    root.mkdir()
    url = f"redis://:{PASSWORD}@{place}/0" if way == "url" else f"redis://{place}/0"
    flags = small(root, name, learner__updates=1_000_000, run__redis=url)
    with tamiyo(root, "train", *flags, RAY_AUTH_TOKEN=TOKEN, **secret) as command:
        look(command, root / name, place, secret)


def test_a_wrong_password_is_not_repeated_in_the_error(tmp_path: Path, place: str) -> None:
    wrong = f"wrong-{secrets.token_hex(8)}"
    with tamiyo(tmp_path, "status", "--redis", f"redis://{place}/0", TAMIYO_REDIS_PASSWORD=wrong) as command:
        assert command.wait(30) == 2
        assert wrong not in command.out + command.err
        assert "refused the login" in command.err


# The Ray head node, whose GCS keeps its state in a Redis


@pytest.mark.long
def test_the_password_of_gcs_is_on_no_command_line(tmp_path: Path) -> None:
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
def test_missing_arguments_of_the_ray_head_are_reported_in_one_line(
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
