"""`SessionProtocol`: the client's side of a session without I/O.

Steps are idempotent, so retrying one is always safe. If the server has lost the session, it is reopened from the state
that came with the last answer.
"""

from __future__ import annotations

import time
from contextlib import suppress

import numpy as np
from numpy.typing import ArrayLike

from actors.errors import UserError
from actors.serving.client.connection import Connection
from actors.serving.client.operation import Operation, get_model, retry_call
from actors.serving.messages import step_request
from actors.sessions.plain import Mask, as_masks
from actors.sessions.refusal import Reason
from actors.sessions.session import Answer, PolicyError, RecordedStep, SessionLost
from actors.types.actions import ActionMasks
from actors.types.spaces import Spaces
from actors.wire import policy_pb2

MAX_REOPENS = 3  # per step
LOST_EPISODE = "the server no longer has this episode: begin another one"
CLOSE_S = 3.0  # deadline of close; a session that is not closed expires at the server


def known_spaces(client: Connection, spaces: Spaces | None) -> Operation:
    """Return `spaces` or, without them, those of the server."""
    if spaces is not None and not isinstance(spaces, Spaces):
        raise UserError(f"open() takes tamiyo.Spaces, not a {type(spaces).__name__}: leave it out for the server's own")
    if spaces is None and client.spaces is None:
        model = yield from get_model(client.retry_budget)
        client.spaces = Spaces.from_json(model.spaces_json)
    return spaces or client.spaces


class SessionProtocol:
    """The client's view of one session, and the operations on it. With `train`, the server learns from it."""

    def __init__(
        self,
        client: Connection,
        spaces: Spaces,
        seed: int = 0,
        latest: bool = False,
        exported: bytes = b"",
        train: bool = False,
    ) -> None:
        self._perform, self._retry_budget = client._perform, client.retry_budget
        self.spaces, self.seed, self.latest = spaces, seed, latest
        self.session_id, self.next_index, self.policy_version = "", 0, -1
        self.exported = exported  # state after the last answer
        self.train, self.record = train, False
        self.recorded: RecordedStep | None = None  # of the last step, if `record`
        self.session_ttl_s = 0.0  # time without a step after which the server closes the session
        self.last_request: policy_pb2.StepRequest | None = None

    def opening(self, deadline_s: float | None = None) -> Operation:
        """Open the session, or continue it from its exported state."""
        request = policy_pb2.OpenSessionRequest(
            spaces_hash=self.spaces.hash,
            seed=self.seed,
            latest=self.latest,
            exported_state=self.exported,
            train=self.train,
        )
        response = yield from retry_call("OpenSession", request, self._retry_budget, deadline_s)
        if response.next_step_index < self.next_index:
            raise SessionLost("the server has an older state of this session: open a new session")
        self.session_id, self.policy_version = response.session_id, response.policy_version
        self.session_ttl_s = response.session_ttl_s
        self.next_index = response.next_step_index

    def stepping(
        self,
        obs: ArrayLike,
        blueprint_indices: ArrayLike,
        masks: Mask,
        deterministic: bool,
        reward: float | None = None,
    ) -> Operation:
        """Take the next step, reopening the session if the server has lost it. Returns an `Answer`."""
        deadline_s = time.monotonic() + self._retry_budget.deadline_s
        request = step_request(
            self.session_id, self.next_index, np.asarray(obs), np.asarray(blueprint_indices),
            self._masks(masks), deterministic, not self.train, reward, self.record,
        )  # fmt: skip
        for reopened in range(MAX_REOPENS + 1):
            try:
                response = yield from retry_call("Step", request, self._retry_budget, deadline_s)
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

    def _masks(self, mask: Mask) -> ActionMasks | None:
        """Return None where the server decides whether a mask is needed."""
        return None if mask is None and not self.spaces.slots else as_masks(self.spaces.action, mask)

    def ending(self, request: policy_pb2.EndEpisodeRequest) -> Operation:
        """End the episode of a training session. Returns an `EndEpisodeResponse`."""
        request.session_id, request.step_index = self.session_id, self.next_index
        try:
            return (yield from retry_call("EndEpisode", request, self._retry_budget))
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
            yield from self.opening(deadline_s)
        except PolicyError as error:
            if error.reason == Reason.STATE_INVALID:
                raise SessionLost(f"this server cannot continue the session: {error}") from error
            raise

    def resetting(self, seed: int) -> Operation:
        """Restart the session at step 0."""
        request = policy_pb2.ResetSessionRequest(session_id=self.session_id, seed=seed)
        self.seed, self.next_index, self.exported = seed, 0, b""
        try:
            response = yield from retry_call("ResetSession", request, self._retry_budget)
            self.policy_version = response.policy_version
        except PolicyError as error:
            if not error.import_required:
                raise
            yield from self.opening()

    def closing(self) -> Operation:
        """Close the session at the server. If that fails, the session expires there."""
        request = policy_pb2.CloseSessionRequest(session_id=self.session_id)
        with suppress(PolicyError):
            yield from retry_call("CloseSession", request, self._retry_budget, time.monotonic() + CLOSE_S)
