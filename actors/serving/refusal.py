"""`Refusal`: the exception that refuses a request, as a gRPC status with machine-readable details."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import grpc
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.duration_pb2 import Duration
from google.rpc.error_details_pb2 import ErrorInfo, RetryInfo
from google.rpc.status_pb2 import Status

DOMAIN = "tamiyo"
IMPORT_REQUIRED = "import_required"
RETRY_S = "retry_s"
DETAILS_KEY = "grpc-status-details-bin"


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
    IDLE = "IDLE"
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


CODES: dict[Reason, grpc.StatusCode] = {
    **dict.fromkeys(Reason, grpc.StatusCode.INVALID_ARGUMENT),
    Reason.SPACES_MISMATCH: grpc.StatusCode.FAILED_PRECONDITION,
    Reason.VERSION_GONE: grpc.StatusCode.FAILED_PRECONDITION,
    Reason.STEP_GAP: grpc.StatusCode.FAILED_PRECONDITION,
    Reason.STEP_CONFLICT: grpc.StatusCode.ABORTED,
    Reason.SESSION_UNKNOWN: grpc.StatusCode.NOT_FOUND,
    Reason.SESSION_EXPIRED: grpc.StatusCode.NOT_FOUND,
    Reason.SESSIONS_FULL: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Reason.CALLS_FULL: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Reason.IDLE: grpc.StatusCode.UNAVAILABLE,
    Reason.TOKEN_MISSING: grpc.StatusCode.UNAUTHENTICATED,
    Reason.TOKEN_INVALID: grpc.StatusCode.UNAUTHENTICATED,
    Reason.TOKEN_EXPIRED: grpc.StatusCode.UNAUTHENTICATED,
    Reason.NOT_READY: grpc.StatusCode.UNAVAILABLE,
    Reason.DRAINING: grpc.StatusCode.UNAVAILABLE,
    Reason.NOT_PERMITTED: grpc.StatusCode.PERMISSION_DENIED,
    Reason.NOT_TRAINING: grpc.StatusCode.FAILED_PRECONDITION,
    Reason.EPISODE_ENDED: grpc.StatusCode.FAILED_PRECONDITION,
    Reason.QUEUE_FULL: grpc.StatusCode.RESOURCE_EXHAUSTED,
}


class Refusal(Exception):
    """Refuse a call, or one step of a stream. It is sent as a gRPC status."""

    def __init__(self, reason: Reason, message: str, **metadata: object) -> None:
        super().__init__(message)
        self.reason, self.message = reason, message
        self.metadata = {name: str(value) for name, value in metadata.items()}

    @property
    def code(self) -> grpc.StatusCode:
        """The status code that belongs to `reason`."""
        return CODES[self.reason]

    @property
    def code_number(self) -> int:
        """The number of `code` in google.rpc.Code."""
        number: int = self.code.value[0]
        return number

    def trailers(self) -> tuple[tuple[str, bytes], ...]:
        """Return the trailing metadata: a `google.rpc.Status` with an `ErrorInfo`, under gRPC's standard key; also a
        `RetryInfo` if the metadata hold a time to retry."""
        info = AnyMessage()
        info.Pack(ErrorInfo(reason=self.reason, domain=DOMAIN, metadata=self.metadata))
        details = [info]
        if RETRY_S in self.metadata:
            wait = AnyMessage()
            delay = Duration()
            delay.FromMilliseconds(round(1000 * float(self.metadata[RETRY_S])))
            wait.Pack(RetryInfo(retry_delay=delay))
            details.append(wait)
        status = Status(code=self.code_number, message=self.message, details=details)
        return ((DETAILS_KEY, status.SerializeToString()),)


def error_info(error: grpc.RpcError) -> ErrorInfo:
    """Return the `ErrorInfo` of a failed call; empty if there is none, for example if no server was reached."""
    info = ErrorInfo()
    trailers: Any = error.trailing_metadata() if hasattr(error, "trailing_metadata") else None
    for key, value in trailers or ():
        if key == DETAILS_KEY and isinstance(value, bytes):
            for detail in Status.FromString(value).details:
                if detail.Unpack(info) and info.domain == DOMAIN:
                    return info
    return ErrorInfo()
