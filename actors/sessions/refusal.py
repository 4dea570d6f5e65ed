"""`Refusal`: the exception that refuses a request, with a reason for programs and a message for people."""

from __future__ import annotations

from enum import IntEnum, StrEnum

IMPORT_REQUIRED = "import_required"
RETRY_S = "retry_s"


Code = IntEnum(
    "Code",
    "OK CANCELLED UNKNOWN INVALID_ARGUMENT DEADLINE_EXCEEDED NOT_FOUND ALREADY_EXISTS PERMISSION_DENIED "
    "RESOURCE_EXHAUSTED FAILED_PRECONDITION ABORTED OUT_OF_RANGE UNIMPLEMENTED INTERNAL UNAVAILABLE DATA_LOSS "
    "UNAUTHENTICATED",
    start=0,
)
"""What kind of failure it is: the status codes of gRPC, which count from 0 in this order."""


class Reason(StrEnum):
    """Machine-readable reason of a refusal, sent as `ErrorInfo.reason`; the status message is for people."""

    code: Code

    def __new__(cls, text: str, code: Code) -> Reason:
        reason = str.__new__(cls, text)
        reason._value_, reason.code = text, code
        return reason

    SPACES_MISMATCH = "SPACES_MISMATCH", Code.FAILED_PRECONDITION
    MALFORMED = "MALFORMED", Code.INVALID_ARGUMENT
    WRONG_SHAPE = "WRONG_SHAPE", Code.INVALID_ARGUMENT
    NOT_FINITE = "NOT_FINITE", Code.INVALID_ARGUMENT
    OUT_OF_RANGE = "OUT_OF_RANGE", Code.INVALID_ARGUMENT
    ILLEGAL_MASK = "ILLEGAL_MASK", Code.INVALID_ARGUMENT
    STEP_GAP = "STEP_GAP", Code.FAILED_PRECONDITION
    STEP_CONFLICT = "STEP_CONFLICT", Code.ABORTED
    SESSION_UNKNOWN = "SESSION_UNKNOWN", Code.NOT_FOUND
    SESSIONS_FULL = "SESSIONS_FULL", Code.RESOURCE_EXHAUSTED
    CALLS_FULL = "CALLS_FULL", Code.RESOURCE_EXHAUSTED
    STATE_INVALID = "STATE_INVALID", Code.INVALID_ARGUMENT
    TOKEN_MISSING = "TOKEN_MISSING", Code.UNAUTHENTICATED
    TOKEN_INVALID = "TOKEN_INVALID", Code.UNAUTHENTICATED
    TOKEN_EXPIRED = "TOKEN_EXPIRED", Code.UNAUTHENTICATED
    NOT_READY = "NOT_READY", Code.UNAVAILABLE
    DRAINING = "DRAINING", Code.UNAVAILABLE
    NOT_PERMITTED = "NOT_PERMITTED", Code.PERMISSION_DENIED
    NOT_TRAINING = "NOT_TRAINING", Code.FAILED_PRECONDITION
    REWARD_INVALID = "REWARD_INVALID", Code.INVALID_ARGUMENT
    EPISODE_ENDED = "EPISODE_ENDED", Code.FAILED_PRECONDITION
    QUEUE_FULL = "QUEUE_FULL", Code.RESOURCE_EXHAUSTED
    INTERNAL = "INTERNAL", Code.INTERNAL


class Refusal(Exception):
    """Refuse a request. A server sends it as a gRPC status."""

    def __init__(self, reason: Reason, message: str, **metadata: object) -> None:
        super().__init__(message)
        self.reason, self.message = reason, message
        self.metadata = {name: str(value) for name, value in metadata.items()}

    @property
    def code(self) -> Code:
        return self.reason.code
