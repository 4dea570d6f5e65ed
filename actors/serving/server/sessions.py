"""Sessions: who they are, when they expire, and the rows that hold their memory."""

from __future__ import annotations

import asyncio
import secrets
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from actors.policy.state import PolicyState, StateSizes
from actors.serving.messages import MessageLayout
from actors.serving.refusal import IMPORT_REQUIRED, Reason, Refusal
from actors.serving.server.models import ServedModel

REMEMBERED = 10_000  # expired sessions that are still known to have existed


@dataclass(slots=True)
class Pending:
    """A step under way and all who wait for it."""

    step_index: int
    digest: bytes
    export: bool  # whether someone wants the state after it
    waiters: list[asyncio.Future[bytes]] = field(default_factory=list)

    def abandoned(self) -> bool:
        return all(w.cancelled() for w in self.waiters)


@dataclass(slots=True)
class Session:
    id: str
    row: int
    layout: MessageLayout
    seed: int
    pinned: ServedModel | None  # None: whatever is newest
    next_index: int = 0
    digest: bytes = b""  # of the last step's request
    answer: bytes = b""  # to it, serialised
    pending: Pending | None = None
    touched_s: float = 0.0
    answered_s: float = float("-inf")  # as the batcher remembers it


class Rows:
    """The memory of all sessions in one preallocated `PolicyState`."""

    def __init__(self, sizes: StateSizes, count: int, device: torch.device) -> None:
        self.state = PolicyState.zeros(sizes, count, device)
        self._free = list(range(count - 1, -1, -1))

    @property
    def free(self) -> int:
        return len(self._free)

    def take(self) -> int:
        """A row at zero."""
        row = self._free.pop()
        for t in self.state:
            t[:, row] = 0.0
        return row

    def give_back(self, row: int) -> None:
        self._free.append(row)

    def write(self, row: int, state: PolicyState) -> None:
        for t, new in zip(self.state, state, strict=True):
            t[:, row] = new[:, 0]

    @property
    def bytes_per_row(self) -> int:
        return sum(t.element_size() * t.shape[0] * t.shape[2] for t in self.state)


class Sessions:
    """At most as many as there are rows. Those without a step for `ttl_s`, or for `first_ttl_s` before their first,
    expire, the longest untouched first."""

    def __init__(
        self,
        rows: Rows,
        ttl_s: float,
        first_ttl_s: float,
        clock: Callable[[], float],
        release: Callable[[ServedModel], None],  # told of what a closed session was pinned to
    ) -> None:
        self.rows, self.ttl_s, self.first_ttl_s = rows, ttl_s, first_ttl_s
        self._clock, self._release = clock, release
        self._stepped: OrderedDict[str, Session] = OrderedDict()
        self._fresh: OrderedDict[str, Session] = OrderedDict()
        self._expired: OrderedDict[str, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._stepped) + len(self._fresh)

    def find(self, session_id: str) -> Session | None:
        return self._stepped.get(session_id) or self._fresh.get(session_id)

    def get(self, session_id: str) -> Session:
        """Raises `Refusal`, which says whether the session was known once."""
        session = self.find(session_id)
        if session is not None:
            return session
        required = {IMPORT_REQUIRED: "true"}
        if session_id in self._expired:
            raise Refusal(
                Reason.SESSION_EXPIRED,
                f"the session had no step for {self.ttl_s:g} s ({self.first_ttl_s:g} s before its first) and has "
                "expired: open it again with its exported state",
                **required,
                session_ttl_s=self.ttl_s,
            )
        raise Refusal(
            Reason.SESSION_UNKNOWN,
            "no such session here: open it again with its exported state, or a new one without",
            **required,
        )

    def open(
        self, layout: MessageLayout, seed: int, pinned: ServedModel | None, session_id: str | None = None
    ) -> Session:
        if not self.rows.free:
            self.expire()
        if not self.rows.free:
            raise Refusal(Reason.SESSIONS_FULL, f"all {len(self)} sessions are taken: close some, or come back later")
        session = Session(session_id or secrets.token_urlsafe(18), self.rows.take(), layout, seed, pinned)
        session.touched_s = self._clock()
        self._fresh[session.id] = session
        self._expired.pop(session.id, None)
        return session

    def touch(self, session: Session) -> None:
        """The session takes a step, or has taken one."""
        session.touched_s = self._clock()
        if session.id in self._fresh:
            self._stepped[session.id] = self._fresh.pop(session.id)
        else:
            self._stepped.move_to_end(session.id)

    def close(self, session: Session) -> None:
        (self._stepped if session.id in self._stepped else self._fresh).pop(session.id)
        self.rows.give_back(session.row)
        if session.pinned is not None:
            self._release(session.pinned)

    def expire(self) -> int:
        """Close those whose time is over; returns how many."""
        now, count = self._clock(), 0
        for kind, ttl_s in ((self._stepped, self.ttl_s), (self._fresh, self.first_ttl_s)):
            while kind:
                session = next(iter(kind.values()))
                if now - session.touched_s <= ttl_s:
                    break
                if session.pending is not None:
                    self.touch(session)
                else:
                    self.close(session)
                    self._remember(session.id)
                    count += 1
        return count

    def _remember(self, session_id: str) -> None:
        self._expired[session_id] = None
        if len(self._expired) > REMEMBERED:
            self._expired.popitem(last=False)
