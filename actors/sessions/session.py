"""The interfaces that all policy clients share: `SessionOpener`, `PolicySession`, `Answer`, `PolicyError`."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from actors.rng import Purpose, stream
from actors.sessions.refusal import Code, Reason
from actors.types.actions import ActionMasks
from actors.types.spaces import Spaces

UNKNOWN_VERSION = -1  # of a network that does not say which weights of a run it holds
_NONE = np.zeros(0)
SERVING_SEED = 0  # used where a training run has its own seed


class Answer(NamedTuple):
    """The action that the policy chose in one step.

    Attributes:
        action: `[H]` choice of each head; 0 for heads that are irrelevant to the op; of continuous heads, a cell (see
            `actors.types.continuous`).
        log_probs: `[H]` log-probability of each choice; 0 for irrelevant heads.
        value: Value estimate, denormalized: V, or Q of the chosen op.
        policy_version: Version of the weights that chose the action.
        step_index: Index of the step in the session, from 0.
        continuous: `[C]` value in the environment of each continuous head, within its bounds.
    """

    action: NDArray[np.int64]
    log_probs: NDArray[np.float32]
    value: float
    policy_version: int
    step_index: int
    continuous: NDArray[np.float64] = _NONE


class PolicySession(Protocol):
    """One episode of an environment: the policy's recurrent state, advanced by each step."""

    @property
    def policy_version(self) -> int:
        """Version of the weights of the last answer."""
        ...

    @property
    def exported(self) -> bytes:
        """State of the session after the last answer, for `open(state=...)`; empty before the first answer."""
        ...

    def step(
        self,
        obs: ArrayLike,
        blueprint_indices: ArrayLike = (),
        masks: ArrayLike | ActionMasks | None = None,
        deterministic: bool = True,
    ) -> Answer:
        """Choose the next action. Raises `PolicyError`.

        Args:
            obs: `[D]` float32 observation, not normalized.
            blueprint_indices: `[S]` blueprint in each slot, -1 if the slot is empty; only in spaces with slots.
            masks: Legal choices, without a batch dimension; `[A]`, or None for all, in spaces without slots.
            deterministic: Take median decisions instead of samples: act at the first step by which a sampling policy
                would more likely than not have acted. In spaces without WAIT, take the most likely choices.
        """
        ...

    def reset(self, seed: int = 0) -> None:
        """Start a new episode: zero recurrent state, step 0, and the newest weights."""
        ...

    def close(self) -> None:
        """End the session and free its place at the server."""
        ...


class Closable:
    """What is closed at the end of a `with` block."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self: Any) -> None:
        """Do nothing: in this process no connection is held."""


class SessionOpener(Protocol):
    """A client of a policy server, or a policy in this process."""

    def open(self, spaces: Spaces, seed: int = 0, latest: bool = False, state: bytes = b"") -> PolicySession:
        """Open a session; see `PolicyClient.open`. `state` must come from a session of the same kind of opener."""
        ...

    def close(self) -> None: ...


class PolicyError(RuntimeError):
    """A request to a policy failed.

    `code` is the status code. `reason` is the reason in `ErrorInfo`, listed in proto/actors/wire/policy.proto, or
    empty. `import_required` tells that the session must be opened again from its exported state, `retry_s` how long to
    wait at least before repeating the request.
    """

    def __init__(
        self, code: Code, message: str, reason: str = "", import_required: bool = False, retry_s: float = 0.0
    ) -> None:
        super().__init__(message)
        self.code, self.reason, self.import_required, self.retry_s = code, reason, import_required, retry_s

    @property
    def transient(self) -> bool:
        """Whether the same request may succeed if it is repeated, at this server or another."""
        if self.code is Code.RESOURCE_EXHAUSTED:
            return self.reason in ("", Reason.CALLS_FULL, Reason.QUEUE_FULL) and "larger than max" not in str(self)
        text = str(self).lower()
        if self.code is Code.CANCELLED:  # by a server that stops; not by this client, whose texts these are
            return "channel closed" not in text and "locally cancelled" not in text
        connection_lost = self.code is Code.UNKNOWN and "stream removed" in text
        return connection_lost or self.code in (Code.UNAVAILABLE, Code.DEADLINE_EXCEEDED)


class SessionLost(PolicyError):
    """The server no longer has the session, and its state cannot be restored: open a new session."""

    def __init__(self, message: str) -> None:
        super().__init__(Code.NOT_FOUND, message, Reason.SESSION_UNKNOWN)


def step_noise(seed: int, step_index: int, heads: int) -> NDArray[np.float64]:
    """Return `[heads]` uniform samples from [0, 1). They are the same at all replicas."""
    return stream(SERVING_SEED, seed, Purpose.POLICY, step_index).random(heads)
