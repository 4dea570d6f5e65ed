"""Copies of what a store holds, to bring it back to an earlier state."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from actors.transport.base import Transport
from actors.transport.memory import MemoryTransport
from actors.transport.redis import RedisTransport


def freeze(transport: Transport) -> Callable[[], None]:
    """Save the state of the store; the result restores it when called."""
    if isinstance(transport, MemoryTransport):
        store = transport._store
        kept = {k: copy.deepcopy(v) for k, v in vars(store).items() if k != "changed"}
        return lambda: vars(store).update(copy.deepcopy(kept))
    assert isinstance(transport, RedisTransport)
    client: Any = transport._queue.client
    pattern = transport._queue.key("*")
    dumped = {key: (max(0, client.pttl(key)), client.dump(key)) for key in client.keys(pattern)}

    def thaw() -> None:
        for key in client.keys(pattern):
            client.delete(key)
        for key, (ttl_ms, value) in dumped.items():
            client.restore(key, ttl_ms, value)

    return thaw
