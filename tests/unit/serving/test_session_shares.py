"""Who gets a session, and whose gives way, against a plain account of the same rules."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.policy.state import StateSizes
from actors.serving.messages import MessageLayout
from actors.serving.refusal import Refusal
from actors.serving.server.sessions import PendingStep, SessionTable, StateTable
from tests.support.toy import SPACES

ROWS, SHARE, IDLE_S = 6, 2, 10.0
LAYOUT = MessageLayout(SPACES)


@dataclass
class Known:
    """A session as the account has it."""

    owner: str
    last_used_s: float
    busy: bool = False


def victims(known: dict[str, Known], owner: str, now: float) -> set[str] | None:
    """Those of which one gives way to a new session of `owner`; empty where none can, None where none has to."""

    def idle_of(holder: str) -> set[str]:
        waiting = {i: k for i, k in known.items() if k.owner == holder and not k.busy}
        oldest = min(waiting, key=lambda i: waiting[i].last_used_s, default=None)
        return {oldest} if oldest is not None and now - waiting[oldest].last_used_s >= IDLE_S else set()

    held = Counter(k.owner for k in known.values())
    if owner and held[owner] >= SHARE:
        return idle_of(owner)
    if len(known) < ROWS:
        return None
    richer = sorted({n for n in held.values() if n > held[owner]}, reverse=True)
    levels = [{owner}, *({h for h in held if held[h] == n} for n in richer)]
    found = (set().union(*(idle_of(h) for h in level)) for level in levels)
    return next((some for some in found if some), set())


OPERATIONS = st.lists(
    st.tuples(st.sampled_from("oootswc"), st.sampled_from(["", "a", "b", "c", "d"]), st.integers(0, 5)),
    min_size=10, max_size=80,
)  # fmt: skip


@given(OPERATIONS)
@settings(max_examples=300, deadline=None)
def test_sessions_are_opened_and_give_way_as_the_rules_say(operations: list[tuple[str, str, int]]) -> None:
    now = 1000.0
    rows = StateTable(StateSizes((1, 1), (1, 1), (0, 0), (0, 0)), ROWS, torch.device("cpu"))
    sessions = SessionTable(rows, 1e9, 1e9, lambda: now, lambda _: None, lambda: SHARE, IDLE_S)
    known: dict[str, Known] = {}
    for kind, owner, pick in operations:
        now += 0.001  # no two moments are equal
        chosen = sorted(known, key=lambda i: known[i].last_used_s)[pick] if pick < len(known) else None
        if kind == "o":
            expected = victims(known, owner, now)
            if expected is not None and not expected:
                with pytest.raises(Refusal, match="try again later"):
                    sessions.open(LAYOUT, 0, None, owner=owner)
                continue
            opened = sessions.open(LAYOUT, 0, None, owner=owner)
            gone = {i for i in known if sessions.find(i) is None}
            assert len(gone) == (expected is not None)
            assert gone <= (expected or set())
            for session_id in gone:
                del known[session_id]
            known[opened.id] = Known(owner, now)
        elif kind == "w":
            now += 7.0
        elif chosen is not None:
            session = sessions.find(chosen)
            assert session is not None
            if kind == "t":
                sessions.touch(session)
                known[chosen].last_used_s = now
            elif kind == "s" and session.pending is None:
                session.pending, known[chosen].busy = PendingStep(0, b"", False), True
            elif kind == "s":
                session.pending, known[chosen].busy = None, False
                sessions.touch(session)  # as a step does at its begin, and the batcher's wait is short
                known[chosen].last_used_s = now
            elif kind == "c":
                sessions.close(session)
                del known[chosen]
        assert len(sessions) == len(known) == ROWS - rows.num_free
        assert all(sessions.find(i) is not None for i in known)
