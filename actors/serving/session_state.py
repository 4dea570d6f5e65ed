"""Sessions as signed bytes that a client keeps, and from which any replica with the same key goes on."""

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
from actors.serving.refusal import Reason, Refusal
from actors.types.episode import InvalidEpisode
from actors.wire import policy_pb2

MIN_KEY_BYTES = 16


def read_key(path: Path | None) -> bytes:
    """A key of this process alone where no file is given. Raises `UserError`."""
    if path is None:
        return secrets.token_bytes(32)
    try:
        key = path.read_bytes().strip()
    except OSError as error:
        raise UserError(f"the state key cannot be read ({error}): make one with `openssl rand -hex 32`") from error
    if len(key) < MIN_KEY_BYTES:
        raise UserError(
            f"{path} holds {len(key)} bytes, a state key has at least {MIN_KEY_BYTES}: `openssl rand -hex 32` makes one"
        )
    return key


def seal(state: policy_pb2.SessionState, memory: PolicyState, row: int, key: bytes) -> bytes:
    """`state` with the memory of one row, signed."""
    state.state.CopyFrom(pack_state("state", memory.row(row)))
    body = state.SerializeToString()
    return policy_pb2.SignedState(state=body, signature=_sign(body, key)).SerializeToString()


def unseal(data: bytes, sizes: StateSizes, key: bytes) -> tuple[policy_pb2.SessionState, PolicyState]:
    """What `seal` was given, the memory as one row. Raises `Refusal` on anything that was not sealed with this key."""
    try:
        signed = policy_pb2.SignedState.FromString(data)
    except DecodeError as error:
        raise Refusal(Reason.STATE_INVALID, "exported_state is not one of ours") from error
    if not hmac.compare_digest(signed.signature, _sign(signed.state, key)):
        raise Refusal(
            Reason.STATE_INVALID,
            "the signature of exported_state does not fit: replicas, and a server before and after a restart, share "
            "one --state-key-file",
        )
    try:
        state = policy_pb2.SessionState.FromString(signed.state)
        arrays = unpack_state("state", state.state).arrays
    except (DecodeError, InvalidEpisode) as error:
        raise Refusal(Reason.STATE_INVALID, str(error)) from error
    memory = PolicyState(*(torch.from_numpy(a) for a in arrays))
    if any(t.shape != (n, 1, width) for t, (n, width) in zip(memory, sizes, strict=True)):
        raise Refusal(Reason.STATE_INVALID, "exported_state is of a policy of another size")
    return state, memory


def _sign(body: bytes, key: bytes) -> bytes:
    return hmac.new(key, body, hashlib.sha256).digest()
