"""Training sessions: who may open one (`EpisodeCollector`), its episode (`TrainingEpisode`), where it goes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np

from actors.policy.network import ActOutput
from actors.policy.state import PolicyState
from actors.rollout.recorder import Recorder, Segments
from actors.serving.external import ExternalConfig
from actors.serving.messages import MessageLayout, StepBatch, StepQuery, final_query, make_step_batch
from actors.serving.server.credentials import TRAIN_SCOPE, TokenFile
from actors.serving.server.models import ServedModel
from actors.sessions.refusal import RETRY_S, Reason, Refusal
from actors.types.episode import EndReason, Episode
from actors.types.fleet_step import FleetStep
from actors.types.spaces import Spaces
from actors.version import installed
from actors.wire import policy_pb2

ENV_ID = "external"
MAX_REWARD = MAX_OBSERVATION = 1e6  # in magnitude; what is larger is refused

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


class StepRecord(NamedTuple):
    """What an episode records of a batch of N steps."""

    current: FleetStep  # observations and masks [N, ...]
    decision: ActOutput
    before: PolicyState  # the recurrent states before the steps
    model: ServedModel


class TrainingEpisode:
    """Collects the steps of one session. A step is complete when its reward is known, with the next step or at the end.

    Episodes longer than `max_segment_steps` are shipped as segments, as those of `actors.rollout.stream`. A segment
    also ends where the session moves to other weights, so that its last steps are not dropped with outdated ones.
    """

    def __init__(self, seed: int, spaces_hash: str, collector: EpisodeCollector, owner: str) -> None:
        self.collector = collector
        self.ended: tuple[bytes, bytes] | None = None  # digest of the last request, and the response to it
        self._seed, self._spaces_hash, self._owner = seed, spaces_hash, owner
        self._shipped = Segments()
        self._recorder = Recorder()  # of the current segment
        self._last: tuple[StepRecord, int] | None = None  # the last step, and its row

    @property
    def segment_full(self) -> bool:
        """Whether the reward of the last step completes a segment."""
        steps = int(self._recorder.steps[0]) if self._recorder.began(0) else 0
        return steps >= self.collector.config.max_segment_steps

    def check_step(self, index: int, reward: float | None, query: StepQuery, request: policy_pb2.StepRequest) -> None:
        """Check a new step, and make it sample. Raises `Refusal`."""
        if self.ended is not None:
            raise Refusal(Reason.EPISODE_ENDED, "the episode has ended: open another session, or reset this one")
        if request.HasField("deterministic") and request.deterministic:
            raise Refusal(Reason.NOT_TRAINING, "a training session samples its actions: leave out `deterministic`")
        self._check_reward(index, reward)
        self._check_obs(query)
        self.collector.require_room()
        query.deterministic = False

    def check_end(self, request: policy_pb2.EndEpisodeRequest, steps: int, layout: MessageLayout) -> StepBatch:
        """Check the end of the episode after `steps` steps. Returns its final observation. Raises `Refusal`."""
        if request.step_index != steps or not steps:
            raise Refusal(
                Reason.STEP_GAP,
                f"the episode cannot end after {request.step_index} steps: it has {steps}, and needs one",
                next_step_index=steps,
            )
        if request.terminated == request.truncated:
            raise Refusal(Reason.OUT_OF_RANGE, "exactly one of terminated and truncated must be true")
        if request.truncated and not request.HasField("obs"):
            raise Refusal(Reason.WRONG_SHAPE, "obs is missing: a truncated episode needs its final observation")
        self._check_reward(steps, request.reward if request.HasField("reward") else None)
        query = final_query(request, layout)
        self._check_obs(query)
        batch = make_step_batch([query], layout)
        refusal = batch.refusals[0]
        if refusal is not None and (request.truncated or refusal.reason is Reason.NOT_FINITE):
            raise refusal
        return batch

    def _check_reward(self, index: int, reward: float | None) -> None:
        """Check the reward that came with step `index`. Raises `Refusal`."""
        if (reward is None) != (index == 0):
            raise Refusal(
                Reason.REWARD_INVALID,
                f"step {index} comes with {'no reward' if reward is None else 'a reward'}: send the reward of the "
                "previous step with every step but the first",
            )
        if reward is None or (math.isfinite(reward) and abs(reward) <= MAX_REWARD):
            return
        self.collector.sink.account(self._owner).refused += 1
        raise Refusal(
            Reason.REWARD_INVALID,
            f"the reward is {reward:g}: it must be finite and at most {MAX_REWARD:g} in magnitude",
        )

    def _check_obs(self, query: StepQuery) -> None:
        """Check an observation. NaN is left to the checks of every step. Raises `Refusal`."""
        obs = np.frombuffer(query.obs, "<f4")
        if (np.abs(obs) > MAX_OBSERVATION).any():
            self.collector.sink.account(self._owner).refused += 1
            raise Refusal(
                Reason.OUT_OF_RANGE,
                f"obs holds {float(np.abs(obs).max()):g}: entries must be at most {MAX_OBSERVATION:g} in magnitude",
            )

    def record(self, step: StepRecord, row: int, reward: float | None) -> None:
        """Record a step, and first the reward of the one before it, which may complete a segment."""
        if self._recorder.began(0):
            assert reward is not None
            assert self._last is not None
            full = self.segment_full or step.model is not self._last[0].model
            self._recorder.pay(0, reward)
            if full:
                self._ship(step.current, row, float(step.decision.bootstrap_values[row]))
        if not self._recorder.began(0):
            model, carried = step.model, self._shipped.carried
            self._recorder.begin(
                0, self._seed, ENV_ID, step.before.row(row), model.generation, model.state_stride, carried
            )
        self._recorder.record(0, step.current, step.decision, step.before, step.model.version, row)
        self._last = step, row

    def end(
        self, request: policy_pb2.EndEpisodeRequest, final: StepBatch, bootstrap_value: float, newest_version: int
    ) -> bytes:
        """Ship the last segment, which led to `final`. Returns a serialized `EndEpisodeResponse`."""
        account = Account()
        account.CopyFrom(self.collector.sink.account(self._owner))
        lag = newest_version - int(self._recorder.recorded("policy_version").min())
        self._recorder.pay(0, request.reward)
        self._ship(as_fleet_step(final, True, request.terminated), 0, bootstrap_value)
        return policy_pb2.EndEpisodeResponse(
            episode_return=self._shipped.total_reward,
            steps=self._shipped.steps,
            segments=self._shipped.number,
            policy_lag=lag,
            account=account,
        ).SerializeToString()

    def abandon(self, drop: bool = False) -> None:
        """Give up an episode whose client disappeared. The reward of its last step is unknown, so the episode is cut
        before that step and bootstrapped with the value there; or the segment is dropped, by `disconnected` or `drop`.
        """
        if self.ended is not None or not self._recorder.began(0) or self._last is None:
            return
        account = self.collector.sink.account(self._owner)
        step, row = self._last
        if drop or self.collector.config.disconnected == "drop":
            account.dropped_sessions += 1
            self._recorder.free(0)
            return
        account.cut_sessions += 1
        self._recorder.drop_last()
        if self._recorder.steps[0]:
            self._ship(step.current, row, float(step.decision.bootstrap_values[row]))
        else:  # there was no step with a reward
            self._recorder.free(0)

    def _ship(self, final: FleetStep, row: int, bootstrap_value: float) -> None:
        segment = self._recorder.episode(0, final, bootstrap_value, ENV_ID, self._spaces_hash, row)
        self._recorder.free(0)
        self._shipped.add(segment, 0 if self._last is None else self._last[0].model.burn_in)
        self.collector.sink.account(self._owner).steps += len(segment)
        self.collector.sink.add(self._owner, segment)


def as_fleet_step(batch: StepBatch, ended: bool = False, terminated: bool = False) -> FleetStep:
    """Return what was observed in N sessions, of which none or all ended, as a `FleetStep`."""
    n = len(batch.obs)
    ends = np.full(n, terminated), np.full(n, ended and not terminated)
    reasons = (EndReason.ENVIRONMENT if ended else None,) * n
    return FleetStep(
        batch.obs, batch.blueprint_indices, batch.masks, np.zeros(n, np.float32), *ends, reasons, ({},) * n
    )
