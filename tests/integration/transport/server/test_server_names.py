"""Invalid names of runs and actors are refused before anything is written; on every backend."""

from __future__ import annotations

from typing import Any

import pytest

from actors.errors import UserError
from actors.transport.base import EpisodeHeader, Malformed, Transport
from actors.transport.redis import RedisTransport, connect
from actors.types.episode import InvalidEpisode
from deploy.config.schema import RunConfig
from deploy.launch.embedded_redis import EmbeddedRedis
from tests.conftest import Connect
from tests.support.queueing import OK, counts, header

pytestmark = pytest.mark.integration

INVALID_NAMES = ("my run", " ", "a b/c", "a}b", "{a}", "a:b", "-a", ".a", "..", "é", "a\nb", "a\x1b[1mb", "a" * 101)
NAMES = ("0", "my_run.v2-x", "_", "A" * 100, "1719-run")


@pytest.mark.parametrize("name", INVALID_NAMES)
def test_invalid_names_are_refused_at_the_start(name: str) -> None:
    with pytest.raises(UserError, match="ASCII letters, digits") as raised:
        RunConfig(name=name)
    assert "\n" not in str(raised.value)
    with pytest.raises(UserError, match="ASCII letters, digits"):
        connect("redis://127.0.0.1:1/0", None, name)
    for run, actor in ((name, "a"), ("run", name)):
        with pytest.raises(InvalidEpisode):
            EpisodeHeader(f"{run}/{actor}/0/1", actor, 0, 1, 1, 0, 0)


@pytest.mark.parametrize(
    "episode_id", ["run/b/0/1", "run/a/1/1", "run/a/0/2", "run/a/0/01", "run/a/b/0/1", "a/0/1", ""]
)
def test_a_header_must_agree_with_its_id(episode_id: str) -> None:
    with pytest.raises(InvalidEpisode, match="is not"):
        EpisodeHeader(episode_id, "a", 0, 1, 1, 0, 0)


def test_episodes_with_any_valid_name_can_be_put_taken_and_settled(transport: Transport) -> None:
    transport.open_generation(-1, "learner")
    for name in NAMES:
        assert transport.put(EpisodeHeader(f"{name}/{name}/7/3", name, 7, 3, 1, 0, 0), b"payload").status is OK
    taken = transport.take(9, 0)
    assert [d.header.episode_id for d in taken] == [f"{name}/{name}/7/3" for name in NAMES]
    assert len(transport.ack([d.entry_id for d in taken])) == len(NAMES)
    assert counts(transport, "trained", "queued", "pending") == (len(NAMES), 0, 0)
    assert {actor for actor, _ in transport.ledger().actors} == set(NAMES)
    assert payloads_without_expiry(transport) == []


def test_put_all_refuses_episodes_of_several_incarnations(open_transport: Connect) -> None:
    transport = open_transport()
    transport.open_generation(-1, "learner")
    for other in (header(2, actor="b"), header(2, incarnation=1)):
        with pytest.raises(Malformed):
            transport.put_all([(header(1), b"payload"), (other, b"payload")])
    assert counts(transport, "accepted", "queued", "stream_entries") == (0, 0, 0)


@pytest.fixture(params=[False, True], ids=["functions", "scripts"])
def redis_transport(embedded_redis: EmbeddedRedis, namespace: str, request: pytest.FixtureRequest) -> RedisTransport:
    transport = connect(embedded_redis.url, None, namespace, scripts=request.param)
    transport.open_generation(-1, "learner")
    return transport


@pytest.mark.parametrize(
    "wrong",
    [
        *(f"{name}/a/0/2" for name in INVALID_NAMES),
        *(f"run/{name}/0/2" for name in INVALID_NAMES),
        "run/a/b/2",
        "run/a/0/02",
    ],
)
def test_the_store_validates_all_references_before_it_writes(redis_transport: RedisTransport, wrong: str) -> None:
    """Clients of other versions may not have checked them. A refused call leaves no payload without expiry behind."""
    ids = ["run/a/0/0", "run/a/0/1", wrong]
    values = {redis_transport._queue.key("payload:") + i: b"payload" for i in ids}
    with pytest.raises(Malformed):
        redis_transport._queue.store(values, 60_000, "put", 9, 999, 99, 9, *(f"1 0 0 7 {i}" for i in ids))
    assert redis_transport.take(9, 0) == []
    assert counts(redis_transport, "accepted", "queued", "stream_entries", "foreign") == (0, 0, 0, 0)
    assert payloads_without_expiry(redis_transport) == []


def payloads_without_expiry(transport: Transport) -> list[bytes]:
    """Payloads that nothing would ever delete if their entries were lost."""
    if not isinstance(transport, RedisTransport):
        return []
    client: Any = transport._queue.client
    return [key for key in client.keys(transport._queue.key("payload:*")) if client.pttl(key) < 0]
