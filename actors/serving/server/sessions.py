"""`SessionTable`: the open sessions, when they expire or are evicted, and the table of their recurrent states; and
`VersionPins`: the versions of the weights that they use."""

from __future__ import annotations

import asyncio
import secrets
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch

from actors.policy.state import PolicyState, StateSizes
from actors.serving.messages import MessageLayout
from actors.serving.server.models import ModelVersions, ServedModel
from actors.serving.server.training import TrainingEpisode
from actors.sessions.refusal import IMPORT_REQUIRED, Reason, Refusal

MAX_CLOSED_IDS = 10_000  # ids of expired and evicted sessions that are remembered


@dataclass(slots=True)
class PendingStep:
    """A step in progress, and the calls that wait for it."""

    step_index: int
    digest: bytes
    export: bool  # whether a call wants the exported state
    waiters: list[asyncio.Future[bytes]] = field(default_factory=list)
    reward: float | None = None  # of the previous step, in a training session
    record: bool = False  # whether the answer says what an episode records of the step
    followers: list[Callable[[], object]] = field(default_factory=list)
    """What to do once the step has completed or failed, before any other request is handled."""

    def abandoned(self) -> bool:
        """Whether nothing waits for the step any more."""
        return not self.followers and all(w.cancelled() for w in self.waiters)


@dataclass(slots=True)
class Session:
    """One open session."""

    id: str
    row: int  # index into the state table
    layout: MessageLayout
    seed: int
    latest: bool  # whether it always uses the newest version
    owner: str = ""  # hash of the token that opened it; "" if tokens are not used
    pinned: ServedModel | None = None  # None: the newest at its next step; set by `VersionPins`
    training: TrainingEpisode | None = None  # its episode, if it is a training session
    next_index: int = 0
    hazard: float = 0.0  # see `actors.policy.distribution`
    last_digest: bytes = b""  # of the last step's request
    last_response: bytes = b""  # serialized StepResponse without the exported state
    pending: PendingStep | None = None
    last_used_s: float = 0.0
    # Maintained by the batcher:
    last_answered_s: float = float("-inf")
    quick: bool = True  # whether its last step came soon after the answer before it
    expected_s: float = float("-inf")  # its last answer while it was quick


class StateTable:
    """The recurrent states of all sessions in one preallocated `PolicyState`."""

    def __init__(self, sizes: StateSizes, count: int, device: torch.device) -> None:
        self.state = PolicyState.zeros(sizes, count, device)
        self._free = list(range(count - 1, -1, -1))

    @property
    def num_free(self) -> int:
        """Number of free rows."""
        return len(self._free)

    def allocate(self) -> int:
        """Return a free row, set to zero. There must be one: see `num_free`."""
        row = self._free.pop()
        for t in self.state:
            t[:, row] = 0.0
        return row

    def free(self, row: int) -> None:
        """Make a row available again."""
        self._free.append(row)

    def write(self, row: int, state: PolicyState) -> None:
        """Copy the only row of `state` to `row`."""
        for t, new in zip(self.state, state, strict=True):
            t[:, row] = new[:, 0]

    @property
    def bytes_per_row(self) -> int:
        """Size of the recurrent state of one session."""
        return sum(t.element_size() * t.shape[0] * t.shape[2] for t in self.state)


class SessionTable:
    """The open sessions: at most one per row of `state_table`, and at most `max_per_owner()` per owner.

    A session expires after `ttl_s` without a step. It is idle after `evict_after_s` without a step, unless a step is in
    progress.

    If an owner at its limit opens a session, the least recently used of its sessions is evicted, provided that it is
    idle. If all rows are taken, the same applies, first to this owner and then to owners with more sessions, largest
    first. If no session can be evicted, the new one is refused.
    """

    def __init__(
        self,
        state_table: StateTable,
        ttl_s: float,
        clock: Callable[[], float],
        on_close: Callable[[Session], None],
        max_per_owner: Callable[[], int | None],  # None: no limit; owner "" never has one
        evict_after_s: float,
    ) -> None:
        self.state_table, self.ttl_s, self.evict_after_s = state_table, ttl_s, evict_after_s
        self.evicted = 0  # so far
        self._clock, self._on_close, self._max_per_owner = clock, on_close, max_per_owner
        # Least recently used first, in both.
        self._sessions: OrderedDict[str, Session] = OrderedDict()
        self._by_owner: dict[str, OrderedDict[str, Session]] = {}
        self._closed_ids: OrderedDict[str, str] = OrderedDict()  # and their owners

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
        """Return this owner's session. Raises `Refusal`, which tells an expired or evicted session from an unknown one,
        such as that of another owner."""
        session = self.find(session_id, owner)
        if session is not None:
            return session
        required = {IMPORT_REQUIRED: "true"}
        if self._closed_ids.get(session_id) == owner:
            raise Refusal(
                Reason.SESSION_EXPIRED,
                f"the session expired after {self.ttl_s:g} s without a step, or was evicted while idle: open it again "
                "with its exported state",
                **required,
                session_ttl_s=self.ttl_s,
            )
        raise Refusal(
            Reason.SESSION_UNKNOWN,
            "unknown session: open it again with its exported state, or open a new session",
            **required,
        )

    def open(
        self,
        layout: MessageLayout,
        seed: int,
        latest: bool = False,
        session_id: str | None = None,
        owner: str = "",
    ) -> Session:
        """Open a session. Raises `Refusal` if there is no room and no session can be evicted."""
        self._make_room(owner)
        session = Session(
            session_id or secrets.token_urlsafe(18), self.state_table.allocate(), layout, seed, latest, owner
        )
        session.last_used_s = self._clock()
        self._sessions[session.id] = session
        self._by_owner.setdefault(owner, OrderedDict())[session.id] = session
        self._closed_ids.pop(session.id, None)
        return session

    def touch(self, session: Session) -> None:
        """Mark the session as just used."""
        session.last_used_s = self._clock()
        self._by_owner[session.owner].move_to_end(session.id)
        self._sessions.move_to_end(session.id)

    def close(self, session: Session) -> None:
        """Remove the session and free its row."""
        del self._sessions[session.id]
        owned = self._by_owner[session.owner]
        del owned[session.id]
        if not owned:
            del self._by_owner[session.owner]
        self.state_table.free(session.row)
        self._on_close(session)

    def close_all(self) -> None:
        """Close every session."""
        for session in self:
            self.close(session)

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
                self._record_closed(session)
                count += 1
        return count

    def _make_room(self, owner: str) -> None:
        """Make room for one session of `owner`. Raises `Refusal`."""
        count, limit = self._count(owner), self._max_per_owner()
        if owner and limit is not None and count >= limit:
            if self._evict(owner):
                return
            raise Refusal(
                Reason.SESSIONS_FULL,
                f"{count} sessions with this token are open, its limit is {limit}: close some, or try again later",
            )
        if not self.state_table.num_free:
            self.expire()
        if self.state_table.num_free:
            return
        larger = sorted((o for o, held in self._by_owner.items() if len(held) > count), key=self._count, reverse=True)
        if not any(self._evict(candidate) for candidate in (owner, *larger)):
            raise Refusal(
                Reason.SESSIONS_FULL,
                f"{len(self)} sessions are open, the limit of this server: close some, or try again later",
            )

    def _count(self, owner: str) -> int:
        return len(self._by_owner.get(owner, ()))

    def _evict(self, owner: str) -> bool:
        """Close this owner's least recently used session if it is idle. Return whether one was closed."""
        now = self._clock()
        while owned := self._by_owner.get(owner):
            session = next(iter(owned.values()))
            if now - session.last_used_s < self.evict_after_s:
                return False
            if session.pending is None:
                self.close(session)
                self._record_closed(session)
                self.evicted += 1
                return True
            self.touch(session)
        return False

    def _record_closed(self, session: Session) -> None:
        self._closed_ids[session.id] = session.owner
        if len(self._closed_ids) > MAX_CLOSED_IDS:
            self._closed_ids.popitem(last=False)


class VersionPins:
    """The versions that sessions are pinned to.

    A session keeps the version with which it began, unless it is `latest`. At most `max_versions` are held, the newest
    included. Beyond that the oldest one is released: its sessions move to the version that is the newest at their next
    step, and `on_move` is called for each.
    """

    def __init__(self, models: ModelVersions, max_versions: int, on_move: Callable[[], None]) -> None:
        self._models, self._max_versions, self._on_move = models, max_versions, on_move
        self._sessions: dict[ServedModel, dict[str, Session]] = {}  # by version and id

    def pin(self, session: Session, model: ServedModel | None = None) -> None:
        """Pin a session that is not pinned to `model`, by default the newest version, unless it is `latest`."""
        if not session.latest:
            session.pinned = model or self._models.newest
            self._sessions.setdefault(session.pinned, {})[session.id] = session

    def unpin(self, session: Session) -> None:
        """Undo `pin`, if the session is pinned."""
        model, session.pinned = session.pinned, None
        if model is None:
            return
        del self._sessions[model][session.id]
        if not self._sessions[model]:
            del self._sessions[model]
            self._models.release(model)

    def move(self, session: Session) -> None:
        """Have a session use the version that is the newest at its next step."""
        self.unpin(session)
        self._on_move()

    def adopt(self, model: ServedModel) -> None:
        """Make `model` the newest version, and release those that are not used and those beyond `max_versions`."""
        previous = self._models.newest
        self._models.adopt(model)
        if previous not in self._sessions:
            self._models.release(previous)
        for oldest in self._models.held[: -self._max_versions]:
            for session in list(self._sessions[oldest].values()):
                self.move(session)
