"""A verb one of whose commands fails changes nothing: each command of each verb is made to fail once."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import redis

from actors.transport.base import DropReason, Generation
from actors.transport.ledger import ActorLedger
from actors.transport.lua_library import KEYS, SCRIPT
from actors.transport.redis import Transport, connect
from tests.conftest import OTHERS
from tests.support.builders import make_weights
from tests.support.queueing import header, put, report, take_ids
from tests.support.stores import SmallQueue

FAILING = """
local given, calls = redis, 0
local redis = setmetatable({call = function(...)
  calls = calls + 1
  if calls == %d then error('made to fail') end
  return given.call(...)
end}, {__index = function(_, name) return given[name] end})
"""


def make_fail(transport: Transport, nth: int) -> None:
    """Run the verbs as scripts whose nth command fails; 0 lets all succeed."""
    server = transport.server

    def command(verb: str, args: Any) -> list[Any]:
        keys = [server.key(name) for name in KEYS[verb].split()]
        return ["EVAL", FAILING % nth + SCRIPT, len(keys), *keys, verb, *args]

    server._command = command


def content(transport: Transport) -> dict[str, Any]:
    """All that the store holds, payloads that will expire excepted: they are not accepted."""
    client, found = transport.server.client, dict[str, Any]()
    for key in client.keys(transport.server.key("*")):
        name = key.decode().partition(":")[2]
        kind = client.type(key)
        if kind == b"hash":
            found |= {f"{name} {f.decode()}": v for f, v in client.hgetall(key).items() if v != b"0"}
        elif kind == b"stream" and client.xlen(key):
            found[name] = client.xrange(key)
            groups = client.xinfo_groups(key)
            pending = (p for group in groups for p in client.xpending_range(key, group["name"], "-", "+", 100))
            found[f"{name} pending"] = [(p["message_id"], p["consumer"]) for p in pending]
            found[f"{name} unread"] = [client.xrange(key, b"(" + group["last-delivered-id"]) for group in groups]
        elif kind == b"string" and client.pttl(key) < 0:
            found[name] = client.get(key)
    return found


class Case:
    """A store with queued and pending episodes, dead letters and foreign entries."""

    def __init__(self, transport: Transport) -> None:
        self.t = transport
        transport.open_generation(-1, "learner")
        put(transport, *range(6), version=3)
        put(transport, 6, version=3, payload=b"x" * 30)  # oversize
        transport.server.client.xadd(transport.server.key("episodes"), {"not": "ours"})
        self.first, self.second, third, trained = take_ids(transport, 4)
        transport.ack([trained])
        transport.begin_attempt(self.first)
        transport.dead_letter(third, "reason")
        for incarnation in range(3):
            report(transport, incarnation, produced=2, unsent=2)
        (_, self.letter) = transport.dead_letters()


CALLS: dict[str, Callable[[Case], object]] = {
    "put": lambda c: c.t.put_all([(header(n, version=3, incarnation=2), b"xyz") for n in range(3)]),
    "put oversize": lambda c: c.t.put_all([(header(n, version=3), b"x" * 30) for n in (7, 8)]),
    "put fenced": lambda c: c.t.put(header(9, generation=2), b"xyz"),
    "import": lambda c: c.t.import_episode("other/b/0/0", header(0, actor="files"), b"xyz"),
    "new incarnation": lambda c: c.t.new_incarnation("a"),
    "report": lambda c: c.t.report("a", 7, ActorLedger(4, 1, unsent=3), {}),
    "take": lambda c: c.t.take(9, 0),
    "begin attempt": lambda c: c.t.begin_attempt(c.first),
    "end attempt": lambda c: c.t.end_attempt(c.first),
    "ack": lambda c: c.t.ack([c.first, c.second]),
    "drop": lambda c: c.t.drop([c.second], DropReason.STALE),
    "dead letter": lambda c: c.t.dead_letter(c.first, "reason"),
    "requeue": lambda c: c.t.requeue(c.letter.dead_id),
    "publish": lambda c: [c.t.publish(make_weights(version)) for version in range(4)],
    "revoke": lambda c: c.t.revoke(1),
    "claim": lambda c: c.t.claim_generation(5),
    "open": lambda c: c.t.open_generation(2, "learner", Generation(1, 9)),
}


@pytest.mark.parametrize("server", ["valkey", *OTHERS])
@pytest.mark.parametrize("verb", CALLS)
def test_a_verb_that_fails_changes_nothing(server_urls: dict[str, str], namespace: str, server: str, verb: str) -> None:
    config = SmallQueue(max_episode_bytes=20, dead_letters_kept=2, weights_kept=2)
    transport = connect(server_urls[server], config, namespace)
    case = Case(transport)
    if verb == "publish":
        transport.publish(make_weights(0))
    before, failures = content(transport), 0
    for nth in itertools.count(1):
        make_fail(transport, nth)
        try:
            CALLS[verb](case)
            break
        except redis.ResponseError as error:
            if "made to fail" not in str(error):
                raise
            failures += 1
        if verb != "publish":  # of several calls, the first ones succeed
            assert content(transport) == before, f"command {nth}"
        transport.ledger().check()
    assert failures > 1
    assert content(transport) != before
    transport.ledger().check()
    transport.close()
