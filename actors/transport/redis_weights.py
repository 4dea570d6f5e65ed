"""`RedisWeights`: published weights on a Redis server; the processes of one machine share what they read."""

from __future__ import annotations

from functools import partial

from actors.codec import InvalidWeights, WeightBlob, decode_weights, encode_weights, payload_hash
from actors.config import QueueConfig
from actors.errors import UserError
from actors.transport.redis_server import NOEVICTION, RETRIES, RedisServer
from actors.transport.weight_cache import WeightCache
from actors.types.weights import WeightSet


class RedisWeights:
    """Publishes weights, of which the newest few versions are kept, and fetches them."""

    def __init__(self, server: RedisServer, config: QueueConfig) -> None:
        self.server, self.config = server, config
        self._cache = WeightCache(server.namespace)

    def publish(self, weights: WeightSet) -> None:
        """Publish weights. Raises `Fenced` unless their generation is current, and `ValueError` unless their version is
        newer than the head."""
        blob = encode_weights(weights)
        # the key holds the generation, so that a fenced learner cannot overwrite its successor's payload
        key = self.server.key(f"weights:{weights.generation}:{weights.version}")
        arguments = (weights.generation, weights.version, blob.manifest, key, self.config.weights_kept)
        expiry_ms = int(1000 * self.config.payload_ttl_s)
        self._cache.add(payload_hash(blob.manifest), blob.payload)
        for _ in range(1 + RETRIES):
            head, status = self.server.store({key: blob.payload}, expiry_ms, "publish", *arguments)
            if status == b"OLD":
                raise ValueError(f"weights {weights.version} are not newer than the published {int(head)}")
            if status == b"OK":
                break
        else:
            raise UserError(f"Redis repeatedly lost {key} before it was accepted: {NOEVICTION}")

    def head(self) -> int:
        """The newest published version, -1 = none."""
        return self._read_head()[0]

    def fetch(self, known: str = "") -> WeightSet | None:
        """Return the published weights, unless `known` is their digest. Their version may be lower than that of the
        known ones, if the store or the run was set back or started afresh. Raises `InvalidWeights` if they are damaged
        or lost."""
        version, digest = self._read_head()
        while version >= 0 and digest != known:
            names = (f"manifest:{version}", f"payload:{version}")
            found = self.server.read("HMGET", self.server.key("weights"), *names)
            manifest, key = found[0] or b"", found[1]
            read = partial(self.server.read, "GET", key) if key else lambda: None
            sha256 = payload_hash(manifest)
            payload, checked = self._cache.payload(sha256, read) if sha256 else (read(), False)
            if payload is not None:
                return decode_weights(WeightBlob(manifest, payload), checked)
            before, (version, digest) = version, self._read_head()
            if version == before:
                raise InvalidWeights(
                    f"the store lost the payload of weights {version}; the learner's next version replaces it"
                )
        return None

    def _read_head(self) -> tuple[int, str]:
        """Read the newest version and its digest; -1 and "" if there is none."""
        head, digest = self.server.read("HMGET", self.server.key("weights"), "head", "digest")
        return (-1, "") if head is None else (int(head), (digest or b"").decode())
