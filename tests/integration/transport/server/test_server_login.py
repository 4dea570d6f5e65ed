"""Connecting to a server: addresses, passwords, and the errors when they are wrong."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis

from actors.errors import UserError
from actors.transport import redis_server, retry
from actors.transport.redis import connect
from actors.transport.retry import Retry
from deploy.launch.embedded_redis import EmbeddedRedis

pytestmark = pytest.mark.integration
Renewable = tuple[str, Path, Callable[[str], None]]


def test_the_password_is_read_from_the_environment(
    embedded_redis: EmbeddedRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    password, bare = embedded_redis.url.removeprefix("unix://:").split("@")
    monkeypatch.setenv("TAMIYO_REDIS_PASSWORD", password)
    connect(f"unix://{bare}").close()
    monkeypatch.setenv("TAMIYO_REDIS_PASSWORD", "wrong")
    with pytest.raises(UserError, match="TAMIYO_REDIS_PASSWORD"):
        connect(f"unix://{bare}")
    monkeypatch.delenv("TAMIYO_REDIS_PASSWORD")
    with pytest.raises(UserError, match="refused the login"):
        connect(f"unix://{bare}")


@pytest.mark.parametrize(
    "url", ["redis://:secret@127.0.0.1:1/0", "unix://:secret@/nowhere/redis.sock", "http://h:1", "redis://[::1"]
)
def test_an_unreachable_server_is_reported_in_one_line_without_the_password(url: str) -> None:
    with pytest.raises(UserError) as raised:
        connect(url)
    message = str(raised.value)
    assert "\n" not in message
    assert "secret" not in message
    assert "start one there" in message or "give redis://" in message


@pytest.fixture
def renewable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Renewable]:
    """The URL of a server without its password, the file that holds it, and a function that changes it in the server
    and closes all connections."""
    with EmbeddedRedis() as server:
        password, bare = server.url.removeprefix("unix://:").split("@")
        (tmp_path / "password").write_text(password)
        monkeypatch.setenv("TAMIYO_REDIS_PASSWORD_FILE", str(tmp_path / "password"))
        admin = redis.Redis.from_url(server.url)

        def renew(new: str) -> None:
            admin.config_set("requirepass", new)
            admin.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")

        yield f"unix://{bare}", tmp_path / "password", renew


def test_a_renewed_password_is_read_again(renewable: Renewable) -> None:
    url, file, renew = renewable
    transport = connect(url)
    for new in ("second", "third"):
        renew(new)
        file.unlink()  # between the removal of the old file and the new one
        writing = threading.Timer(0.3, file.write_text, [f"{new}\n"])
        writing.start()
        transport.ledger()
        assert transport.current_generation() == 0
        writing.join()
    transport.close()


def test_a_login_refused_for_a_minute_is_an_error(renewable: Renewable, monkeypatch: pytest.MonkeyPatch) -> None:
    url, _, renew = renewable
    for module in (redis_server, retry):
        monkeypatch.setattr(module, "LOGIN_S", 0.3)
    monkeypatch.setattr(redis_server, "RETRIES", 1)
    transport, lines = connect(url), list[str]()
    renew("second")
    calls: tuple[Callable[[], object], ...] = (transport.ledger, lambda: connect(url))
    for call in calls:
        began = time.monotonic()
        with pytest.raises(UserError, match="refused the login") as raised:
            Retry(lines.append)(call)
        assert 0.3 < time.monotonic() - began < 30.0
        assert "\n" not in str(raised.value)
    assert all("waiting for it" in line for line in lines)
    assert len(lines) == 2
    transport.close()
