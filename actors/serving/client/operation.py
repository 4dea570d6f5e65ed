"""Operations of a client without I/O, shared by the blocking and the asyncio client.

An operation is a generator that yields `Call`s; the client performs them and sends the response into the generator, or
throws a `PolicyError`.
"""

from __future__ import annotations

import random
import time
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, NamedTuple

from google.protobuf.message import Message

from actors.sessions.session import PolicyError
from actors.wire import policy_pb2

INITIAL_BACKOFF_S, MAX_BACKOFF_S = 0.05, 2.0


@dataclass(frozen=True)
class RetryBudget:
    """Time limits of an operation."""

    deadline_s: float = 30.0
    """Seconds for one step or open, retries included."""
    attempt_s: float = 10.0
    """Seconds for one attempt."""


class Call(NamedTuple):
    """One attempt of an RPC."""

    method: str
    request: Message
    timeout_s: float
    pause_s: float  # sleep before the call
    attempt: int  # number of failed attempts so far; above 0, the next address is tried


Operation = Generator[Call, Any, Any]
"""Yields calls, is sent their responses, and returns a result."""


def retry_call(method: str, request: Message, retry_budget: RetryBudget, deadline_s: float | None = None) -> Operation:
    """Repeat an RPC until it succeeds, fails with an error that is not transient, or reaches the deadline.

    `deadline_s` is a time of `time.monotonic`. Returns the response. Raises `PolicyError`.
    """
    deadline_s = time.monotonic() + retry_budget.deadline_s if deadline_s is None else deadline_s
    pause_s, attempt = 0.0, 0
    server_error: PolicyError | None = None  # says more than the DEADLINE_EXCEEDED that may follow it
    while True:
        timeout_s = min(retry_budget.attempt_s, deadline_s - time.monotonic() - pause_s)
        try:
            return (yield Call(method, request, max(timeout_s, 0.001), pause_s, attempt))
        except PolicyError as error:
            attempt += 1
            server_error = error if error.reason else server_error
            backoff_s = min(MAX_BACKOFF_S, INITIAL_BACKOFF_S * 2 ** (attempt - 1)) * random.uniform(0.5, 1.0)
            pause_s = max(backoff_s, error.retry_s)
            if not error.transient:
                raise
            if time.monotonic() + pause_s >= deadline_s:
                raise (server_error or error) from error


def get_model(retry_budget: RetryBudget) -> Operation:
    """Ask for a description of the server. Returns a `GetModelResponse`."""
    return (yield from retry_call("GetModel", policy_pb2.GetModelRequest(), retry_budget))
