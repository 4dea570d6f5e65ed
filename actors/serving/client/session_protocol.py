"""What a client says and what it makes of the answers, without any input or output: one logic for both clients.

Every verb is a generator of `Call`s that is sent their responses, or thrown a `PolicyError`. A step may be repeated
as often as need be, since the server decides it once. A session that the server lost is opened again from the state
that came with the last answer.
"""

from __future__ import annotations

import random
import time
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, NamedTuple

import grpc
import numpy as np
from google.protobuf.message import Message
from numpy.typing import NDArray

from actors.serving.client.session import Answer, PolicyError, SessionLost
from actors.serving.messages import step_request
from actors.serving.refusal import Reason
from actors.types.actions import ActionMasks
from actors.types.spaces import Spaces
from actors.wire import policy_pb2

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.05, 2.0
REOPENED = 3  # times that one step may find its session gone
CLOSE_S = 3.0  # spent on telling the server; it finds out by itself later


@dataclass(frozen=True)
class RetryBudget:
    """How long a client tries."""

    deadline_s: float = 30.0
    """For one step or open, everything included."""
    attempt_s: float = 10.0
    """For one call of it."""


class Call(NamedTuple):
    method: str
    request: Message
    timeout_s: float
    pause_s: float  # before it
    attempt: int  # counts those that failed, so that the next address can be tried


Talk = Generator[Call, Any, Any]


def call(method: str, request: Message, patience: RetryBudget, deadline_s: float | None = None) -> Talk:
    """Until it succeeds, fails for good, or the deadline (by `time.monotonic`) is over."""
    deadline_s = time.monotonic() + patience.deadline_s if deadline_s is None else deadline_s
    pause_s, attempt = 0.0, 0
    told: PolicyError | None = None  # by a server, which says more than that time is up
    while True:
        timeout_s = min(patience.attempt_s, deadline_s - time.monotonic() - pause_s)
        try:
            return (yield Call(method, request, max(timeout_s, 0.001), pause_s, attempt))
        except PolicyError as error:
            attempt += 1
            told = error if error.reason else told
            pause_s = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** (attempt - 1)) * random.uniform(0.5, 1.0)
            if not error.passing:
                raise
            if time.monotonic() + pause_s >= deadline_s:
                raise (told or error) from error


class SessionProtocol:
    """One session as its client knows it."""

    def __init__(self, spaces: Spaces, seed: int, latest: bool, patience: RetryBudget, exported: bytes = b"") -> None:
        self.spaces, self.seed, self.latest, self.patience = spaces, seed, latest, patience
        self.session_id, self.next_index, self.policy_version = "", 0, -1
        self.exported = exported  # the session after its last answer

    def open(self, deadline_s: float | None = None) -> Talk:
        request = policy_pb2.OpenSessionRequest(
            spaces_hash=self.spaces.hash,
            seed=self.seed,
            latest=self.latest,
            exported_state=self.exported,
            other_version=True,
        )
        response = yield from call("OpenSession", request, self.patience, deadline_s)
        if response.next_step_index < self.next_index:
            raise SessionLost("the server's copy of the session is older than ours: open a new one")
        self.session_id, self.policy_version = response.session_id, response.policy_version
        self.next_index = response.next_step_index

    def step(
        self,
        obs: NDArray[np.float32],
        blueprint_indices: NDArray[np.int64],
        masks: ActionMasks,
        deterministic: bool,
    ) -> Talk:
        deadline_s = time.monotonic() + self.patience.deadline_s
        request = step_request(
            self.session_id, self.next_index, obs, blueprint_indices, masks, deterministic, export_state=True
        )
        for reopened in range(REOPENED + 1):
            try:
                response = yield from call("Step", request, self.patience, deadline_s)
                break
            except PolicyError as error:
                if not error.import_required or reopened == REOPENED:
                    raise
                yield from self._reopen(deadline_s)
                request.session_id = self.session_id
        self.next_index += 1
        self.exported, self.policy_version = response.exported_state, response.policy_version
        return Answer(
            np.array(response.action, dtype=np.int64),
            np.array(response.log_probs, dtype=np.float32),
            response.value,
            response.policy_version,
            response.step_index,
        )

    def _reopen(self, deadline_s: float) -> Talk:
        if self.next_index and not self.exported:
            raise SessionLost("the server no longer has the session, and gave no state to go on from: open a new one")
        try:
            yield from self.open(deadline_s)
        except PolicyError as error:
            if error.reason == Reason.STATE_INVALID:
                raise SessionLost(f"the session cannot go on at this server: {error}") from error
            raise

    def reset(self, seed: int) -> Talk:
        request = policy_pb2.ResetSessionRequest(session_id=self.session_id, seed=seed)
        self.seed, self.next_index, self.exported = seed, 0, b""
        try:
            response = yield from call("ResetSession", request, self.patience)
            self.policy_version = response.policy_version
        except PolicyError as error:
            if not error.import_required:
                raise
            yield from self.open()

    def close(self) -> Talk:
        """A server that cannot be reached lets the session expire."""
        request = policy_pb2.CloseSessionRequest(session_id=self.session_id)
        try:
            yield from call("CloseSession", request, self.patience, time.monotonic() + CLOSE_S)
        except PolicyError as error:
            if error.code not in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
                raise
