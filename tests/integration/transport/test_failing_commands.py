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
from tests.support.small_queue import SmallQueue

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

    server._command = command  # type: ignore[method-assign]


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
            found[f"{name} pending"] = [
                (p["message_id"], p["consumer"])
                for group in groups
                for p in client.xpending_range(key, group["name"], "-", "+", 100)
            ]
            found[f"{name} unread"] = [client.xrange(key, b"(" + group["last-delivered-id"]) for group in groups]
        elif kind == b"string" and client.pttl(key) < 0:
            found[name] = client.get(key)
    return found


class Case:
    """A store with queued and pending episodes, dead letters and foreign entries, and one call of each verb on it."""

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

    def put(self) -> None:
        self.t.put_all([(header(n, version=3, incarnation=2), b"xyz") for n in range(3)])

    def put_oversize(self) -> None:
        self.t.put_all([(header(n, version=3), b"x" * 30) for n in (7, 8)])

    def put_fenced(self) -> None:
        self.t.put(header(9, generation=2), b"xyz")

    def import_episode(self) -> None:
        self.t.import_episode("other/b/0/0", header(0, actor="files"), b"xyz")

    def new_incarnation(self) -> None:
        self.t.new_incarnation("a")

    def report(self) -> None:
        self.t.report("a", 7, ActorLedger(4, 1, unsent=3), {})

    def take(self) -> None:
        assert len(self.t.take(9, 0)) == 2

    def begin_attempt(self) -> None:
        self.t.begin_attempt(self.first)

    def end_attempt(self) -> None:
        self.t.end_attempt(self.first)

    def ack(self) -> None:
        self.t.ack([self.first, self.second])

    def drop(self) -> None:
        self.t.drop([self.second], DropReason.STALE)

    def dead_letter(self) -> None:
        self.t.dead_letter(self.first, "reason")

    def requeue(self) -> None:
        self.t.requeue(self.letter.dead_id)

    def publish(self) -> None:
        for version in range(4):
            self.t.publish(make_weights(version))

    def revoke(self) -> None:
        self.t.revoke(1)

    def claim(self) -> None:
        self.t.claim_generation(5)

    def open(self) -> None:
        self.t.open_generation(2, "learner", Generation(1, 9))


CALLS: list[Callable[[Case], None]] = [
    call for name, call in vars(Case).items() if callable(call) and not name.startswith("_")
]


@pytest.mark.parametrize("server", ["valkey", *OTHERS])
@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.__name__)
def test_a_verb_that_fails_changes_nothing(
    server_urls: dict[str, str], namespace: str, server: str, call: Callable[[Case], None]
) -> None:
    config = SmallQueue(max_episode_bytes=20, dead_letters_kept=2, weights_kept=2)
    transport = connect(server_urls[server], config, namespace)
    case = Case(transport)
    if call is Case.publish:
        transport.publish(make_weights(0))
    before, failures = content(transport), 0
    for nth in itertools.count(1):
        make_fail(transport, nth)
        try:
            call(case)
            break
        except redis.ResponseError as error:
            if "made to fail" not in str(error):
                raise
            failures += 1
        if call is not Case.publish:  # of several calls, the first ones succeed
            assert content(transport) == before, f"command {nth}"
        transport.ledger().check()
    assert failures > 1
    assert content(transport) != before
    transport.ledger().check()
    transport.close()
