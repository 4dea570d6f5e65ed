"""A `Refusal` as a gRPC status with machine-readable details, and a failed call as a `PolicyError`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

import grpc
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.rpc.error_details_pb2 import ErrorInfo, RetryInfo
from google.rpc.status_pb2 import Status

from actors.sessions.refusal import IMPORT_REQUIRED, RETRY_S, Code, Reason, Refusal
from actors.sessions.session import PolicyError
from actors.version import installed
from actors.wire import policy_pb2

DOMAIN = "tamiyo"
DETAILS_KEY = "grpc-status-details-bin"


async def abort(context: grpc.aio.ServicerContext[Any, Any], refusal: Refusal) -> NoReturn:
    """End a call by a refusal. The trailing metadata hold a `google.rpc.Status` with an `ErrorInfo`, under gRPC's
    standard key; also a `RetryInfo` if the refusal holds a time to retry."""
    details: list[Message] = [ErrorInfo(reason=refusal.reason, domain=DOMAIN, metadata=refusal.metadata)]
    if RETRY_S in refusal.metadata:
        delay = Duration()
        delay.FromMilliseconds(round(1000 * float(refusal.metadata[RETRY_S])))
        details.append(RetryInfo(retry_delay=delay))
    status = Status(code=refusal.code, message=refusal.message)
    for detail in details:
        status.details.add().Pack(detail)
    trailers = ((DETAILS_KEY, status.SerializeToString()),)
    await context.abort(grpc.StatusCode[refusal.code.name], refusal.message, trailers)
    raise AssertionError("context.abort always raises")


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


def error_of_call(error: grpc.RpcError) -> PolicyError:
    """Return the error of a failed call."""
    info = error_info(error)
    code, details = Code[error.code().name], error.details()
    if info.reason == Reason.SPACES_MISMATCH or code is Code.UNIMPLEMENTED:
        details = f"{details} (client: {installed()}; install one version on both if they differ)"
    return _error(code, details, info.reason, info.metadata)


def error_of_step(failure: policy_pb2.StepFailure) -> PolicyError:
    """Return the error of one step of a stream."""
    return _error(Code(failure.code), failure.message, failure.reason, failure.metadata)


def _error(code: Code, message: str | None, reason: str, metadata: Mapping[str, str]) -> PolicyError:
    required, retry_s = metadata.get(IMPORT_REQUIRED) == "true", float(metadata.get(RETRY_S, 0.0))
    return PolicyError(code, f"{message} [{code.name}]", reason, required, retry_s)
