"""Small inputs that would expand to large objects are refused first. Memory is measured as the peak of a process."""

from __future__ import annotations

import json
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from actors.codec import SCHEMA_VERSION, InvalidWeights, WeightBlob, decode_weights, encode_episode
from actors.errors import UserError
from actors.policy.publish import from_weights, to_weights
from actors.types.weights import WeightSet
from actors.wire import episode_pb2 as wire
from tests.support.builders import make_episode
from tests.support.learning.toy import toy_network

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
    envelope = wire.EpisodeEnvelope(schema_version=SCHEMA_VERSION, checksum=zlib.crc32(body), episode=body)
    path = tmp_path / "bomb"
    path.write_bytes(envelope.SerializeToString())
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
