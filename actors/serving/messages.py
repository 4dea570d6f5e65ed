"""Convert steps between numpy arrays and protobuf messages, validate requests, and stack them into batches."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actors.codec import INT_TYPES, pack_array
from actors.sessions.refusal import Reason, Refusal
from actors.types.actions import ActionMasks, playable
from actors.types.spaces import Spaces
from actors.wire import episode_pb2, policy_pb2

MASKS_KEPT = 4096  # of which it is remembered whether they are valid
OVERHEAD_BYTES = 1024  # of a request, besides its arrays
_NOT_FINITE = "obs contains NaN or Inf: encode missing features with their documented values"
_OUT_OF_RANGE = "blueprint_indices must be between -1 (empty) and {}"
_UNPLAYABLE = "the masks allow no op, or allow an op but no choice for one of its heads"
_STEP_FIELD = bytes([policy_pb2.StepStreamResponse.STEP_FIELD_NUMBER << 3 | 2])  # 2: its length follows
_CONTRADICTION = "mask is not the union of slot_mask_by_op and rest_mask over the legal ops"


class ArraySpec:
    """Dtype and shape that one array of a request must have."""

    def __init__(self, name: str, dtype: episode_pb2.Dtype, shape: tuple[int, ...]) -> None:
        self.name, self.dtype, self.shape = name, dtype, list(shape)
        self.num_elements = math.prod(shape)
        self.num_bytes = 4 * self.num_elements if dtype == episode_pb2.DTYPE_FLOAT32 else -(-self.num_elements // 8)

    def read(self, array: episode_pb2.Array) -> bytes:
        """Return the bytes of `array`. Raises `Refusal` if its dtype, shape or size is wrong."""
        data = array.data
        if array.dtype != self.dtype or array.shape != self.shape or len(data) != self.num_bytes:
            raise Refusal(
                Reason.WRONG_SHAPE,
                f"{self.name} has dtype {array.dtype}, shape {list(array.shape)} and {len(data)} bytes, expected "
                f"{episode_pb2.Dtype.Name(self.dtype)} ({self.dtype}), {self.shape} and {self.num_bytes}",
            )
        return data

    def unpack(self, packed: Sequence[bytes]) -> NDArray[np.bool_]:
        """Unpack the bits of N arrays into one boolean array of shape `[N, *shape]`."""
        octets = np.frombuffer(b"".join(packed), np.uint8).reshape(len(packed), self.num_bytes)
        return np.unpackbits(octets, axis=1, count=self.num_elements).view(np.bool_).reshape(len(packed), *self.shape)


class MessageLayout:
    """The array specs of a step request, for given spaces."""

    def __init__(self, spaces: Spaces) -> None:
        spec, by_slot = spaces.action, (spaces.action.num_ops, spaces.action.num_slots)
        self.spaces = spaces
        self.obs = ArraySpec("obs", episode_pb2.DTYPE_FLOAT32, (spaces.obs_size,))
        self.mask = ArraySpec("mask", episode_pb2.DTYPE_BITS, (spec.flat_size,))
        self.slot_mask = ArraySpec("slot_mask_by_op", episode_pb2.DTYPE_BITS, by_slot)
        self.rest_mask = ArraySpec("rest_mask", episode_pb2.DTYPE_BITS, (*by_slot, spec.rest_size))
        self._reasons = dict[tuple[bytes, bytes, bytes], str | None]()  # of masks that were seen before

    @property
    def request_bytes(self) -> int:
        """The largest size of a step request."""
        arrays = (self.obs, self.mask, self.slot_mask, self.rest_mask)
        return sum(array.num_bytes for array in arrays) + 8 * self.spaces.slots + OVERHEAD_BYTES

    def unpack(self, mask: Sequence[bytes], slot_mask: Sequence[bytes], rest_mask: Sequence[bytes]) -> ActionMasks:
        """Unpack the masks of N steps; those that spaces without slots do not have are ignored."""
        flat, spec = self.mask.unpack(mask), self.spaces.action
        if not spec.conditioned:
            return ActionMasks.of_flat(spec, flat)
        return ActionMasks(flat[:, : spec.num_ops], self.slot_mask.unpack(slot_mask), self.rest_mask.unpack(rest_mask))

    def reasons_against(self, packed: Sequence[tuple[bytes, bytes, bytes]]) -> list[str | None]:
        """Return for the masks of each step why they are refused, or None. Most steps repeat masks of earlier ones, so
        that only new ones are validated, all at once."""
        if new := list({masks for masks in packed if masks not in self._reasons}):
            if len(self._reasons) + len(new) > MASKS_KEPT:
                self._reasons = {masks: self._reasons[masks] for masks in packed if masks in self._reasons}
            masks = self.unpack(*zip(*new, strict=True))
            agree = (masks.flat() == self.mask.unpack([mask for mask, _, _ in new])).all(-1)
            for one, legal, same in zip(new, playable(self.spaces.action, masks), agree, strict=True):
                self._reasons[one] = _UNPLAYABLE if not legal else None if same else _CONTRADICTION
        return [self._reasons[masks] for masks in packed]


@dataclass(slots=True)
class StepQuery:
    """One step's arrays, with dtype and shape already validated. `make_step_batch` validates their contents."""

    obs: bytes
    blueprint_indices: bytes  # int64 [S]
    mask: bytes
    slot_mask: bytes
    rest_mask: bytes
    deterministic: bool


@dataclass(frozen=True)
class StepBatch:
    """N stacked queries, and for each the reason to refuse it, or None."""

    obs: NDArray[np.float32]  # [N, D]
    blueprint_indices: NDArray[np.int64]  # [N, S]
    masks: ActionMasks
    refusals: list[Refusal | None]  # [N]


def request_digest(request: policy_pb2.StepRequest | policy_pb2.EndEpisodeRequest | bytes) -> bytes:
    """Hash the contents of a request, whatever its session and whether it asks for the exported state. A digest stays
    what it is."""
    if isinstance(request, bytes):
        return request
    other: Any = type(request)()
    other.CopyFrom(request)
    other.ClearField("session_id")
    if isinstance(request, policy_pb2.StepRequest):
        other.ClearField("export_state")
        if request.deterministic:  # the default
            other.ClearField("deterministic")
    return hashlib.blake2b(other.SerializeToString(deterministic=True), digest_size=16).digest()


def final_query(request: policy_pb2.EndEpisodeRequest, layout: MessageLayout) -> StepQuery:
    """Extract the final observation and masks. Raises `Refusal` if an array has the wrong dtype, shape or size.

    What a terminated episode leaves out is zero; without masks, everything is legal. Both are added to the request.
    """
    spaces, spec = layout.spaces, layout.spaces.action
    if request.terminated and not request.HasField("obs"):
        _set_arrays(request, np.zeros(spaces.obs_size, np.float32), np.full(spaces.slots, -1), None)
    if not request.HasField("mask") and spec.conditioned:
        for array in (layout.mask, layout.slot_mask, layout.rest_mask):
            getattr(request, array.name).CopyFrom(pack_array(np.ones(array.shape, dtype=np.bool_)))
    return parse_step(request, layout)


def parse_step(request: policy_pb2.StepRequest | policy_pb2.EndEpisodeRequest, layout: MessageLayout) -> StepQuery:
    """Extract the arrays of a request; in spaces without slots, a mask that is left out allows everything. Raises
    `Refusal` if an array has the wrong dtype, shape or size."""
    obs, conditioned = layout.obs.read(request.obs), layout.spaces.action.conditioned
    given = request.HasField("mask") or conditioned
    mask = layout.mask.read(request.mask) if given else b"\xff" * layout.mask.num_bytes
    slot_mask = rest_mask = b""
    if conditioned:
        slot_mask = layout.slot_mask.read(request.slot_mask_by_op)
        rest_mask = layout.rest_mask.read(request.rest_mask)
    blueprints = _parse_blueprint_indices(request.blueprint_indices, layout.spaces.slots)
    deterministic = True
    if isinstance(request, policy_pb2.StepRequest) and request.HasField("deterministic"):
        deterministic = request.deterministic
    return StepQuery(obs, blueprints, mask, slot_mask, rest_mask, deterministic)


def _parse_blueprint_indices(array: episode_pb2.Array, slots: int) -> bytes:
    if not slots and not array.data:
        return b""
    dtype = INT_TYPES.get(array.dtype)
    if dtype is None or array.shape != [slots] or len(array.data) != slots * dtype.itemsize:
        raise Refusal(
            Reason.WRONG_SHAPE,
            f"blueprint_indices has dtype {array.dtype}, shape {list(array.shape)} and {len(array.data)} bytes, "
            f"expected an integer type and [{slots}]",
        )
    return array.data if dtype.itemsize == 8 else np.frombuffer(array.data, dtype).astype(np.int64).tobytes()


def make_step_batch(queries: Sequence[StepQuery], layout: MessageLayout) -> StepBatch:
    """Stack queries and validate their contents. An invalid query does not affect the others."""
    spaces, n = layout.spaces, len(queries)
    obs = np.frombuffer(b"".join([q.obs for q in queries]), "<f4").reshape(n, spaces.obs_size).astype(np.float32)
    octets = b"".join([q.blueprint_indices for q in queries])
    blueprints = np.frombuffer(octets, "<i8").reshape(n, spaces.slots).astype(np.int64)
    packed = [(q.mask, q.slot_mask, q.rest_mask) for q in queries]
    against = layout.reasons_against(packed)
    refusals = [None if text is None else Refusal(Reason.ILLEGAL_MASK, text) for text in against]
    in_range = (blueprints >= -1) & (blueprints < max(spaces.num_blueprints, 1))
    for valid, reason, message in (
        (in_range, Reason.OUT_OF_RANGE, _OUT_OF_RANGE.format(spaces.num_blueprints - 1)),
        (np.isfinite(obs), Reason.NOT_FINITE, _NOT_FINITE),
    ):
        for i in () if valid.all() else np.flatnonzero(~valid.all(-1)).tolist():
            refusals[i] = Refusal(reason, message)  # each gets the id of its request
    return StepBatch(obs, blueprints, layout.unpack(*zip(*packed, strict=True)), refusals)


def stream_answer(session_id: str, step_index: int, response: bytes) -> bytes:
    """Return a serialized `StepStreamResponse` with a serialized `StepResponse` in it, which is not parsed for that."""
    answer = policy_pb2.StepStreamResponse(session_id=session_id, step_index=step_index).SerializeToString()
    size, left = bytearray(), len(response)
    while left > 0x7F:
        size.append(left & 0x7F | 0x80)
        left >>= 7
    size.append(left)
    return b"".join((answer, _STEP_FIELD, size, response))


def step_request(
    session_id: str,
    step_index: int,
    obs: NDArray[np.float32],
    blueprint_indices: NDArray[np.int64],
    masks: ActionMasks | None,
    deterministic: bool,
    export_state: bool,
    reward: float | None = None,
) -> policy_pb2.StepRequest:
    """Build the request of one environment: `obs [D]`, `blueprint_indices [S]`, masks without a batch dimension, or
    None, in spaces without slots."""
    request = policy_pb2.StepRequest(
        session_id=session_id,
        step_index=step_index,
        deterministic=deterministic,
        export_state=export_state,
        reward=reward,
    )
    _set_arrays(request, obs, blueprint_indices, masks)
    return request


def end_request(
    reward: float,
    obs: NDArray[np.float32] | None = None,
    blueprint_indices: NDArray[np.int64] | None = None,
    masks: ActionMasks | None = None,
) -> policy_pb2.EndEpisodeRequest:
    """Build the end of an episode: truncated at `obs [D]`, or terminated if there is none."""
    request = policy_pb2.EndEpisodeRequest(reward=reward, terminated=obs is None, truncated=obs is not None)
    if obs is not None and blueprint_indices is not None:
        _set_arrays(request, obs, blueprint_indices, masks)
    return request


def _set_arrays(
    request: policy_pb2.StepRequest | policy_pb2.EndEpisodeRequest,
    obs: NDArray[np.float32],
    blueprint_indices: NDArray[np.int64],
    masks: ActionMasks | None,
) -> None:
    request.obs.CopyFrom(pack_array(np.asarray(obs, np.float32)))
    if len(blueprint_indices):
        request.blueprint_indices.CopyFrom(pack_array(np.asarray(blueprint_indices, np.int64)))
    if masks is not None:
        request.mask.CopyFrom(pack_array(masks.flat()))
        if masks.slot is not None:
            request.slot_mask_by_op.CopyFrom(pack_array(masks.slot))
            request.rest_mask.CopyFrom(pack_array(masks.rest))
