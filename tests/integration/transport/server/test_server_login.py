"""Connecting to a server: addresses, passwords, and the errors when they are wrong."""

from __future__ import annotations

import pytest

from actors.errors import UserError
from actors.transport.redis import connect
from deploy.launch.embedded_redis import EmbeddedRedis

pytestmark = pytest.mark.integration


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
