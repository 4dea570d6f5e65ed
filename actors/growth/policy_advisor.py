"""`PolicyAdvisor`: a policy that is asked once per epoch, and may fail to answer without any harm to who asks."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from actors.errors import UserError
from actors.policy.publish import from_weights
from actors.policy.saved import SHIPPED, read_weights
from actors.serving.client.blocking import PolicyClient
from actors.serving.client.local import LocalPolicy
from actors.serving.client.session import Answer, PolicyError, PolicySession, SessionLost, SessionOpener
from actors.serving.refusal import Reason, Refusal
from actors.types.actions import ActionMasks
from actors.types.spaces import Spaces

log = logging.getLogger(__name__)

ADDRESS_VARIABLE = "TAMIYO_POLICY"


def find_policy(policy: SessionOpener | str | Path | None, timeout_s: float) -> SessionOpener:
    """An opener as it is; else a checkpoint, or the address of a server. None takes what TAMIYO_POLICY names, and the
    policy that comes with the package where it names nothing. Raises `UserError`."""
    if policy is None:
        policy = os.environ.get(ADDRESS_VARIABLE) or SHIPPED
    if not isinstance(policy, str | Path):
        return policy
    path = Path(policy)
    if isinstance(policy, str) and not path.exists() and ":" in policy:
        return PolicyClient(policy, deadline_s=timeout_s, attempt_s=timeout_s)
    weights = read_weights(path)
    return LocalPolicy(from_weights(weights), weights.version)


class PolicyAdvisor:
    """`patient` is whether a failure is met by waiting; else it is raised."""

    def __init__(self, opener: SessionOpener, spaces: Spaces, seed: int, deterministic: bool, patient: bool) -> None:
        """Raises `UserError` where the policy does not fit; one that cannot be reached now is asked again later."""
        self.opener, self.spaces, self.seed = opener, spaces, seed
        self._deterministic, self._patient = deterministic, patient
        self._session: PolicySession | None = None
        self._state = b""  # to go on from
        try:
            self._open()
        except PolicyError as error:
            if error.reason == Reason.SPACES_MISMATCH:
                raise UserError(f"this policy does not fit: {error}") from error
            if not patient:
                raise
            log.warning("the policy cannot be reached: %s", error)

    def _open(self) -> PolicySession:
        if self._session is None:
            self._session = self.opener.open(self.spaces, self.seed, state=self._state)
        return self._session

    def ask(
        self, obs: NDArray[np.float32], blueprints: NDArray[np.int64], masks: ActionMasks
    ) -> tuple[Answer | None, str]:
        """The answer, or None and why there is none."""
        try:
            return self._open().step(obs, blueprints, masks, self._deterministic), ""
        except Exception as error:  # no failure of a policy may end a training
            if not self._patient:
                raise
            reason = " ".join(str(error).split()) or type(error).__name__
            if isinstance(error, SessionLost | Refusal):
                reason += "; a new session begins without a memory"
                self._session, self._state = None, b""
            log.warning("no answer, so that nothing is done this epoch: %s", reason)
            return None, reason

    @property
    def exported(self) -> bytes:
        return self._state if self._session is None else self._session.exported

    def resume(self, state: bytes) -> None:
        """Go on from an exported session."""
        self._session, self._state = None, state

    def close(self) -> None:
        if self._session is not None:
            self._session.close()
