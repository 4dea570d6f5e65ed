"""Limits and eviction of sessions, against a simple model of the same rules."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.policy.state import PolicyState, StateSizes
from actors.serving.messages import MessageLayout, parse_step, step_request
from actors.serving.server.sessions import EVICT_AFTER_S, PendingStep, SessionTable
from actors.sessions.refusal import Refusal
from actors.wire.policy_pb2 import StepRequest
from tests.support.examples import examples
from tests.support.learning.toy import SPACES
from tests.support.serving.servers import step_inputs

ROWS, SHARE = 6, 2
LAYOUT = MessageLayout(SPACES)
QUERY = parse_step(step_request("", 0, *step_inputs(0, 0), True, False), LAYOUT)


@dataclass
class ModelSession:
    owner: str
    last_used_s: float
    busy: bool = False


def evicted_for(known: dict[str, ModelSession], owner: str, now: float) -> str | None:
    """Return the session that is evicted for a new one of `owner`: None if there is room, "" if that is refused."""
    held = Counter(k.owner for k in known.values())
    owners = {owner}
    if not (owner and held[owner] >= SHARE):
        if len(known) < ROWS:
            return None
        owners |= {other for other in held if held[other] > held[owner]}
    idle = {i: k for i, k in known.items() if k.owner in owners and not k.busy and now - k.last_used_s >= EVICT_AFTER_S}
    return min(idle, key=lambda i: idle[i].last_used_s, default="")


OPERATIONS = st.lists(
    st.tuples(st.sampled_from("oootswc"), st.sampled_from(["", "a", "b", "c", "d"]), st.integers(0, 5)),
    min_size=10, max_size=80,
)  # fmt: skip


@given(OPERATIONS)
@settings(max_examples=examples(300), deadline=None)
def test_sessions_are_opened_and_evicted_as_in_the_model(operations: list[tuple[str, str, int]]) -> None:
    now = 1000.0
    states = PolicyState.zeros(StateSizes((1, 1), (1, 1)), ROWS)
    sessions = SessionTable(states, 1e9, lambda: now, lambda _: None, lambda: SHARE)
    known: dict[str, ModelSession] = {}
    for kind, owner, pick in operations:
        now += 0.001  # no two times are equal
        chosen = sorted(known, key=lambda i: known[i].last_used_s)[pick] if pick < len(known) else None
        if kind == "o":
            expected = evicted_for(known, owner, now)
            if expected == "":
                with pytest.raises(Refusal, match="try again later"):
                    sessions.open(LAYOUT, 0, owner=owner)
                continue
            opened = sessions.open(LAYOUT, 0, owner=owner)
            assert [i for i in known if sessions.find(i, known[i].owner) is None] == [expected] * (expected is not None)
            known.pop(expected, None)
            known[opened.id] = ModelSession(owner, now)
        elif kind == "w":
            now += 0.7 * EVICT_AFTER_S
        elif chosen is not None:
            session = sessions.find(chosen, known[chosen].owner)
            if kind == "t":
                sessions.touch(session)
                known[chosen].last_used_s = now
            elif kind == "s" and session.pending is None:
                session.pending, known[chosen].busy = PendingStep(session, QUERY, StepRequest(), False), True
            elif kind == "s":
                session.pending, known[chosen].busy = None, False
                sessions.touch(session)  # as when a step starts: the wait for its batch is short
                known[chosen].last_used_s = now
            elif kind == "c":
                sessions.close(session)
                del known[chosen]
        assert len(sessions) == len(known)
        assert all(sessions.find(i, k.owner) is not None for i, k in known.items())
