"""Sessions: who they are, when they expire or give way, and the rows that hold their memory."""

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

REMEMBERED = 10_000  # sessions that expired or gave way and are still known to have existed


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
    owner: str = ""  # hash of the token that opened it, "" without tokens
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
    """At most as many as there are rows, and `share` of them for one owner.

    Sessions without a step for `ttl_s`, or for `first_ttl_s` before their first, expire, the longest untouched first.
    Where a new session has no room, the least recently used idle one gives way: of the same owner, and of one who holds
    more only where all rows are taken. Idle means: without a step for `evict_after_s`, and none under way.
    """

    def __init__(
        self,
        rows: Rows,
        ttl_s: float,
        first_ttl_s: float,
        clock: Callable[[], float],
        release: Callable[[ServedModel], None],  # told of what a closed session was pinned to
        share: int,
        evict_after_s: float,
    ) -> None:
        self.rows, self.ttl_s, self.first_ttl_s = rows, ttl_s, first_ttl_s
        self.share, self.evict_after_s = share, evict_after_s
        self.evicted = 0  # so far
        self._clock, self._release = clock, release
        # The longest untouched first, in all three.
        self._stepped: OrderedDict[str, Session] = OrderedDict()
        self._fresh: OrderedDict[str, Session] = OrderedDict()
        self._owned: dict[str, OrderedDict[str, Session]] = {}
        self._gone: OrderedDict[str, None] = OrderedDict()

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
        if session_id in self._gone:
            raise Refusal(
                Reason.SESSION_EXPIRED,
                f"the session had no step for {self.ttl_s:g} s ({self.first_ttl_s:g} s before its first) and has "
                "expired, or was idle and gave way to a new one: open it again with its exported state",
                **required,
                session_ttl_s=self.ttl_s,
            )
        raise Refusal(
            Reason.SESSION_UNKNOWN,
            "no such session here: open it again with its exported state, or a new one without",
            **required,
        )

    def open(
        self,
        layout: MessageLayout,
        seed: int,
        pinned: ServedModel | None,
        session_id: str | None = None,
        owner: str = "",
    ) -> Session:
        """Raises `Refusal` where there is no room and no session gives way."""
        self._make_room(owner)
        session = Session(session_id or secrets.token_urlsafe(18), self.rows.take(), layout, seed, pinned, owner)
        session.touched_s = self._clock()
        self._fresh[session.id] = session
        self._owned.setdefault(owner, OrderedDict())[session.id] = session
        self._gone.pop(session.id, None)
        return session

    def touch(self, session: Session) -> None:
        """The session takes a step, or has taken one."""
        session.touched_s = self._clock()
        self._owned[session.owner].move_to_end(session.id)
        if session.id in self._fresh:
            self._stepped[session.id] = self._fresh.pop(session.id)
        else:
            self._stepped.move_to_end(session.id)

    def close(self, session: Session) -> None:
        (self._stepped if session.id in self._stepped else self._fresh).pop(session.id)
        owned = self._owned[session.owner]
        del owned[session.id]
        if not owned:
            del self._owned[session.owner]
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

    def _make_room(self, owner: str) -> None:
        """For one session. Raises `Refusal`."""
        own = self._count(owner)
        if owner and own >= self.share:
            if self._evict(owner):
                return
            raise Refusal(
                Reason.SESSIONS_FULL,
                f"all {self.share} sessions that one token may hold are in use: close some, or come back later",
            )
        if not self.rows.free:
            self.expire()
        if self.rows.free:
            return
        richer = sorted((o for o, held in self._owned.items() if len(held) > own), key=self._count, reverse=True)
        if not any(self._evict(holder) for holder in (owner, *richer)):
            raise Refusal(Reason.SESSIONS_FULL, f"all {len(self)} sessions are in use: close some, or come back later")

    def _count(self, owner: str) -> int:
        return len(self._owned.get(owner, ()))

    def _evict(self, owner: str) -> bool:
        """Close this owner's least recently used session if it is idle."""
        now = self._clock()
        while owned := self._owned.get(owner):
            session = next(iter(owned.values()))
            if now - session.touched_s < self.evict_after_s:
                return False
            if session.pending is None:
                self.close(session)
                self._remember(session.id)
                self.evicted += 1
                return True
            self.touch(session)
        return False

    def _remember(self, session_id: str) -> None:
        self._gone[session_id] = None
        if len(self._gone) > REMEMBERED:
            self._gone.popitem(last=False)
