"""Exported sessions: signed bytes that a client keeps, and that any replica with the same key can import."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from pathlib import Path

import torch
from google.protobuf.message import DecodeError

from actors.codec import pack_state, unpack_state
from actors.errors import UserError
from actors.policy.state import PolicyState, StateSizes
from actors.sessions.refusal import Reason, Refusal
from actors.types.episode import InvalidEpisode
from actors.wire import policy_pb2

MIN_KEY_BYTES = 16


def read_key(path: Path | None) -> bytes:
    """Read the key from `path`, or generate a random one if it is None. Raises `UserError`."""
    if path is None:
        return secrets.token_bytes(32)
    try:
        key = path.read_bytes().strip()
    except OSError as error:
        raise UserError(f"cannot read the state key ({error}): create one with `openssl rand -hex 32`") from error
    if len(key) < MIN_KEY_BYTES:
        raise UserError(
            f"{path} has {len(key)} bytes, but a state key needs at least {MIN_KEY_BYTES}: create one with "
            "`openssl rand -hex 32`"
        )
    return key


def seal(state: policy_pb2.SessionState, policy_state: PolicyState, row: int, key: bytes) -> bytes:
    """Serialize and sign `state` with row `row` of `policy_state`."""
    state.state.CopyFrom(pack_state(policy_state.row(row)))
    body = state.SerializeToString()
    return policy_pb2.SignedState(state=body, signature=_sign(body, key)).SerializeToString()


def unseal(data: bytes, sizes: StateSizes, key: bytes) -> tuple[policy_pb2.SessionState, PolicyState]:
    """Verify and parse the output of `seal`; the returned `PolicyState` has one row.

    Raises `Refusal` if `data` was not signed with `key`, or is of a policy of another size.
    """
    try:
        signed = policy_pb2.SignedState.FromString(data)
    except DecodeError as error:
        raise Refusal(Reason.STATE_INVALID, "exported_state is malformed") from error
    if not hmac.compare_digest(signed.signature, _sign(signed.state, key)):
        raise Refusal(
            Reason.STATE_INVALID,
            "exported_state has a wrong signature: start all replicas, and a server after a restart, with the same "
            "--state-key-file",
        )
    try:
        state = policy_pb2.SessionState.FromString(signed.state)
        arrays = unpack_state("state", state.state)
    except (DecodeError, InvalidEpisode) as error:
        raise Refusal(Reason.STATE_INVALID, str(error)) from error
    policy_state = PolicyState(*(torch.from_numpy(a) for a in arrays))
    if any(t.shape != (n, 1, width) for t, (n, width) in zip(policy_state, sizes, strict=True)):
        raise Refusal(Reason.STATE_INVALID, "exported_state belongs to a policy of another size")
    return state, policy_state


def _sign(body: bytes, key: bytes) -> bytes:
    return hmac.new(key, body, hashlib.sha256).digest()
