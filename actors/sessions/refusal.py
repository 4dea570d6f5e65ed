"""`Refusal`: the exception that refuses a request, with a reason for programs and a message for people."""

from __future__ import annotations

from enum import IntEnum, StrEnum

IMPORT_REQUIRED = "import_required"
RETRY_S = "retry_s"


class Code(IntEnum):
    """What kind of failure it is: the status codes of gRPC."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


class Reason(StrEnum):
    """Machine-readable reason of a refusal, sent as `ErrorInfo.reason`; the status message is for people."""

    SPACES_MISMATCH = "SPACES_MISMATCH"
    MALFORMED = "MALFORMED"
    WRONG_SHAPE = "WRONG_SHAPE"
    NOT_FINITE = "NOT_FINITE"
    OUT_OF_RANGE = "OUT_OF_RANGE"
    ILLEGAL_MASK = "ILLEGAL_MASK"
    STEP_GAP = "STEP_GAP"
    STEP_CONFLICT = "STEP_CONFLICT"
    SESSION_UNKNOWN = "SESSION_UNKNOWN"
    SESSION_EXPIRED = "SESSION_EXPIRED"
    SESSIONS_FULL = "SESSIONS_FULL"
    CALLS_FULL = "CALLS_FULL"
    STATE_INVALID = "STATE_INVALID"
    VERSION_GONE = "VERSION_GONE"
    TOKEN_MISSING = "TOKEN_MISSING"
    TOKEN_INVALID = "TOKEN_INVALID"
    TOKEN_EXPIRED = "TOKEN_EXPIRED"
    NOT_READY = "NOT_READY"
    DRAINING = "DRAINING"
    NOT_PERMITTED = "NOT_PERMITTED"
    NOT_TRAINING = "NOT_TRAINING"
    REWARD_INVALID = "REWARD_INVALID"
    EPISODE_ENDED = "EPISODE_ENDED"
    QUEUE_FULL = "QUEUE_FULL"


CODES: dict[Reason, Code] = {
    **dict.fromkeys(Reason, Code.INVALID_ARGUMENT),
    Reason.SPACES_MISMATCH: Code.FAILED_PRECONDITION,
    Reason.VERSION_GONE: Code.FAILED_PRECONDITION,
    Reason.STEP_GAP: Code.FAILED_PRECONDITION,
    Reason.STEP_CONFLICT: Code.ABORTED,
    Reason.SESSION_UNKNOWN: Code.NOT_FOUND,
    Reason.SESSION_EXPIRED: Code.NOT_FOUND,
    Reason.SESSIONS_FULL: Code.RESOURCE_EXHAUSTED,
    Reason.CALLS_FULL: Code.RESOURCE_EXHAUSTED,
    Reason.TOKEN_MISSING: Code.UNAUTHENTICATED,
    Reason.TOKEN_INVALID: Code.UNAUTHENTICATED,
    Reason.TOKEN_EXPIRED: Code.UNAUTHENTICATED,
    Reason.NOT_READY: Code.UNAVAILABLE,
    Reason.DRAINING: Code.UNAVAILABLE,
    Reason.NOT_PERMITTED: Code.PERMISSION_DENIED,
    Reason.NOT_TRAINING: Code.FAILED_PRECONDITION,
    Reason.EPISODE_ENDED: Code.FAILED_PRECONDITION,
    Reason.QUEUE_FULL: Code.RESOURCE_EXHAUSTED,
}


class Refusal(Exception):
    """Refuse a request. A server sends it as a gRPC status."""

    def __init__(self, reason: Reason, message: str, **metadata: object) -> None:
        super().__init__(message)
        self.reason, self.message = reason, message
        self.metadata = {name: str(value) for name, value in metadata.items()}

    @property
    def code(self) -> Code:
        return CODES[self.reason]
