"""`EpisodeCollector`: who may open a training session, the checks of its steps, and the end of its episode."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from actors.serving.account import Account
from actors.serving.external import ExternalConfig
from actors.serving.messages import StepQuery, final_query, make_step_batch
from actors.serving.server.batcher import Batcher
from actors.serving.server.credentials import TRAIN_SCOPE, TokenFile
from actors.serving.server.models import ServedModel
from actors.serving.server.sessions import Session, SessionTable
from actors.serving.server.training import EpisodeSink, TrainingEpisode, final_step
from actors.sessions.refusal import RETRY_S, Reason, Refusal
from actors.types.spaces import Spaces
from actors.version import installed
from actors.wire import policy_pb2


class EpisodeCollector:
    """Collects the episodes of training sessions and gives them to `sink`."""

    def __init__(self, config: ExternalConfig, sink: EpisodeSink, tokens: TokenFile | None) -> None:
        self.config, self._sink, self._tokens = config, sink, tokens

    def begin(self, session: Session) -> TrainingEpisode:
        """Return the episode of a session that begins."""
        return TrainingEpisode(session.seed, session.layout.spaces.hash, self.config, self._sink, session.owner)

    def accounts(self) -> Sequence[Account]:
        """Return the accounts of all tokens so far."""
        return self._sink.accounts()

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

    def end_unpermitted(self, sessions: SessionTable) -> None:
        """End the training sessions of valid tokens that may no longer train, and drop what they have not shipped."""
        if self._tokens is None:
            return
        for session in sessions:
            if session.training is not None and session.pending is None and self._tokens.only_serves(session.owner):
                session.training.abandon(drop=True)
                sessions.close(session)

    def require_room(self) -> None:
        """Raise `Refusal` while the queue takes no episodes."""
        retry_s = self._sink.retry_s()
        if retry_s:
            raise Refusal(
                Reason.QUEUE_FULL,
                f"the learner is behind and takes no more episodes: try again after {retry_s:g} s",
                **{RETRY_S: retry_s},
            )

    def outdated(self, session: Session, newest: ServedModel) -> bool:
        """Whether a session is pinned to weights whose steps the learner would drop or the queue would refuse."""
        model = session.pinned
        if model is None:
            return False
        return model.generation != newest.generation or newest.version - model.version > self._sink.max_lag

    def check_step(
        self,
        episode: TrainingEpisode,
        index: int,
        reward: float | None,
        query: StepQuery,
        request: policy_pb2.StepRequest,
    ) -> None:
        """Check a new step of a training session, and make it sample. Raises `Refusal`."""
        if episode.ended is not None:
            raise Refusal(Reason.EPISODE_ENDED, "the episode has ended: open another session, or reset this one")
        if request.HasField("deterministic") and request.deterministic:
            raise Refusal(Reason.NOT_TRAINING, "a training session samples its actions: leave out `deterministic`")
        episode.check_reward(index, reward)
        episode.check_obs(np.frombuffer(query.obs, "<f4"))
        self.require_room()
        query.deterministic = False

    def end(
        self,
        session: Session,
        request: policy_pb2.EndEpisodeRequest,
        batcher: Batcher,
        model: ServedModel,
        newest_version: int,
    ) -> bytes:
        """Ship the rest of the session's episode. Returns a serialized `EndEpisodeResponse`. Raises `Refusal`."""
        episode = session.training
        assert episode is not None
        if request.step_index != session.next_index or not session.next_index:
            raise Refusal(
                Reason.STEP_GAP,
                f"the episode cannot end after {request.step_index} steps: it has {session.next_index}, and needs one",
                next_step_index=session.next_index,
            )
        if request.terminated == request.truncated:
            raise Refusal(Reason.OUT_OF_RANGE, "exactly one of terminated and truncated must be true")
        if request.truncated and not request.HasField("obs"):
            raise Refusal(Reason.WRONG_SHAPE, "obs is missing: a truncated episode needs its final observation")
        episode.check_reward(session.next_index, request.reward if request.HasField("reward") else None)
        query = final_query(request, session.layout)
        episode.check_obs(np.frombuffer(query.obs, "<f4"))
        batch = make_step_batch([query], session.layout)
        if batch.refusals[0] is not None and not request.terminated:
            raise batch.refusals[0]
        if not np.isfinite(batch.obs).all():
            raise Refusal(Reason.NOT_FINITE, "obs contains NaN or Inf")
        bootstrap = 0.0 if request.terminated else batcher.bootstrap_value(session, model, query)
        account = to_message(self._sink.account(session.owner))
        lag = newest_version - episode.oldest_version
        final = final_step(batch.obs, batch.blueprint_indices, batch.masks, request.terminated)
        episode.end(request.reward, final, bootstrap)
        return policy_pb2.EndEpisodeResponse(
            episode_return=episode.total_reward,
            steps=episode.steps,
            segments=episode.segments,
            policy_lag=lag,
            account=account,
        ).SerializeToString()


def to_message(account: Account) -> policy_pb2.TrainingAccount:
    """Return an account as a message."""
    return policy_pb2.TrainingAccount(**vars(account))
