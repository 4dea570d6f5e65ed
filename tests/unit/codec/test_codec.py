"""Round trips are bit-exact; malformed input is refused, also before small inputs expand to large objects."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

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
from actors.policy.publish import from_weights, to_weights
from actors.transport.base import EpisodeHeader
from actors.types.episode import EndReason, Episode, InvalidEpisode
from actors.types.weights import WeightSet
from actors.wire import episode_pb2 as wire
from tests.support.builders import make_episode, make_weights
from tests.support.episodes import episodes_equal
from tests.support.examples import examples
from tests.support.learning.toy import toy_network

QUICK = settings(max_examples=examples(40), deadline=None, suppress_health_check=[HealthCheck.too_slow])


def sealed(body: bytes) -> bytes:
    """Give a message a valid checksum, so that only later checks can refuse it."""
    envelope = wire.EpisodeEnvelope(schema_version=SCHEMA_VERSION, checksum=zlib.crc32(body), episode=body)
    return envelope.SerializeToString()


def episodes_of(steps: int) -> st.SearchStrategy[Episode]:
    versions = st.lists(st.integers(-(2**62), 2**62), min_size=1, max_size=5)
    return st.builds(
        make_episode,
        st.integers(0, 2**32),
        steps=st.just(steps),
        slots=st.integers(0, 8),
        features=st.integers(0, 9),
        head_sizes=st.lists(st.integers(1, 300), min_size=1, max_size=6).map(tuple),
        num_layers=st.integers(0, 3),
        cells=st.integers(0, 4),
        state_stride=st.integers(1, 50),
        burn_in=st.integers(0, 9),
        policy_version=versions.map(lambda found: np.resize(np.array(found, dtype=np.int64), steps)),
        end_reason=st.sampled_from(EndReason),
        telemetry=st.dictionaries(st.text(), st.floats(-1e38, 1e38), max_size=4),
    )


WIDE = make_episode(
    steps=2, features=2, head_sizes=(1, 1), actions=np.array([[0, 2**40], [200, 40_000]]), seed=2**64 - 1,
    obs=np.array([[-0.0, np.finfo(np.float32).smallest_subnormal]] * 2, dtype=np.float32),
)  # fmt: skip


@QUICK
@given(st.integers(1, 40).flatmap(episodes_of))
@example(WIDE)
@example(make_episode(steps=3000, policy_version=np.arange(3000, dtype=np.int64) * 2**40))
def test_round_trip_is_exact(episode: Episode) -> None:
    decoded = decode_episode(encode_episode(episode))
    assert episodes_equal(decoded, episode)
    assert decoded.obs.tobytes() == episode.obs.tobytes()  # including the sign of zero
    assert decoded.obs.flags.writeable
    assert decoded.masks.flags.writeable


def test_equal_episodes_have_equal_and_compact_bytes() -> None:
    assert encode_episode(make_episode(3)) == encode_episode(make_episode(3))
    small = encode_episode(make_episode(steps=200, features=1, hidden=1))
    assert len(small) < 200 * (25 + 4 * 6 + 4 * 4 + 20)


def test_a_flipped_bit_is_detected() -> None:
    whole = encode_episode(make_episode())
    for position in range(0, 8000, 97):
        data = bytearray(whole)
        data[position % len(data)] ^= 1 << (position % 8)
        with pytest.raises(InvalidEpisode):
            decode_episode(bytes(data))


DAMAGES: dict[str, dict[str, Any]] = {
    "a huge shape": {"obs.shape": [1 << 20, 1 << 20]},
    "an empty shape that overflows": {"states.h.shape": [2**32 - 1, 2**32 - 1, 0], "states.h.data": b""},
    "an endless run": {"policy_version.0.steps": 2**32 - 1},
    "a wrong dtype": {"rewards.dtype": wire.DTYPE_INT32},
    "an unknown dtype": {"actions.dtype": 77},
    "a wrong rank": {"initial_state.h.shape": [8]},
    "a missing array": {"values": None},
    "NaN": {"rewards.data": np.full(25, np.nan, dtype="<f4").tobytes()},
    "an unknown end": {"end_reason": wire.END_REASON_UNSPECIFIED},
    "both ends": {"terminated": True, "truncated": True},
    "no steps": {"rewards.shape": [0], "rewards.data": b"", "policy_version.0.steps": 0},
}


def assign(message: Any, path: str, value: Any) -> None:
    *parents, field = path.split(".")
    for name in parents:
        message = message[int(name)] if name.isdigit() else getattr(message, name)
    if value is None:
        message.ClearField(field)
    elif isinstance(value, list):
        getattr(message, field)[:] = value
    else:
        setattr(message, field, value)


@pytest.mark.parametrize("damage", DAMAGES)
def test_malformed_content_is_refused(damage: str) -> None:
    message = wire.Episode.FromString(wire.EpisodeEnvelope.FromString(encode_episode(make_episode())).episode)
    for path, value in DAMAGES[damage].items():
        assign(message, path, value)
    with pytest.raises(InvalidEpisode):
        decode_episode(sealed(message.SerializeToString()))


def test_other_schemas_and_oversized_messages_are_refused() -> None:
    data = encode_episode(make_episode())
    envelope = wire.EpisodeEnvelope.FromString(data)
    envelope.schema_version += 1
    with pytest.raises(InvalidEpisode, match="schema"):
        decode_episode(envelope.SerializeToString())
    with pytest.raises(InvalidEpisode, match="bytes"):
        decode_episode(data, max_bytes=len(data) - 1)
    assert decode_episode(data, max_bytes=len(data)).spaces_hash == "spaces"


@pytest.mark.parametrize(
    "changes",
    [
        {"rewards": np.zeros(25, dtype=np.float64)},
        {"actions": np.zeros((25, 6), dtype=np.int32)},
        {"masks": np.zeros((25, 25), dtype=np.uint8)},
        {"seed": -1},
        {"values": np.full(25, np.inf, dtype=np.float32)},
        {"bootstrap_value": -1e39},  # finite in float64, infinite in the float32 of a batch
        {"telemetry": {"final_accuracy": 1e300}},
        {"telemetry": {"final_accuracy": float("nan")}},
    ],
)
def test_an_invalid_episode_is_not_encoded(changes: dict[str, Any]) -> None:
    with pytest.raises(InvalidEpisode):
        encode_episode(make_episode(**changes))


def test_weights_round_trip_is_exact() -> None:
    strided = np.arange(12, dtype=np.float32).reshape(3, 4).T
    more = {"strided": strided, "flags": np.array([True, False]), "none": np.zeros((0, 3))}
    tensors = make_weights(5).tensors | more
    weights = make_weights(5, 2, tensors=tensors)
    decoded = decode_weights(encode_weights(weights))
    assert dataclasses.replace(decoded, tensors={}) == dataclasses.replace(weights, tensors={})
    assert decoded.tensors.keys() == weights.tensors.keys()
    for name, tensor in tensors.items():
        found = decoded.tensors[name]
        assert (found.dtype, found.shape, found.tobytes()) == (tensor.dtype, tensor.shape, tensor.tobytes())
        assert found.flags.writeable


def test_flipped_bits_in_weights_are_detected() -> None:
    blob = encode_weights(make_weights())
    for part, stride in (("payload", 7), ("manifest", 1)):
        for position in range(0, len(getattr(blob, part)), stride):
            data = bytearray(getattr(blob, part))
            data[position] ^= 1
            with pytest.raises(InvalidWeights):
                decode_weights(dataclasses.replace(blob, **{part: bytes(data)}))


@pytest.mark.parametrize("manifest", [b"", b"{}", b"[]", b"3", b'{"manifest_sha256":"x"}', b"\xff", b"[" * 100_000])
def test_invalid_manifests_are_refused(manifest: bytes) -> None:
    with pytest.raises(InvalidWeights):
        decode_weights(WeightBlob(manifest, b""))


def test_object_arrays_are_refused() -> None:
    with pytest.raises(InvalidWeights):
        encode_weights(make_weights(tensors={"object": np.array([object()])}))


def test_headers_are_parsed_from_episode_ids() -> None:
    episode: Episode = make_episode(actor="a", incarnation=2, sequence=7, steps=2, policy_version=np.array([5, 3]))
    assert EpisodeHeader.from_episode(episode) == EpisodeHeader("run/a/2/7", 1, 3, 5)
    for bad in ("", "run/a/2", "run/a/x/7", "run//2/7", "run/a/2/-7", "run/a/2/07", "run/a/2/7/8", f"run/a/2/{2**53}"):
        with pytest.raises(InvalidEpisode):
            EpisodeHeader.from_episode(dataclasses.replace(episode, episode_id=bad))


MEASURE = """
import resource, sys
from pathlib import Path
from actors.codec import decode_episode
from actors.types.episode import InvalidEpisode
data = Path(sys.argv[1]).read_bytes()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    decode_episode(data, max_bytes=2**30)
    sys.exit("it was taken")
except InvalidEpisode:
    print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 / len(data))
"""
RUNS = wire.Episode.DESCRIPTOR.fields_by_name["policy_version"].number
BOMBS: dict[str, Callable[[], bytes]] = {
    "runs": lambda: bytes([RUNS << 3 | 2, 0]) * 2**22,
    "shape": lambda: wire.Episode(obs=wire.Array(shape=range(2**21))).SerializeToString(),
    "unknown": lambda: bytes([0xF8, 0x7F, 0]) * 2**21,
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["runs", *(pytest.param(kind, marks=pytest.mark.long) for kind in list(BOMBS)[1:])])
def test_a_message_with_too_many_fields_is_refused_before_it_is_parsed(kind: str, tmp_path: Path) -> None:
    body = wire.EpisodeEnvelope.FromString(encode_episode(make_episode())).episode + BOMBS[kind]()
    path = tmp_path / "bomb"
    path.write_bytes(sealed(body))
    ended = subprocess.run([sys.executable, "-c", MEASURE, path], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert float(ended.stdout) < 12


def test_a_manifest_above_the_size_limit_is_refused() -> None:
    with pytest.raises(InvalidWeights, match="manifest of"):
        decode_weights(WeightBlob(b"[" + b"{}," * 2**19 + b"{}]", b""))


@pytest.mark.parametrize(
    "asked", [{"hidden_size": 65536}, {"num_layers": 64, "hidden_size": 60000}, {"hidden_size": 2**40}]
)
def test_a_network_is_not_built_if_the_tensors_do_not_match_it(asked: dict[str, int]) -> None:
    weights = to_weights(toy_network(), 1, 1, 8)
    stored = json.loads(weights.architecture)
    stored["policy"] |= asked
    with pytest.raises(UserError, match="these weights"):
        from_weights(WeightSet(1, 1, weights.spaces_hash, json.dumps(stored), 8, weights.tensors))
