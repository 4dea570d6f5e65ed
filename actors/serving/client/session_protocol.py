"""`SessionProtocol`: the client's side of a session without I/O, shared by the blocking and the asyncio client.

Each operation is a generator that yields `Call`s; the client performs them and sends the response into the generator,
or throws a `PolicyError`. Steps are idempotent, so retrying one is always safe. If the server has lost the session,
it is reopened from the state that came with the last answer.
"""

from __future__ import annotations

import random
import time
from collections.abc import Generator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from google.protobuf.message import Message
from numpy.typing import NDArray

from actors.serving.messages import step_request
from actors.sessions.refusal import Reason
from actors.sessions.session import Answer, PolicyError, RecordedStep, SessionLost
from actors.types.actions import ActionMasks
from actors.types.spaces import Spaces
from actors.wire import policy_pb2

INITIAL_BACKOFF_S, MAX_BACKOFF_S = 0.05, 2.0
MAX_REOPENS = 3  # per step
LOST_EPISODE = "the server no longer has this episode: begin another one"
CLOSE_S = 3.0  # deadline of close; a session that is not closed expires at the server


@dataclass(frozen=True)
class RetryBudget:
    """Time limits of an operation."""

    deadline_s: float = 30.0
    """Seconds for one step or open, retries included."""
    attempt_s: float = 10.0
    """Seconds for one attempt."""


class Call(NamedTuple):
    """One attempt of an RPC."""

    method: str
    request: Message
    timeout_s: float
    pause_s: float  # sleep before the call
    attempt: int  # number of failed attempts so far; above 0, the next address is tried


Operation = Generator[Call, Any, Any]
"""Yields calls, is sent their responses, and returns a result."""


def retry_call(method: str, request: Message, retry_budget: RetryBudget, deadline_s: float | None = None) -> Operation:
    """Repeat an RPC until it succeeds, fails with an error that is not transient, or reaches the deadline.

    `deadline_s` is a time of `time.monotonic`. Returns the response. Raises `PolicyError`.
    """
    deadline_s = time.monotonic() + retry_budget.deadline_s if deadline_s is None else deadline_s
    pause_s, attempt = 0.0, 0
    server_error: PolicyError | None = None  # says more than the DEADLINE_EXCEEDED that may follow it
    while True:
        timeout_s = min(retry_budget.attempt_s, deadline_s - time.monotonic() - pause_s)
        try:
            return (yield Call(method, request, max(timeout_s, 0.001), pause_s, attempt))
        except PolicyError as error:
            attempt += 1
            server_error = error if error.reason else server_error
            backoff_s = min(MAX_BACKOFF_S, INITIAL_BACKOFF_S * 2 ** (attempt - 1)) * random.uniform(0.5, 1.0)
            pause_s = max(backoff_s, error.retry_s)
            if not error.transient:
                raise
            if time.monotonic() + pause_s >= deadline_s:
                raise (server_error or error) from error


def get_model(retry_budget: RetryBudget) -> Operation:
    """Ask for a description of the server. Returns a `GetModelResponse`."""
    return (yield from retry_call("GetModel", policy_pb2.GetModelRequest(), retry_budget))


class SessionProtocol:
    """The client's view of one session, and the operations on it. With `train`, the server learns from it."""

    def __init__(
        self,
        spaces: Spaces,
        seed: int,
        latest: bool,
        retry_budget: RetryBudget,
        exported: bytes = b"",
        train: bool = False,
    ) -> None:
        self.spaces, self.seed, self.latest, self.retry_budget = spaces, seed, latest, retry_budget
        self.session_id, self.next_index, self.policy_version = "", 0, -1
        self.exported = exported  # state after the last answer
        self.train, self.record = train, False
        self.recorded: RecordedStep | None = None  # of the last step, if `record`
        self.session_ttl_s = 0.0  # time without a step after which the server closes the session
        self.last_request: policy_pb2.StepRequest | None = None

    def open(self, deadline_s: float | None = None) -> Operation:
        """Open the session, or continue it from its exported state."""
        request = policy_pb2.OpenSessionRequest(
            spaces_hash=self.spaces.hash,
            seed=self.seed,
            latest=self.latest,
            exported_state=self.exported,
            train=self.train,
        )
        response = yield from retry_call("OpenSession", request, self.retry_budget, deadline_s)
        if response.next_step_index < self.next_index:
            raise SessionLost("the server has an older state of this session: open a new session")
        self.session_id, self.policy_version = response.session_id, response.policy_version
        self.session_ttl_s = response.session_ttl_s
        self.next_index = response.next_step_index

    def step(
        self,
        obs: NDArray[np.float32],
        blueprint_indices: NDArray[np.int64],
        masks: ActionMasks,
        deterministic: bool,
        reward: float | None = None,
    ) -> Operation:
        """Take the next step, reopening the session if the server has lost it. Returns an `Answer`."""
        deadline_s = time.monotonic() + self.retry_budget.deadline_s
        request = step_request(
            self.session_id, self.next_index, obs, blueprint_indices, masks, deterministic, not self.train, reward,
            self.record,
        )  # fmt: skip
        for reopened in range(MAX_REOPENS + 1):
            try:
                response = yield from retry_call("Step", request, self.retry_budget, deadline_s)
                break
            except PolicyError as error:
                if not error.import_required or reopened == MAX_REOPENS:
                    raise
                if self.train and self.next_index:
                    raise SessionLost(LOST_EPISODE) from error
                yield from self._reopen(deadline_s)
                request.session_id = self.session_id
        self.next_index, self.last_request = self.next_index + 1, request
        if self.record:
            from actors.serving.client.received_step import received_step  # it imports PyTorch

            self.recorded = received_step(response, self.exported)
        self.exported, self.policy_version = response.exported_state, response.policy_version
        return Answer(
            np.array(response.action, dtype=np.int64),
            np.array(response.log_probs, dtype=np.float32),
            response.value,
            response.policy_version,
            response.step_index,
            np.array(response.continuous, dtype=np.float64),
        )

    def end(self, request: policy_pb2.EndEpisodeRequest) -> Operation:
        """End the episode of a training session. Returns an `EndEpisodeResponse`."""
        request.session_id, request.step_index = self.session_id, self.next_index
        try:
            return (yield from retry_call("EndEpisode", request, self.retry_budget))
        except PolicyError as error:
            if error.import_required:
                raise SessionLost(LOST_EPISODE) from error
            raise

    def _reopen(self, deadline_s: float) -> Operation:
        if self.next_index and not self.exported:
            raise SessionLost(
                "the server no longer has the session, and no exported state is known: open a new session"
            )
        try:
            yield from self.open(deadline_s)
        except PolicyError as error:
            if error.reason == Reason.STATE_INVALID:
                raise SessionLost(f"this server cannot continue the session: {error}") from error
            raise

    def reset(self, seed: int) -> Operation:
        """Restart the session at step 0."""
        request = policy_pb2.ResetSessionRequest(session_id=self.session_id, seed=seed)
        self.seed, self.next_index, self.exported = seed, 0, b""
        try:
            response = yield from retry_call("ResetSession", request, self.retry_budget)
            self.policy_version = response.policy_version
        except PolicyError as error:
            if not error.import_required:
                raise
            yield from self.open()

    def close(self) -> Operation:
        """Close the session at the server. If that fails, the session expires there."""
        request = policy_pb2.CloseSessionRequest(session_id=self.session_id)
        with suppress(PolicyError):
            yield from retry_call("CloseSession", request, self.retry_budget, time.monotonic() + CLOSE_S)
