"""`SharedHead`: the newest version of the weights, as the processes of this user on this machine last saw it.

Actors ask for newer weights often, and a request to the server takes longer than a step of the policy. So processes
share the server's last answer in 24 bytes of /dev/shm: the version, its digest, and the time of the answer. A process
asks the server only if that answer is older than `FRESH_S`. The learner also writes the versions that it publishes.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import struct
import time
from functools import cached_property

from actors.transport.weight_cache import WeightCache

FRESH_S = 0.002
_RECORD = struct.Struct("<q8sq")  # version, digest, CLOCK_MONOTONIC in nanoseconds, which all processes share


class SharedHead:
    """The head of one namespace on one server. Without a usable /dev/shm it remembers nothing."""

    def __init__(self, cache: WeightCache, server: str) -> None:
        self._cache, self._name = cache, hashlib.sha256(server.encode()).hexdigest()[:16]

    @cached_property
    def _memory(self) -> mmap.mmap | None:
        path = self._cache.shared_file(self._name)
        if path is None:
            return None
        try:
            file = os.open(path, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW, 0o600)
        except OSError:  # no memory left there
            return None
        try:
            os.ftruncate(file, _RECORD.size)
            return mmap.mmap(file, _RECORD.size)
        except OSError:
            return None
        finally:
            os.close(file)

    def recent(self) -> tuple[int, str] | None:
        """Return the version and its digest, or None if nobody has asked the server within `FRESH_S`."""
        if self._memory is None:
            return None
        version, digest, asked_ns = _RECORD.unpack_from(self._memory)
        return (
            (version, digest.hex() if version >= 0 else "")
            if 0 <= time.monotonic_ns() - asked_ns < FRESH_S * 1e9
            else None
        )

    def saw(self, version: int, digest: str) -> None:
        """Share what the server has just answered."""
        if self._memory is not None:
            _RECORD.pack_into(self._memory, 0, version, bytes.fromhex(digest), time.monotonic_ns())
