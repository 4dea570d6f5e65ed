"""Passwords and tokens come from the environment or a file, and appear in no process list, log or file."""

from __future__ import annotations

import secrets
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.launching import Command, rows, small, tamiyo
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
