"""`VersionPins`: which sessions use which version of the weights, and which versions are kept for them."""

from __future__ import annotations

from collections.abc import Callable

from actors.serving.server.models import ModelVersions, ServedModel
from actors.serving.server.sessions import Session


class VersionPins:
    """The versions that sessions are pinned to.

    A session keeps the version with which it began, unless it is `latest`. At most `max_versions` are held, the newest
    included, and the sessions of one owner use at most `max_per_owner()` of them. Beyond that the oldest one is
    released: its sessions move to the version that is the newest at their next step.
    """

    def __init__(
        self,
        models: ModelVersions,
        max_versions: int,
        max_per_owner: Callable[[], int | None],  # None: no limit
        on_move: Callable[[], None],  # called for each session that moves
    ) -> None:
        self._models, self._max_versions, self._max_per_owner = models, max_versions, max_per_owner
        self._on_move = on_move
        self._sessions: dict[ServedModel, dict[str, dict[str, Session]]] = {}  # by version, owner and id

    def pin(self, session: Session, model: ServedModel | None = None) -> None:
        """Pin a session that is not pinned to `model`, by default the newest version, unless it is `latest`."""
        if session.latest:
            return
        session.pinned = model or self._models.newest
        self._sessions.setdefault(session.pinned, {}).setdefault(session.owner, {})[session.id] = session
        limit = self._max_per_owner()
        used = [held for held in self._models.held if session.owner in self._sessions.get(held, ())]
        for oldest in used[:-limit] if limit is not None else ():
            self._move(oldest, session.owner)

    def unpin(self, session: Session) -> None:
        """Undo `pin`, if the session is pinned."""
        model, session.pinned = session.pinned, None
        if model is None:
            return
        owners = self._sessions[model]
        del owners[session.owner][session.id]
        if not owners[session.owner]:
            del owners[session.owner]
        if not owners:
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
            for owner in list(self._sessions[oldest]):
                self._move(oldest, owner)

    def _move(self, model: ServedModel, owner: str) -> None:
        for session in list(self._sessions[model][owner].values()):
            self.move(session)
