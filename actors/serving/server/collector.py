"""`EpisodeCollector`: where the episodes of training sessions go, who may open one, and when."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from actors.serving.external import ExternalConfig
from actors.serving.server.credentials import TRAIN_SCOPE, TokenFile
from actors.serving.server.models import ServedModel
from actors.sessions.refusal import RETRY_S, Reason, Refusal
from actors.types.episode import Episode
from actors.types.spaces import Spaces
from actors.version import installed
from actors.wire import policy_pb2

Account = policy_pb2.TrainingAccount
"""Totals of one token since the start of this server."""


class EpisodeSink(Protocol):
    """Takes complete episodes and segments, and ships each one once. Called from the server's event loop."""

    max_lag: int
    """Versions that the weights of an episode may be older than the newest; the learner drops others."""

    def account(self, owner: str) -> Account:
        """Return the account of a token, by its hash; "" if tokens are not used."""
        ...

    def accounts(self) -> Sequence[Account]:
        """Return the accounts of all tokens so far."""
        ...

    def add(self, owner: str, episode: Episode) -> None:
        """Take an episode, whose id is not set yet. It is kept also if there is no room."""
        ...

    def retry_s(self) -> float:
        """Return 0 if there is room for episodes, or else the seconds after which clients should try again."""
        ...


class EpisodeCollector:
    """Gives the episodes of training sessions to `sink`."""

    def __init__(self, config: ExternalConfig, sink: EpisodeSink, tokens: TokenFile | None) -> None:
        self.config, self.sink, self._tokens = config, sink, tokens

    def require_open(self, request: policy_pb2.OpenSessionRequest, owner: str, spaces: Spaces) -> None:
        """Raise `Refusal` unless this request may open a training session now, in a run that learns from `spaces`."""
        if request.exported_state:
            raise Refusal(Reason.STATE_INVALID, "a training session cannot be imported: open a new one")
        if request.spaces_hash != spaces.hash:
            raise Refusal(
                Reason.SPACES_MISMATCH,
                f"this run learns from spaces {spaces.hash} with {spaces.slots} slots, not from {request.spaces_hash}: "
                "play in an environment with the same spaces, or open the session without `train` (server: "
                f"{installed()})",
            )
        self.require_scope(owner)
        self.require_room()

    def require_scope(self, owner: str) -> None:
        """Raise `Refusal` unless this owner's token may train. Without tokens, every client may."""
        if self._tokens is not None and not self._tokens.may_train(owner):
            raise Refusal(
                Reason.NOT_PERMITTED,
                f"this token may not train: write `{TRAIN_SCOPE}` behind it in the token file, or open the session "
                "without `train`",
            )

    def lost_scope(self, owner: str) -> bool:
        """Whether this owner's token is valid, but may no longer train."""
        return self._tokens is not None and self._tokens.only_serves(owner)

    def require_room(self) -> None:
        """Raise `Refusal` while the queue takes no episodes."""
        retry_s = self.sink.retry_s()
        if retry_s:
            raise Refusal(
                Reason.QUEUE_FULL,
                f"the learner is behind and takes no more episodes: try again after {retry_s:g} s",
                **{RETRY_S: retry_s},
            )

    def outdated(self, model: ServedModel, newest: ServedModel) -> bool:
        """Whether the learner would drop, or the queue refuse, the steps of these weights."""
        return model.generation != newest.generation or newest.version - model.version > self.sink.max_lag
