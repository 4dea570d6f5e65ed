"""All decoders of untrusted bytes, with valid samples and the errors that they may raise.

A decoder of bytes with a checksum or a signature is listed twice: unchanged, and with the checksum or signature
recomputed after the damage, so that later checks are reached.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import tempfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from actors.codec import (
    SCHEMA_VERSION,
    InvalidWeights,
    WeightBlob,
    decode_episode,
    decode_weights,
    encode_episode,
    encode_weights,
)
from actors.errors import UserError
from actors.policy.publish import to_weights
from actors.policy.saved import read_weights
from actors.serving.messages import MessageLayout, make_step_batch, parse_step, request_digest, step_request
from actors.sessions.refusal import Refusal
from actors.sessions.session_state import seal, unseal
from actors.transport.base import EpisodeHeader
from actors.types.episode import EndReason, InvalidEpisode
from actors.wire import episode_pb2, policy_pb2
from learner.ppo.optimizer import make_optimizer
from learner.run.checkpoint import LearnerProgress, load_checkpoint, load_network, save_checkpoint
from tests.support.builders import make_episode
from tests.support.growth.growing import GROWN, Run, Script, mlp
from tests.support.learning.toy import SPACES, random_masks, toy_network

KEY = b"a key for tests only"
NETWORK = toy_network()


@dataclass(frozen=True)
class Decoder:
    """`decode` returns or raises one of `errors` for any bytes; `samples` are valid ones."""

    name: str
    decode: Callable[[bytes], object]
    errors: tuple[type[Exception], ...]
    samples: tuple[bytes, ...]

    def __call__(self, data: bytes) -> bool:
        """Return whether `data` was accepted."""
        try:
            self.decode(data)
        except self.errors:
            return False
        return True


@cache
def decoders() -> dict[str, Decoder]:
    bodies = tuple(episode_pb2.EpisodeEnvelope.FromString(data).episode for data in episodes())
    signed = policy_pb2.SignedState.FromString(_exported()).state
    grown = _as_json(_grower().state_dict())  # users save it in a format of their choice
    found = [
        Decoder("episode", decode_episode, (InvalidEpisode,), episodes()),
        Decoder("episode in its envelope", _enveloped, (InvalidEpisode,), bodies),
        Decoder("manifest", _manifest, (InvalidWeights,), (_blob().manifest,)),
        Decoder("manifest under its seal", _sealed_manifest, (InvalidWeights,), (_blob().manifest,)),
        Decoder("weights", _weights, (InvalidWeights,), (_blob().payload,)),
        Decoder("exported session", _unseal, (Refusal,), (_exported(),)),
        Decoder("exported session, signed", _signed, (Refusal,), (signed,)),
        Decoder("step request", _step, (Refusal, DecodeError), tuple(map(_request, range(3)))),
        Decoder("checkpoint", _checkpoint, (UserError,), (_saved(),)),
        Decoder("header of a checkpoint", _header_of_checkpoint, (UserError,), (_split(_saved())[0],)),
        Decoder("episode id", _episode_id, (InvalidEpisode,), (b"run/actor-0/1719/42",)),
        Decoder("growth", _growth, (UserError,), (grown,)),
    ]
    return {decoder.name: decoder for decoder in found}


def episodes() -> tuple[bytes, ...]:
    versions = np.array([3, 3, 4, 7], dtype=np.int64)
    return (
        encode_episode(make_episode(steps=4, policy_version=versions, telemetry={"segment": 1.0})),
        encode_episode(make_episode(1, steps=1, slots=0, cells=2, end_reason=EndReason.CUT)),
    )


def _enveloped(body: bytes) -> None:
    envelope = episode_pb2.EpisodeEnvelope(schema_version=SCHEMA_VERSION, checksum=zlib.crc32(body), episode=body)
    decode_episode(envelope.SerializeToString())


@cache
def _blob() -> WeightBlob:
    return encode_weights(to_weights(NETWORK, 3, 1, 8))


def _manifest(data: bytes) -> None:
    decode_weights(WeightBlob(data, _blob().payload))


def _canonical(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()


def _sealed(fields: dict[str, Any]) -> bytes:
    own = {k: v for k, v in fields.items() if k != "manifest_sha256"}
    return _canonical(own | {"manifest_sha256": hashlib.sha256(_canonical(own)).hexdigest()})


def _sealed_manifest(data: bytes) -> None:
    with contextlib.suppress(ValueError, TypeError, AttributeError, RecursionError):
        data = _sealed(json.loads(data))
    _manifest(data)


def _weights(payload: bytes) -> None:
    fields = json.loads(_blob().manifest) | {"payload_sha256": hashlib.sha256(payload).hexdigest()}
    decode_weights(WeightBlob(_sealed(fields), payload))


@cache
def _exported() -> bytes:
    state = policy_pb2.SessionState(session_id="a session", spaces_hash=SPACES.hash, next_step_index=2, seed=5)
    return seal(state, NETWORK.initial_state(1), 0, KEY)


def _unseal(data: bytes) -> None:
    unseal(data, NETWORK.core.sizes, KEY)


def _signed(body: bytes) -> None:
    signature = hmac.new(KEY, body, hashlib.sha256).digest()
    _unseal(policy_pb2.SignedState(state=body, signature=signature).SerializeToString())


def _request(seed: int) -> bytes:
    rng = np.random.default_rng(seed)
    obs = rng.standard_normal(SPACES.obs_size).astype(np.float32)
    blueprints, masks = rng.integers(-1, SPACES.num_blueprints, SPACES.slots), random_masks(rng)
    return step_request("a session", seed, obs, blueprints, masks, True, seed == 0).SerializeToString()


def _step(data: bytes) -> None:
    """Parse a request like the server: decode, hash and stack it with a valid one."""
    request, good = policy_pb2.StepRequest.FromString(data), policy_pb2.StepRequest.FromString(_request(0))
    layout = MessageLayout(SPACES)
    request_digest(request)
    batch = make_step_batch([parse_step(good, layout), parse_step(request, layout)], layout)
    assert batch.refusals[0] is None
    if batch.refusals[1] is not None:
        raise batch.refusals[1]


@cache
def _folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="fuzz"))


@cache
def _saved() -> bytes:
    """Return the bytes of a small checkpoint without optimizer moments."""
    optimizer, progress = make_optimizer(NETWORK, 1e-3, 0.0), LearnerProgress(update=3, version=3)
    ids = ("run/actor-0/1/2", "run/actor-0/1/3")
    return save_checkpoint(_folder() / "good", NETWORK, optimizer, progress, ids, 8, 1).read_bytes()


def _checkpoint(data: bytes) -> None:
    """Read a checkpoint with all functions that read checkpoints."""
    path = _folder() / "checkpoint.safetensors"
    path.unlink(missing_ok=True)  # the previous file may still be memory-mapped
    path.write_bytes(data)
    first: UserError | None = None
    for read in (load_checkpoint, read_weights, load_network):
        try:
            read(path)
        except UserError as error:
            first = first or error
    if first is not None:
        raise first


def _split(data: bytes) -> tuple[bytes, bytes]:
    """Split a safetensors file into header and tensors."""
    size = int.from_bytes(data[:8], "little")
    return data[8 : 8 + size], data[8 + size :]


def _header_of_checkpoint(header: bytes) -> None:
    _checkpoint(len(header).to_bytes(8, "little") + header + _split(_saved())[1])


def _episode_id(data: bytes) -> None:
    EpisodeHeader.from_episode(make_episode(steps=1, episode_id=data.decode(errors="backslashreplace")))


@cache
def _grower() -> Any:
    return Run(mlp(), Script(GROWN), ["1", "3"]).epochs(4).grower


def _as_json(state: dict[str, Any]) -> bytes:
    return json.dumps({k: v.decode() if isinstance(v, bytes) else v for k, v in state.items()}).encode()


def _growth(data: bytes) -> None:
    """Load a state; one that is refused must leave the controller unchanged."""
    try:
        state = json.loads(data)
    except (ValueError, RecursionError):
        return
    if isinstance(state, dict) and isinstance(state.get("session"), str):
        state["session"] = state["session"].encode(errors="replace")
    good = _grower().state_dict()
    try:
        _grower().load_state_dict(state)
    except UserError:
        assert _as_json(_grower().state_dict()) == _as_json(good)
        raise
    _grower().load_state_dict(good)
