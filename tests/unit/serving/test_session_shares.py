"""Limits and eviction of sessions, against a simple model of the same rules."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.policy.state import StateSizes
from actors.serving.messages import MessageLayout
from actors.serving.server.sessions import PendingStep, SessionTable, StateTable
from actors.sessions.refusal import Refusal
from tests.support.examples import examples
from tests.support.learning.toy import SPACES

ROWS, SHARE, IDLE_S = 6, 2, 10.0
LAYOUT = MessageLayout(SPACES)


@dataclass
class ModelSession:
    """A session in the model."""

    owner: str
    last_used_s: float
    busy: bool = False


def eviction_candidates(known: dict[str, ModelSession], owner: str, now: float) -> set[str] | None:
    """Return the sessions of which one is evicted for a new one of `owner`: none if that must be refused, None if there
    is room."""

    def idle_of(candidate: str) -> set[str]:
        idle = {i: k for i, k in known.items() if k.owner == candidate and not k.busy}
        oldest = min(idle, key=lambda i: idle[i].last_used_s, default=None)
        return {oldest} if oldest is not None and now - idle[oldest].last_used_s >= IDLE_S else set()

    held = Counter(k.owner for k in known.values())
    if owner and held[owner] >= SHARE:
        return idle_of(owner)
    if len(known) < ROWS:
        return None
    larger = sorted({n for n in held.values() if n > held[owner]}, reverse=True)
    levels = [{owner}, *({h for h in held if held[h] == n} for n in larger)]
    found = (set().union(*(idle_of(h) for h in level)) for level in levels)
    return next((some for some in found if some), set())


OPERATIONS = st.lists(
    st.tuples(st.sampled_from("oootswc"), st.sampled_from(["", "a", "b", "c", "d"]), st.integers(0, 5)),
    min_size=10, max_size=80,
)  # fmt: skip


@given(OPERATIONS)
@settings(max_examples=examples(300), deadline=None)
def test_sessions_are_opened_and_evicted_as_in_the_model(operations: list[tuple[str, str, int]]) -> None:
    now = 1000.0
    rows = StateTable(StateSizes((1, 1), (1, 1), (0, 0), (0, 0)), ROWS, torch.device("cpu"))
    sessions = SessionTable(rows, 1e9, lambda: now, lambda _: None, lambda: SHARE, IDLE_S)
    known: dict[str, ModelSession] = {}
    for kind, owner, pick in operations:
        now += 0.001  # no two times are equal
        chosen = sorted(known, key=lambda i: known[i].last_used_s)[pick] if pick < len(known) else None
        if kind == "o":
            expected = eviction_candidates(known, owner, now)
            if expected is not None and not expected:
                with pytest.raises(Refusal, match="try again later"):
                    sessions.open(LAYOUT, 0, owner=owner)
                continue
            opened = sessions.open(LAYOUT, 0, owner=owner)
            closed = {i for i in known if sessions.find(i, known[i].owner) is None}
            assert len(closed) == (expected is not None)
            assert closed <= (expected or set())
            for session_id in closed:
                del known[session_id]
            known[opened.id] = ModelSession(owner, now)
        elif kind == "w":
            now += 7.0
        elif chosen is not None:
            session = sessions.find(chosen, known[chosen].owner)
            assert session is not None
            if kind == "t":
                sessions.touch(session)
                known[chosen].last_used_s = now
            elif kind == "s" and session.pending is None:
                session.pending, known[chosen].busy = PendingStep(0, b"", False), True
            elif kind == "s":
                session.pending, known[chosen].busy = None, False
                sessions.touch(session)  # as when a step starts: the wait for its batch is short
                known[chosen].last_used_s = now
            elif kind == "c":
                sessions.close(session)
                del known[chosen]
        assert len(sessions) == len(known) == ROWS - rows.num_free
        assert all(sessions.find(i, k.owner) is not None for i, k in known.items())
