"""Arbitrary entries that another program writes into the stream are skipped as foreign or set aside."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from actors.transport.redis import RedisTransport, connect
from deploy.launch.embedded_redis import EmbeddedRedis
from tests.fuzz.damage import damaged
from tests.support.examples import examples

pytestmark = pytest.mark.integration

GOOD = b"3 1 2 3 1000 run/actor-0/1719/42"
NAME = rb"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}"
REF = re.compile(
    rb"(-?\d+) (\d+) (-?\d+) (-?\d+) (\d+) " + NAME + rb"/" + NAME + rb"/(0|[1-9]\d*)/(0|[1-9]\d*)", re.DOTALL
)
MAX_INTEGER = 2**53 - 1


def is_header(ref: bytes) -> bool:
    found = REF.fullmatch(ref)
    return found is not None and all(len(n) <= 17 and abs(int(n)) <= MAX_INTEGER for n in found.groups())


@pytest.fixture(scope="module", params=[False, True], ids=["functions", "scripts"])
def foreign(request: pytest.FixtureRequest) -> Iterator[tuple[RedisTransport, Any]]:
    with EmbeddedRedis() as server:
        transport = connect(server.url, None, "foreign", scripts=request.param)
        transport.open_generation(-1, "learner")
        yield transport, redis.Redis.from_url(server.url)


@settings(max_examples=examples(150), deadline=None, suppress_health_check=list(HealthCheck))
@given(ref=st.one_of(damaged((GOOD,)), st.binary(max_size=60)))
@example(GOOD)
@example(b"3 1 2 3 1000 run/\xff\xfe/1719/42")
@example(b"3 1 2 3 1000 run/actor-0/" + b"9" * 5000 + b"/42")
@example(b"3 1 2 3 1000 run/actor-0/9007199254740992/42")
@example(b"3 1 " + b"2" * 400 + b" 3 1000 run/actor-0/1/42")
@example(b"3 1 2 3 1000 run/a\nb/1/42")
@example(b"3 1 2 3 1000 my run/actor-0/1719/42")
@example(b"3 1 2 3 1000 run/actor-0/01719/42")
@example(b"3 1 2 3 1000 run/" + b"a" * 101 + b"/1719/42")
def test_any_reference_is_a_valid_header_or_foreign(foreign: tuple[RedisTransport, Any], ref: bytes) -> None:
    transport, client = foreign
    before = transport.ledger().foreign
    client.xadd("{foreign}:episodes", {"ref": ref})
    taken = transport.take(9, 0)
    assert len(taken) == is_header(ref)
    assert transport.ledger().foreign == before + (not taken)
    for delivery in taken:
        assert delivery.payload == b""
        assert [d.entry_id for d in transport.pending()] == [delivery.entry_id]
        assert transport.dead_letter(delivery.entry_id, "a foreign entry")
        assert transport.dead_letters()[-1].header == delivery.header
    assert transport.pending() == []


@settings(max_examples=examples(60), deadline=None, suppress_health_check=list(HealthCheck))
@given(fields=st.dictionaries(st.binary(max_size=9), st.binary(max_size=40), min_size=1, max_size=3))
def test_entries_with_other_fields_are_foreign(foreign: tuple[RedisTransport, Any], fields: dict[bytes, bytes]) -> None:
    transport, client = foreign
    before = transport.ledger().foreign
    client.xadd("{foreign}:episodes", fields)
    assert transport.take(9, 0) == []
    assert transport.ledger().foreign == before + 1
