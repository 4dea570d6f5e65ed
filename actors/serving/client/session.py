"""What every way of asking a policy has in common, near or far: a session answers step by step."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import grpc
import numpy as np
from numpy.typing import NDArray

from actors.serving.refusal import IMPORT_REQUIRED, Reason, error_info
from actors.types.actions import ActionMasks
from actors.types.spaces import Spaces
from actors.wire import policy_pb2


class Answer(NamedTuple):
    """One step's decision."""

    action: NDArray[np.int64]  # [H], the first choice where the op makes a head irrelevant
    log_probs: NDArray[np.float32]  # [H], 0 where irrelevant
    value: float  # denormalised: V, or Q of the chosen op
    policy_version: int
    step_index: int


class PolicySession(Protocol):
    """One episode's memory. `policy_version` is that of the last answer."""

    @property
    def policy_version(self) -> int: ...

    @property
    def exported(self) -> bytes:
        """The session after its last answer, for `open(state=...)`; empty where nothing was answered yet."""
        ...

    def step(
        self,
        obs: NDArray[np.float32],
        blueprint_indices: NDArray[np.int64],
        masks: ActionMasks,
        deterministic: bool = True,
    ) -> Answer:
        """Of one environment: `obs [D]`, `blueprint_indices [S]`, masks without a batch axis. Raises `PolicyError`."""
        ...

    def reset(self, seed: int = 0) -> None:
        """Back to the first step, with an empty memory and the newest weights."""
        ...

    def close(self) -> None: ...


class SessionOpener(Protocol):
    """A client, or a policy in this process."""

    def open(self, spaces: Spaces, seed: int = 0, latest: bool = False, state: bytes = b"") -> PolicySession:
        """`seed` decides sampled steps; `latest` follows new weights in the middle of a session. With the `exported`
        state of another session, of the same kind of opener, that one goes on."""
        ...

    def close(self) -> None: ...


class PolicyError(RuntimeError):
    """A policy did not answer; `code` is gRPC's, `reason` ours or empty (see proto/actors/wire/policy.proto)."""

    def __init__(self, code: grpc.StatusCode, message: str, reason: str = "", import_required: bool = False) -> None:
        super().__init__(message)
        self.code, self.reason, self.import_required = code, reason, import_required

    @classmethod
    def of(cls, error: grpc.RpcError) -> PolicyError:
        """Of a failed call."""
        info = error_info(error)
        code, details = error.code(), error.details()
        return cls(code, f"{details} [{code.name}]", info.reason, info.metadata.get(IMPORT_REQUIRED) == "true")

    @classmethod
    def of_failure(cls, failure: policy_pb2.StepFailure) -> PolicyError:
        """Of a step in a stream."""
        code = next(c for c in grpc.StatusCode if c.value[0] == failure.code)
        required = failure.metadata.get(IMPORT_REQUIRED) == "true"
        return cls(code, f"{failure.message} [{code.name}]", failure.reason, required)

    @property
    def passing(self) -> bool:
        """Whether the same request may succeed a moment later, here or elsewhere."""
        if self.code is grpc.StatusCode.RESOURCE_EXHAUSTED:
            return self.reason in ("", Reason.CALLS_FULL) and "larger than max" not in str(self)
        broken = self.code is grpc.StatusCode.UNKNOWN and "stream removed" in str(self).lower()
        return broken or self.code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED)


class SessionLost(PolicyError):
    """The server no longer has the session and its memory cannot be brought back: open a new one."""

    def __init__(self, message: str) -> None:
        super().__init__(grpc.StatusCode.NOT_FOUND, message, Reason.SESSION_UNKNOWN)
