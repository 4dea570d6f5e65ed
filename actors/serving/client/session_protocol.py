"""`SessionProtocol`: the client's side of a session, as coroutines.

Steps are idempotent, so retrying one is always safe. If the server has lost the session, it is reopened from the state
that came with the last answer.
"""

from __future__ import annotations

import time
from contextlib import suppress

import numpy as np
from numpy.typing import ArrayLike

from actors.serving.client.connection import Connection
from actors.serving.messages import step_request
from actors.sessions.plain import Mask, as_masks
from actors.sessions.refusal import Reason
from actors.sessions.session import Answer, PolicyError, SessionLost
from actors.types.spaces import Spaces
from actors.wire import policy_pb2

MAX_REOPENS = 3  # per step
LOST_EPISODE = "the server no longer has this episode: begin another one"
CLOSE_S = 3.0  # deadline of close; a session that is not closed expires at the server


class SessionProtocol:
    """The client's view of one session."""

    train = False  # whether the server learns from it
    spaces: Spaces  # once it is open

    def __init__(
        self, client: Connection, spaces: Spaces | None, seed: int = 0, latest: bool = False, exported: bytes = b""
    ) -> None:
        self._client, self._wanted = client, spaces
        self.seed, self.latest = seed, latest
        self.session_id, self.next_index, self.policy_version = "", 0, -1
        self.exported = exported  # state after the last answer
        self.session_ttl_s = 0.0  # time without a step after which the server closes the session
        self.last_request: policy_pb2.StepRequest | None = None

    async def opening(self, deadline_s: float | None = None) -> None:
        """Open the session, in the spaces of the server unless others are wanted, or continue it from its exported
        state."""
        self.spaces = await self._client.known_spaces(self._wanted)
        request = policy_pb2.OpenSessionRequest(
            spaces_hash=self.spaces.hash,
            seed=self.seed,
            latest=self.latest,
            exported_state=self.exported,
            train=self.train,
        )
        response = await self._client.call("OpenSession", request, deadline_s)
        if response.next_step_index < self.next_index:
            raise SessionLost("the server has an older state of this session: open a new session")
        self.session_id, self.policy_version = response.session_id, response.policy_version
        self.session_ttl_s = response.session_ttl_s
        self.next_index = response.next_step_index

    async def stepping(
        self,
        obs: ArrayLike,
        blueprint_indices: ArrayLike = (),
        masks: Mask = None,
        deterministic: bool = True,
        reward: float | None = None,
    ) -> Answer:
        """Take the next step, reopening the session if the server has lost it."""
        deadline_s = time.monotonic() + self._client.deadline_s
        unmasked = masks is None and not self.spaces.slots  # the server decides whether a mask is needed
        request = step_request(
            self.session_id, self.next_index, np.asarray(obs), np.asarray(blueprint_indices),
            None if unmasked else as_masks(self.spaces.action, masks), deterministic, not self.train, reward,
        )  # fmt: skip
        for reopened in range(MAX_REOPENS + 1):
            try:
                response = await self._client.call("Step", request, deadline_s)
                break
            except PolicyError as error:
                if not error.import_required or reopened == MAX_REOPENS:
                    raise
                if self.train and self.next_index:
                    raise SessionLost(LOST_EPISODE) from error
                await self._reopen(deadline_s)
                request.session_id = self.session_id
        self.next_index, self.last_request = self.next_index + 1, request
        self.exported, self.policy_version = response.exported_state, response.policy_version
        return Answer(
            np.array(response.action, dtype=np.int64),
            np.array(response.log_probs, dtype=np.float32),
            response.value,
            response.policy_version,
            response.step_index,
            np.array(response.continuous, dtype=np.float64),
        )

    async def _reopen(self, deadline_s: float) -> None:
        if self.next_index and not self.exported:
            raise SessionLost(
                "the server no longer has the session, and no exported state is known: open a new session"
            )
        try:
            await self.opening(deadline_s)
        except PolicyError as error:
            if error.reason == Reason.STATE_INVALID:
                raise SessionLost(f"this server cannot continue the session: {error}") from error
            raise

    async def resetting(self, seed: int = 0) -> None:
        """Restart the session at step 0."""
        request = policy_pb2.ResetSessionRequest(session_id=self.session_id, seed=seed)
        self.seed, self.next_index, self.exported = seed, 0, b""
        try:
            response = await self._client.call("ResetSession", request)
            self.policy_version = response.policy_version
        except PolicyError as error:
            if not error.import_required:
                raise
            await self.opening()

    async def closing(self) -> None:
        """Close the session at the server. If that fails, the session expires there."""
        request = policy_pb2.CloseSessionRequest(session_id=self.session_id)
        with suppress(PolicyError):
            await self._client.call("CloseSession", request, time.monotonic() + CLOSE_S)
