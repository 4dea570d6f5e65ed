"""`PolicyAdvisor`: queries a policy once per epoch and tolerates its failures."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from actors.errors import UserError
from actors.policy.publish import from_weights
from actors.policy.saved import read_weights
from actors.rules.names import is_rule
from actors.sessions.local import LocalPolicy, LocalRule
from actors.sessions.refusal import Reason, Refusal
from actors.sessions.session import Answer, PolicyError, PolicySession, SessionLost, SessionOpener
from actors.types.actions import ActionMasks
from actors.types.spaces import Spaces

log = logging.getLogger(__name__)

ADDRESS_VARIABLE = "TAMIYO_POLICY"
TIMEOUT_S = 3.0  # of a query to a server


def find_policy(policy: SessionOpener | str | Path | None, default: str) -> SessionOpener:
    """Return what opens sessions with a policy: `policy` itself, or a client for the name of a rule, a checkpoint or a
    server address.

    None means the environment variable TAMIYO_POLICY or, without one, `default`. Raises `UserError`.
    """
    if policy is None:
        policy = os.environ.get(ADDRESS_VARIABLE) or default
    if not isinstance(policy, str | Path):
        return policy
    if isinstance(policy, str) and is_rule(policy):
        return LocalRule(policy)
    path = Path(policy)
    if isinstance(policy, str) and not path.exists() and ":" in policy:
        from actors.serving.client.blocking import PolicyClient  # it imports gRPC, which nothing else here needs

        return PolicyClient(policy, deadline_s=TIMEOUT_S, attempt_s=TIMEOUT_S)
    weights = read_weights(path)
    return LocalPolicy(from_weights(weights), weights.version)


class PolicyAdvisor:
    """One session with a policy. A query that fails returns no answer."""

    def __init__(self, opener: SessionOpener, spaces: Spaces, seed: int, deterministic: bool) -> None:
        """Open the session. Raises `UserError` if the policy has other spaces; an unreachable one is retried later."""
        self.opener, self.spaces, self.seed, self._deterministic = opener, spaces, seed, deterministic
        self._session: PolicySession | None = None
        self._state = b""  # exported session to continue from
        try:
            self._open()
        except PolicyError as error:
            if error.reason == Reason.SPACES_MISMATCH:
                raise UserError(f"this policy does not fit the model: {error}") from error
            log.warning("the policy is unreachable, and is tried again at the next epoch: %s", error)

    def _open(self) -> PolicySession:
        if self._session is None:
            self._session = self.opener.open(self.spaces, self.seed, state=self._state)
        return self._session

    def reads_contributions(self, epoch: int, horizon_epochs: int) -> bool:
        """Return whether the policy may look at the contributions of seeds in this epoch."""
        return not isinstance(self.opener, LocalRule) or self.opener.reads_contributions(epoch, horizon_epochs)

    def ask(
        self, obs: NDArray[np.float32], blueprint_indices: NDArray[np.int64], masks: ActionMasks
    ) -> tuple[Answer | None, str]:
        """Return (answer, ""), or (None, reason) if the query failed. `obs [D]`, `blueprint_indices [S]`, and masks
        without a batch dimension."""
        try:
            return self._open().step(obs, blueprint_indices, masks, self._deterministic), ""
        except Exception as error:  # a failing policy must not end a training run
            reason = " ".join(str(error).split()) or type(error).__name__
            if isinstance(error, SessionLost | Refusal):
                reason += "; a new session starts without recurrent state"
                self._session, self._state = None, b""
            log.warning("the policy did not answer, so this epoch is a no-op: %s", reason)
            return None, reason

    @property
    def exported(self) -> bytes:
        """Return the session as bytes that `resume` accepts."""
        return self._state if self._session is None else self._session.exported

    def resume(self, state: bytes) -> None:
        """Continue an exported session."""
        self._session, self._state = None, state

    def close(self) -> None:
        if self._session is not None:
            self._session.close()
