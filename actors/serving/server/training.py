"""`TrainingEpisode`: the episode of a training session, from its steps and their rewards."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from actors.codec import pack_array
from actors.policy.network import ActOutput
from actors.policy.state import PolicyState
from actors.rollout.recorder import Recorder, Segments
from actors.serving.messages import MessageLayout, StepBatch, StepQuery, final_query, make_step_batch
from actors.serving.server.collector import Account, EpisodeCollector
from actors.serving.server.models import ServedModel
from actors.sessions.refusal import Reason, Refusal
from actors.types.episode import EndReason
from actors.types.fleet_step import FleetStep
from actors.wire import policy_pb2

ENV_ID = "external"
MAX_REWARD = MAX_OBSERVATION = 1e6  # in magnitude; what is larger is refused


class StepRecord(NamedTuple):
    """What an episode records of a batch of N steps."""

    current: FleetStep  # observations and masks [N, ...]
    decision: ActOutput
    before: PolicyState  # the recurrent states before the steps
    model: ServedModel


def recorded_step(step: StepRecord, row: int) -> policy_pb2.RecordedStep:
    """Return one row of a record as a message."""
    model, decision = step.model, step.decision
    return policy_pb2.RecordedStep(
        version=model.recorded_version,
        generation=model.generation,
        state_stride=model.state_stride,
        baseline_value=decision.baseline_values[row],
        bootstrap_value=decision.bootstrap_values[row],
        mask=pack_array(decision.masks[row]),
    )


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
        if not self._recorder.steps[0]:  # there was no step with a reward
            self._recorder.free(0)
            return
        self._ship(step.current, row, float(step.decision.bootstrap_values[row]))

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
