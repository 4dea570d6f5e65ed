"""Serialization of episodes and weights, without pickle. Round trips are bit-exact.

An episode is serialized as a protobuf `EpisodeEnvelope`: schema version, CRC-32 and serialized `Episode`. Weights are
a JSON manifest and a safetensors payload, whose sha256 is part of the manifest.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors import numpy as safetensors

from actors.types.episode import BOOL, FLOAT, INT, PER_STEP, BurnIn, EndReason, Episode, InvalidEpisode, RecurrentState
from actors.types.spaces import Spaces
from actors.types.weights import WeightSet
from actors.wire import episode_pb2 as wire

SCHEMA_VERSION = 3
MAX_EPISODE_BYTES = 16 * 1024 * 1024
MAX_MANIFEST_BYTES = 1024 * 1024
BYTES_PER_FIELD = 16  # valid episodes have at most one field per 16 bytes, plus SPARE_FIELDS
SPARE_FIELDS = 1024
VERSION_RUN_BYTES = 20  # largest size of one run of versions, including tags
SPARE_BYTES = 32 * 1024  # for ids, shapes and MAX_TELEMETRY values with names of 100 characters
MAX_DIMENSION = 1 << 20  # keeps the product of three dimensions, times an item's size, inside 64 bits


INT_TYPES: dict[wire.Dtype, np.dtype[Any]] = {
    wire.DTYPE_INT8: np.dtype("<i1"),
    wire.DTYPE_INT16: np.dtype("<i2"),
    wire.DTYPE_INT32: np.dtype("<i4"),
    wire.DTYPE_INT64: np.dtype("<i8"),
}
_STORED: dict[np.dtype[Any], dict[wire.Dtype, np.dtype[Any]]] = {
    FLOAT: {wire.DTYPE_FLOAT32: np.dtype("<f4")},
    INT: INT_TYPES,
    BOOL: {wire.DTYPE_BITS: np.dtype(np.uint8)},
}
"""The types in which arrays are stored: integers in the smallest that holds them, booleans as bits."""
_LIMITS = {form: (np.iinfo(n).min, np.iinfo(n).max) for form, n in INT_TYPES.items()}

_END_REASONS: dict[EndReason, wire.EndReason] = {r: getattr(wire, f"END_REASON_{r.name}") for r in EndReason}
_END_REASONS_OF_WIRE = {number: reason for reason, number in _END_REASONS.items()}
_SCALARS = (
    "episode_id", "env_id", "task_id", "seed", "spaces_hash", "generation", "terminated", "truncated",
    "bootstrap_value", "state_stride",
)  # fmt: skip
_ARRAYS = {name: form for name, form in PER_STEP.items() if name != "policy_version"} | {
    "final_obs": (FLOAT, 1),
    "final_blueprint_indices": (INT, 1),
    "final_masks": (BOOL, 1),
}
"""Types and ranks of an episode's arrays."""
_IDENTITY = {
    "version": int,
    "generation": int,
    "spaces_hash": str,
    "architecture": str,
    "state_stride": int,
    "burn_in": int,
}


class InvalidWeights(ValueError):
    """Weights that cannot be used. The message says why."""


@dataclass(frozen=True)
class WeightBlob:
    """A serialized `WeightSet`."""

    manifest: bytes  # canonical JSON: identity, tensor names, sha256 of the payload and of the manifest itself
    payload: bytes  # safetensors


def encode_episode(episode: Episode) -> bytes:
    """Serialize an episode; equal episodes give equal bytes. Raises `InvalidEpisode` if it is not valid."""
    episode.validate()
    message = wire.Episode(
        policy_version=_version_runs(episode.policy_version),
        end_reason=_END_REASONS[episode.end_reason],
        initial_state=pack_state(episode.initial_state),
        states=pack_state(episode.states),
        telemetry=episode.telemetry,
    )
    for name in _SCALARS:
        try:
            setattr(message, name, getattr(episode, name))
        except ValueError as error:
            raise InvalidEpisode(f"episode {episode.episode_id}: {name}: {error}") from error
    for name in _ARRAYS:
        getattr(message, name).CopyFrom(pack_array(getattr(episode, name)))
    if episode.burn_in is not None:
        message.burn_in.obs.CopyFrom(pack_array(episode.burn_in.obs))
        message.burn_in.blueprint_indices.CopyFrom(pack_array(episode.burn_in.blueprint_indices))
        message.burn_in.version = episode.burn_in.version
    body = message.SerializeToString(deterministic=True)
    return wire.EpisodeEnvelope(
        schema_version=SCHEMA_VERSION, checksum=zlib.crc32(body), episode=body
    ).SerializeToString()


def decode_episode(data: bytes, max_bytes: int = MAX_EPISODE_BYTES) -> Episode:
    """Invert `encode_episode`. The arrays are writable copies.

    Raises `InvalidEpisode`, and no other exception, for any other bytes. Lengths are checked before arrays are
    allocated, and fields are counted before they are parsed, so that memory stays within about ten times `len(data)`.
    """
    if len(data) > max_bytes:
        raise InvalidEpisode(f"episode of {len(data)} bytes, the limit is {max_bytes}")
    message = _parse(data)
    if message.end_reason not in _END_REASONS_OF_WIRE:
        raise InvalidEpisode(f"episode {message.episode_id}: unknown end reason {message.end_reason}")
    # The type checker cannot match dicts to the individually typed arguments.
    arrays: dict[str, Any] = {name: _unpack(name, getattr(message, name), *form) for name, form in _ARRAYS.items()}
    scalars: dict[str, Any] = {name: getattr(message, name) for name in _SCALARS}
    episode = Episode(
        policy_version=_versions(message, len(arrays["rewards"])),
        end_reason=_END_REASONS_OF_WIRE[message.end_reason],
        initial_state=unpack_state("initial_state", message.initial_state),
        states=unpack_state("states", message.states),
        telemetry=dict(message.telemetry),
        burn_in=_burn_in(message.burn_in) if message.HasField("burn_in") else None,
        **scalars,
        **arrays,
    )
    episode.validate()
    return episode


def _burn_in(message: wire.BurnIn) -> BurnIn:
    return BurnIn(
        _unpack("burn_in.obs", message.obs, FLOAT, 2),
        _unpack("burn_in.blueprint_indices", message.blueprint_indices, INT, 2),
        message.version,
    )


def _parse(data: bytes) -> wire.Episode:
    try:
        envelope = wire.EpisodeEnvelope.FromString(data)
    except DecodeError as error:
        raise InvalidEpisode(f"not an episode: {error}") from error
    if envelope.schema_version != SCHEMA_VERSION:
        raise InvalidEpisode(f"episode schema {envelope.schema_version}, expected {SCHEMA_VERSION}")
    if envelope.checksum != zlib.crc32(envelope.episode):
        raise InvalidEpisode("episode checksum does not match: the bytes were changed or truncated in transit")
    if has_more_fields(envelope.episode, len(envelope.episode) // BYTES_PER_FIELD + SPARE_FIELDS):
        raise InvalidEpisode(f"{len(envelope.episode)} bytes with more fields than an episode has")
    try:
        return wire.Episode.FromString(envelope.episode)
    except DecodeError as error:
        raise InvalidEpisode(f"not an episode: {error}") from error


def largest_episode_bytes(spaces: Spaces, steps: int, state_floats: int, state_stride: int, burn_in: int = 0) -> int:
    """Return an upper bound of the serialized size of an episode of `steps` steps, after a burn-in of `burn_in` steps.

    The bound allows for different weights at every step and for the maximum of telemetry. `state_floats` is the number
    of floats in one recurrent state.
    """
    carried = burn_in + state_stride - 1 if burn_in else 0  # back to a stored state
    spec, states = spaces.action, 1 + -(-(carried + steps) // state_stride)
    choice, blueprint = (_int_bytes(n) for n in (max(spec.limits), spaces.num_blueprints))
    mask_bytes = -(-steps * spec.flat_size // 8)
    observation = 4 * spaces.obs_size + blueprint * spaces.slots
    step = observation + (4 + choice) * len(spec.heads) + 4 * 3 + VERSION_RUN_BYTES  # values, baseline values, rewards
    final = observation + spec.flat_size
    return steps * step + carried * observation + mask_bytes + final + 4 * state_floats * states + SPARE_BYTES


def _int_bytes(choices: int) -> int:
    """Return the packed size of an index that is below `choices`, or -1."""
    return next(n.itemsize for n in INT_TYPES.values() if choices - 1 <= np.iinfo(n).max)


def has_more_fields(body: bytes, limit: int) -> bool:
    """Return whether a serialized message has more than `limit` top-level fields.

    An empty field takes two bytes, but parsing creates an object of 20 times that size. In bytes that are not a valid
    message, fields are counted up to the first error.
    """
    at, end = 0, len(body)
    for _ in range(limit + 1):
        if at >= end:
            return False
        tag, at = _varint(body, at)
        match tag & 7:
            case 0:
                _, at = _varint(body, at)
            case 1:
                at += 8
            case 2:
                size, at = _varint(body, at)
                at += size
            case 5:
                at += 4
            case _:  # groups, which this schema does not use; the parser limits their depth
                return False
    return True


def _varint(body: bytes, at: int) -> tuple[int, int]:
    """Return the varint at offset `at` and its end offset; an invalid one is 0 and ends at the end of `body`."""
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(body):
            break
        byte = body[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    return 0, len(body)


def _version_runs(versions: NDArray[np.int64]) -> list[wire.VersionRun]:
    starts = np.flatnonzero(np.diff(versions, prepend=versions[0] - 1))
    lengths = np.diff(starts, append=len(versions))
    return [wire.VersionRun(version=int(versions[s]), steps=int(n)) for s, n in zip(starts, lengths, strict=True)]


def _versions(message: wire.Episode, steps: int) -> NDArray[np.int64]:  # [T]
    runs = message.policy_version
    if len(runs) > steps or sum(run.steps for run in runs) != steps:
        raise InvalidEpisode(f"policy_version: the runs do not add up to {steps} steps")
    lengths = np.array([r.steps for r in runs], dtype=np.int64)
    return np.repeat(np.array([r.version for r in runs], dtype=np.int64), lengths)


def pack_array(array: NDArray[Any]) -> wire.Array:
    """Convert an array of float32, int64 or bool to its message."""
    if array.dtype == BOOL:
        return wire.Array(dtype=wire.DTYPE_BITS, shape=array.shape, data=np.packbits(array.ravel()).tobytes())
    form = wire.DTYPE_FLOAT32
    if array.dtype == INT:
        low, high = (int(array.min()), int(array.max())) if array.size else (0, 0)
        form = next(f for f, (lowest, highest) in _LIMITS.items() if lowest <= low and high <= highest)
    stored = array.astype(_STORED[array.dtype][form], copy=False)
    return wire.Array(dtype=form, shape=array.shape, data=stored.tobytes())


def pack_state(state: RecurrentState) -> wire.RecurrentState:
    """Convert a recurrent state to its message."""
    return wire.RecurrentState(**{f: pack_array(a) for f, a in state._asdict().items()})


def _unpack(name: str, array: wire.Array, dtype: np.dtype[Any], rank: int) -> NDArray[Any]:
    stored = _STORED[dtype].get(array.dtype)
    if stored is None:
        raise InvalidEpisode(f"{name}: stored as {array.dtype}, which is no form of {dtype}")
    if len(array.shape) != rank or any(n > MAX_DIMENSION for n in array.shape):
        raise InvalidEpisode(f"{name}: rank {len(array.shape)} or size out of bounds, expected rank {rank}")
    shape, item_bits = tuple(array.shape), 1 if dtype == BOOL else 8 * stored.itemsize
    if -(-math.prod(shape) * item_bits // 8) != len(array.data):
        raise InvalidEpisode(f"{name}: {len(array.data)} bytes for shape {shape}")
    found = np.frombuffer(array.data, dtype=stored)
    if dtype == BOOL:
        return np.unpackbits(found, count=math.prod(shape)).view(np.bool_).reshape(shape)
    return found.reshape(shape).astype(dtype)


def unpack_state(name: str, state: wire.RecurrentState) -> RecurrentState:
    """Invert `pack_state`. Raises `InvalidEpisode`."""
    return RecurrentState(**{f: _unpack(f"{name}.{f}", getattr(state, f), FLOAT, 3) for f in RecurrentState._fields})


def encode_weights(weights: WeightSet) -> WeightBlob:
    """Serialize weights. Raises `InvalidWeights` for tensors that safetensors does not support."""
    try:
        payload = safetensors.save({name: np.array(t, order="C") for name, t in weights.tensors.items()})
    except (SafetensorError, KeyError, ValueError) as error:
        raise InvalidWeights(f"weights {weights.version} cannot be stored: {error!r}") from error
    fields: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        **{name: getattr(weights, name) for name in _IDENTITY},
        "payload_sha256": hashlib.sha256(payload).hexdigest(),
    }
    fields["manifest_sha256"] = hashlib.sha256(_canonical(fields)).hexdigest()
    return WeightBlob(_canonical(fields), payload)


def payload_hash(manifest: bytes) -> str:
    """Return the sha256 of the payload that an unchecked manifest names; empty if it names none."""
    try:
        found = json.loads(manifest)["payload_sha256"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return ""
    return found if isinstance(found, str) and re.fullmatch("[0-9a-f]{64}", found) else ""


def manifest_digest(manifest: bytes) -> str:
    """Return what identifies a publication: the start of the manifest's SHA-1, which Lua can compute."""
    return hashlib.sha1(manifest, usedforsecurity=False).hexdigest()[:16]


def decode_weights(blob: WeightBlob, payload_checked: bool = False) -> WeightSet:
    """Invert `encode_weights`. Raises `InvalidWeights`, and no other exception, for any other bytes.

    With `payload_checked`, the caller has compared the payload with the sha256 in the manifest.
    """
    if len(blob.manifest) > MAX_MANIFEST_BYTES:
        raise InvalidWeights(f"weight manifest of {len(blob.manifest)} bytes, the limit is {MAX_MANIFEST_BYTES}")
    try:
        fields = json.loads(blob.manifest)
        checksum = fields.pop("manifest_sha256")
        if _canonical({**fields, "manifest_sha256": checksum}) != blob.manifest:
            raise InvalidWeights("weight manifest is not in canonical form")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InvalidWeights(f"not a weight manifest: {error!r}") from error
    if hashlib.sha256(_canonical(fields)).hexdigest() != checksum:
        raise InvalidWeights("weight manifest does not match its checksum")
    if fields.get("schema_version") != SCHEMA_VERSION:
        raise InvalidWeights(f"weight schema {fields.get('schema_version')}, expected {SCHEMA_VERSION}")
    if missing := {*_IDENTITY, "payload_sha256"} - fields.keys():
        raise InvalidWeights(f"weight manifest without {', '.join(sorted(missing))}")
    for name, kind in _IDENTITY.items():
        if type(fields[name]) is not kind:
            raise InvalidWeights(f"weight manifest: {name} is {fields[name]!r:.100}, expected {kind.__name__}")
    if not payload_checked and hashlib.sha256(blob.payload).hexdigest() != fields["payload_sha256"]:
        raise InvalidWeights(
            f"weights {fields['version']}: payload of {len(blob.payload)} bytes does not match its sha256"
        )
    try:
        tensors = {name: np.array(t) for name, t in safetensors.load(blob.payload).items()}
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise InvalidWeights(f"weights {fields['version']}: {error!r}") from error
    return WeightSet(
        tensors=tensors, digest=manifest_digest(blob.manifest), **{name: fields[name] for name in _IDENTITY}
    )


def _canonical(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()
