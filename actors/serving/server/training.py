"""`TrainingEpisode`: the episode of a training session, from its steps and their rewards; and where episodes go."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from actors.policy.network import ActOutput
from actors.policy.state import PolicyState
from actors.rollout.recorder import Recorder
from actors.serving.account import Account
from actors.serving.external import ExternalConfig
from actors.serving.messages import pack_mask
from actors.serving.server.models import ServedModel
from actors.sessions.refusal import Reason, Refusal
from actors.types.actions import ActionMasks
from actors.types.episode import CarriedSteps, EndReason, Episode
from actors.types.fleet_step import FleetStep
from actors.wire import policy_pb2

ENV_ID = "external"
MAX_REWARD = MAX_OBSERVATION = 1e6  # in magnitude; what is larger is refused


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
        mask=pack_mask(decision.masks[row]),
    )


@dataclass(frozen=True)
class Ended:
    """The end of an episode: the request's digest and the response to it, for repeated requests."""

    digest: bytes
    response: bytes


class TrainingEpisode:
    """Collects the steps of one session. A step is complete when its reward is known, with the next step or at the end.

    Episodes longer than `max_segment_steps` are shipped as segments, as those of `actors.rollout.stream`. A segment
    also ends where the session moves to other weights, so that its last steps are not dropped with outdated ones; with
    `weights: step`, only where these are of another generation.
    """

    def __init__(self, seed: int, spaces_hash: str, config: ExternalConfig, sink: EpisodeSink, owner: str) -> None:
        self.seed, self.config, self.sink, self.owner = seed, config, sink, owner
        self.ended: Ended | None = None
        self.segments = self.steps = 0  # shipped
        self.total_reward = 0.0  # of shipped segments
        self._spaces_hash = spaces_hash
        self._recorder = Recorder()  # of the current segment
        self._carried: CarriedSteps | None = None  # from the segment before
        self._last: tuple[StepRecord, int] | None = None  # the last step, and its row

    @property
    def segment_full(self) -> bool:
        """Whether the reward of the last step completes a segment."""
        return self._recorder.began(0) and int(self._recorder.steps[0]) >= self.config.max_segment_steps

    def check_reward(self, index: int, reward: float | None) -> None:
        """Check the reward that came with step `index`. Raises `Refusal`."""
        if (reward is None) != (index == 0):
            raise Refusal(
                Reason.REWARD_INVALID,
                f"step {index} comes with {'no reward' if reward is None else 'a reward'}: send the reward of the "
                "previous step with every step but the first",
            )
        if reward is None or (math.isfinite(reward) and abs(reward) <= MAX_REWARD):
            return
        self.sink.account(self.owner).refused += 1
        raise Refusal(
            Reason.REWARD_INVALID,
            f"the reward is {reward:g}: it must be finite and at most {MAX_REWARD:g} in magnitude",
        )

    def check_obs(self, obs: NDArray[np.float32]) -> None:
        """Check an observation. NaN is left to the checks of every step. Raises `Refusal`."""
        if (np.abs(obs) > MAX_OBSERVATION).any():
            self.sink.account(self.owner).refused += 1
            raise Refusal(
                Reason.OUT_OF_RANGE,
                f"obs holds {float(np.abs(obs).max()):g}: entries must be at most {MAX_OBSERVATION:g} in magnitude",
            )

    def record(self, step: StepRecord, row: int, reward: float | None) -> None:
        """Record a step, and first the reward of the one before it, which may complete a segment."""
        if self._recorder.began(0):
            assert reward is not None
            full = self.segment_full or self._moves_to(step.model)
            self._recorder.pay(0, reward)
            if full:
                self._ship(step.current, row, float(step.decision.bootstrap_values[row]))
        if not self._recorder.began(0):
            model = step.model
            self._recorder.begin(
                0, self.seed, ENV_ID, step.before.row(row), model.generation, model.state_stride, self._carried
            )
        self._recorder.record(0, step.current, step.decision, step.before, step.model.version, row)
        self._last = step, row

    def end(self, reward: float, final: FleetStep, bootstrap_value: float) -> None:
        """Ship the last segment, whose last step was paid `reward` and led to `final`."""
        self._recorder.pay(0, reward)
        self._ship(final, 0, bootstrap_value)

    def _moves_to(self, model: ServedModel) -> bool:
        assert self._last is not None
        previous = self._last[0].model
        return model is not previous and (self.config.weights == "episode" or model.generation != previous.generation)

    def abandon(self, drop: bool = False) -> None:
        """Give up an episode whose client disappeared. The reward of its last step is unknown, so the episode is cut
        before that step and bootstrapped with the value there; or the segment is dropped, by `disconnected` or `drop`.
        """
        if self.ended is not None or not self._recorder.began(0) or self._last is None:
            return
        account = self.sink.account(self.owner)
        step, row = self._last
        if drop or self.config.disconnected == "drop":
            account.dropped_sessions += 1
            self._recorder.free(0)
            return
        account.cut_sessions += 1
        self._recorder.drop_last()
        if not self._recorder.steps[0]:  # there was no step with a reward
            self._recorder.free(0)
            return
        self._ship(step.current, row, float(step.decision.bootstrap_values[row]))

    @property
    def oldest_version(self) -> int:
        """Oldest version that acted in the current segment."""
        return int(self._recorder.recorded("policy_version").min())

    def _ship(self, final: FleetStep, row: int, bootstrap_value: float) -> None:
        segment = self._recorder.episode(0, final, bootstrap_value, ENV_ID, self._spaces_hash, row)
        self._recorder.free(0)
        self.steps += len(segment)
        self.total_reward += segment.undiscounted_return
        segment.telemetry.update(segment=self.segments, episode_steps=self.steps, episode_return=self.total_reward)
        burn_in = 0 if self._last is None else self._last[0].model.burn_in
        self.segments, self._carried = self.segments + 1, segment.carry(burn_in)
        self.sink.account(self.owner).steps += len(segment)
        self.sink.add(self.owner, segment)


def final_step(
    obs: NDArray[np.float32], blueprint_indices: NDArray[np.int64], masks: ActionMasks, terminated: bool
) -> FleetStep:
    """Return the end of one episode as a `FleetStep` of one row; all arrays have a batch dimension of 1."""
    flags = np.array([terminated])
    return FleetStep(
        obs, blueprint_indices, masks, np.zeros(1, np.float32), flags, ~flags, (EndReason.ENVIRONMENT,), ({},)
    )


def unfinished_step(obs: NDArray[np.float32], blueprint_indices: NDArray[np.int64], masks: ActionMasks) -> FleetStep:
    """Return observations `[N, D]` of episodes that did not end as a `FleetStep`."""
    n = len(obs)
    no = np.zeros(n, dtype=np.bool_)
    return FleetStep(obs, blueprint_indices, masks, np.zeros(n, np.float32), no, no, (None,) * n, ({},) * n)
