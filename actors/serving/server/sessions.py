"""`SessionTable`: the open sessions with their recurrent states, and when they expire or are evicted."""

from __future__ import annotations

import secrets
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

from actors.policy.state import PolicyState
from actors.serving.messages import MessageLayout, StepQuery
from actors.serving.server.models import ServedModel
from actors.serving.server.training import TrainingEpisode
from actors.sessions.refusal import IMPORT_REQUIRED, Reason, Refusal
from actors.wire import policy_pb2

EVICT_AFTER_S = 3.0  # without a step, after which a session may be evicted when a new one needs its place


class Waiter(Protocol):
    """What waits for a step: an `asyncio.Future`, or what answers on a stream."""

    def cancelled(self) -> bool: ...
    def set_result(self, response: bytes, /) -> None: ...
    def set_exception(self, exception: Exception, /) -> None: ...


@dataclass(slots=True)
class PendingStep:
    """A step in progress, and the calls that wait for it."""

    session: Session
    query: StepQuery
    request: policy_pb2.StepRequest
    export: bool  # whether a call wants the exported state
    waiters: list[Waiter] = field(default_factory=list)
    reward: float | None = None  # of the previous step, in a training session
    closing: bool = False  # whether the session is closed after the step

    def abandoned(self) -> bool:
        """Whether nothing waits for the step any more."""
        return not self.closing and all(w.cancelled() for w in self.waiters)


@dataclass(slots=True)
class Session:
    """One open session."""

    id: str
    row: int  # of the recurrent states
    layout: MessageLayout
    seed: int
    latest: bool  # whether it always uses the newest version
    owner: str = ""  # hash of the token that opened it; "" if tokens are not used
    pinned: ServedModel | None = None  # None: the newest at its next step
    training: TrainingEpisode | None = None  # its episode, if it is a training session
    next_index: int = 0
    hazard: float = 0.0  # see `actors.policy.distribution`
    last_request: policy_pb2.StepRequest | bytes = b""  # of the last step; after an import, the digest of it
    last_response: bytes = b""  # serialized StepResponse without the exported state
    pending: PendingStep | None = None
    last_used_s: float = 0.0
    # Maintained by the batcher:
    last_answered_s: float = float("-inf")
    quick: bool = True  # whether its last step came soon after the answer before it
    expected_s: float = float("-inf")  # its last answer while it was quick


class SessionTable:
    """The open sessions: at most one per row of `states`, and at most `max_per_owner()` per owner.

    A session expires after `ttl_s` without a step. It is idle after `EVICT_AFTER_S` without a step, unless a step is in
    progress.

    If an owner at its limit opens a session, the least recently used of its idle sessions is evicted. If all rows are
    taken, it is the least recently used of the idle sessions of this owner and of owners with more sessions. If no
    session can be evicted, the new one is refused.
    """

    def __init__(
        self,
        states: PolicyState,
        ttl_s: float,
        clock: Callable[[], float],
        on_close: Callable[[Session], None],
        max_per_owner: Callable[[], int | None],  # None: no limit; owner "" never has one
    ) -> None:
        self.states, self.ttl_s = states, ttl_s
        self.evicted = 0  # so far
        self._free_rows = list(range(states.h.shape[1]))
        self._clock, self._on_close, self._max_per_owner = clock, on_close, max_per_owner
        self._sessions: OrderedDict[str, Session] = OrderedDict()  # least recently used first
        self._counts: Counter[str] = Counter()  # open sessions by owner

    def __len__(self) -> int:
        return len(self._sessions)

    def __iter__(self) -> Iterator[Session]:
        """Iterate over a copy."""
        return iter(list(self._sessions.values()))

    def find(self, session_id: str, owner: str) -> Session | None:
        """Return the session, or None if this owner has no such session open."""
        session = self._sessions.get(session_id)
        return session if session is not None and session.owner == owner else None

    def get(self, session_id: str, owner: str) -> Session:
        """Return this owner's session. Raises `Refusal`, also for that of another owner."""
        session = self.find(session_id, owner)
        if session is None:
            raise Refusal(
                Reason.SESSION_UNKNOWN,
                f"unknown session, or one that expired after {self.ttl_s:g} s without a step or was evicted: open it "
                "again with its exported state, or open a new session",
                **{IMPORT_REQUIRED: "true"},
            )
        return session

    def open(
        self, layout: MessageLayout, seed: int, latest: bool = False, session_id: str | None = None, owner: str = ""
    ) -> Session:
        """Open a session. Raises `Refusal` if there is no room and no session can be evicted."""
        self._make_room(owner)
        row = self._free_rows.pop()
        for t in self.states:
            t[:, row] = 0.0
        session = Session(session_id or secrets.token_urlsafe(18), row, layout, seed, latest, owner)
        session.last_used_s = self._clock()
        self._sessions[session.id] = session
        self._counts[owner] += 1
        return session

    def touch(self, session: Session) -> None:
        """Mark the session as just used."""
        session.last_used_s = self._clock()
        self._sessions.move_to_end(session.id)

    def close(self, session: Session) -> None:
        """Remove the session and free its row."""
        del self._sessions[session.id]
        self._counts[session.owner] -= 1
        self._free_rows.append(session.row)
        self._on_close(session)

    def expire(self) -> int:
        """Close the sessions that have expired, and return their number."""
        now, count = self._clock(), 0
        while self._sessions:
            session = next(iter(self._sessions.values()))
            if now - session.last_used_s <= self.ttl_s:
                break
            if session.pending is not None:
                self.touch(session)
            else:
                self.close(session)
                count += 1
        return count

    def _make_room(self, owner: str) -> None:
        """Make room for one session of `owner`. Raises `Refusal`."""
        count, limit = self._counts[owner], self._max_per_owner()
        at_limit = bool(owner) and limit is not None and count >= limit
        if not at_limit:
            if not self._free_rows:
                self.expire()
            if self._free_rows:
                return
        now = self._clock()
        for session in self._sessions.values():
            if now - session.last_used_s < EVICT_AFTER_S:
                break
            larger = not at_limit and self._counts[session.owner] > count
            if session.pending is None and (session.owner == owner or larger):
                self.close(session)
                self.evicted += 1
                return
        if at_limit:
            raise Refusal(
                Reason.SESSIONS_FULL,
                f"{count} sessions with this token are open, its limit is {limit}: close some, or try again later",
            )
        raise Refusal(
            Reason.SESSIONS_FULL,
            f"{len(self)} sessions are open, the limit of this server: close some, or try again later",
        )
